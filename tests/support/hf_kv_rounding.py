#!/usr/bin/env python3
"""What storing K and V in f16 costs by itself: Hugging Face's own code, in f32, with keys (after the rotation) and
values rounded before attention, teacher-forced over the cases of expected_many.json. Prints, for each model and
rounding, the median and largest |best minus second logit - margins|. Run by hand; needs transformers 5.12 and torch:

    python tests/support/hf_kv_rounding.py models/tinystories-656k models/stories260K-hf models/tiny-llama3
"""

import json
import pathlib
import statistics
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

ROUNDINGS = {"none": lambda x: x, "f16": lambda x: x.half().float(), "bf16": lambda x: x.bfloat16().float()}


def differences(model, cases):
    for case in cases:
        ids = case["prompt_ids"] + case["greedy_ids"][:-1]
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, len(case["prompt_ids"]) - 1 :].double()
        best = logits.topk(2, -1).values
        yield from (abs(a - b) for a, b in zip((best[:, 0] - best[:, 1]).tolist(), case["margins"]))


def main():
    attention = modeling_llama.eager_attention_forward
    for folder in map(pathlib.Path, sys.argv[1:]):
        cases = json.loads((folder / "expected_many.json").read_text())["cases"]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        for name, rounded in ROUNDINGS.items():
            modeling_llama.eager_attention_forward = lambda module, q, k, v, *rest, rounded=rounded, **options: attention(
                module, q, rounded(k), rounded(v), *rest, **options
            )
            with torch.no_grad():
                found = list(differences(model, cases))
            print(f"{folder.name} {name}: {len(found)} steps, median {statistics.median(found):.5f}, largest {max(found):.4f}")


if __name__ == "__main__":
    main()
