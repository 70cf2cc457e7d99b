"""SmolLM2's tokenizer, from the fields of its GGUF file to Hugging Face's files."""

import sys

# GGUF's token type of the special tokens.
CONTROL_TOKEN = 3


def special_tokens(fields):
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {i: {"content": tokens[i], **flags} for i, kind in enumerate(types) if kind == CONTROL_TOKEN}


def tokenizer_json(fields):
    # "smollm" is GGUF's word for: digits one by one, then GPT-2's regular expression.
    if fields["tokenizer.ggml.pre"] != "smollm":
        sys.exit(f"unknown pre-tokenizer: {fields['tokenizer.ggml.pre']}")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **token} for i, token in special_tokens(fields).items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])},
            "merges": fields["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(fields):
    tokens = fields["tokenizer.ggml.tokens"]

    def token(name):
        return tokens[fields[f"tokenizer.ggml.{name}_token_id"]]

    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): token for i, token in special_tokens(fields).items()},
        "additional_special_tokens": [token("bos"), token("eos")],
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": fields["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        # Not GPT2Tokenizer, SmolLM2's own choice: some releases of transformers then replace
        # the pre-tokenizer above by GPT-2's, which does not split digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "vocab_size": len(tokens),
    }
