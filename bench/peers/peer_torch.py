#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention on the CPU for decoding.

Tried, and the fastest taken: bf16 and f16, each with enable_gqa and with the query heads of a
KV head as rows of one query (the same sums, since a decoding row sees every cached token).
Runs in the environment that bench/peers/setup makes.
"""

import sys
from dataclasses import dataclass

import peer_case


@dataclass
class Form:
    case: peer_case.Case
    dtype: object
    rows: bool  # heads of a KV head as rows

    slack_bytes = 1024
    worst_error = 0.03

    def __post_init__(self):
        import torch

        case = self.case
        self.format = str(self.dtype).removeprefix("torch.")
        self.name = f"{self.format}, " + ("query heads of a KV head as rows" if self.rows else "enable_gqa")
        self.bytes_per_token = 2 * case.kv_heads * case.head_dim * 2
        self._attend = torch.nn.functional.scaled_dot_product_attention
        self._queries = [torch.randn(self._query_shape(sequences)).to(self.dtype) for sequences, _ in case.groups]
        self._options = {} if self.rows or case.heads == case.kv_heads else {"enable_gqa": True}

    def _query_shape(self, sequences: int) -> tuple[int, ...]:
        case = self.case
        if self.rows:
            return (sequences, case.kv_heads, case.heads // case.kv_heads, case.head_dim)
        return (sequences, case.heads, 1, case.head_dim)

    def layer(self, memory):
        """K and V of each group, [sequences, kv_heads, context, head_dim]."""
        pairs = []
        for sequences, context in self.case.groups:
            shape = (sequences, self.case.kv_heads, context, self.case.head_dim)
            pair = (memory.tensor(shape, self.dtype), memory.tensor(shape, self.dtype))
            for tensor in pair:
                peer_case.fill_normal(tensor)
            pairs.append(pair)
        return pairs

    def attend(self, layer):
        for query, (key, value) in zip(self._queries, layer):
            self._attend(query, key, value, **self._options)

    def relative_error(self) -> float:
        """Of this call on 3 sequences of 100 tokens, against the sums written out in double precision."""
        import torch

        case = self.case
        group = case.heads // case.kv_heads
        shape = (3, case.kv_heads, 100, case.head_dim)
        query = torch.randn(self._query_shape(3)).to(self.dtype)
        key, value = torch.randn(shape).to(self.dtype), torch.randn(shape).to(self.dtype)
        got = self._attend(query, key, value, **self._options).double().reshape(3, case.kv_heads, group, -1)
        scores = query.double().reshape(got.shape) @ key.double().transpose(2, 3) / case.head_dim**0.5
        expected = scores.softmax(3) @ value.double()
        return ((got - expected).norm() / expected.norm()).item()


def forms(case: peer_case.Case):
    import torch

    if case.kv_dtype != "f16":
        raise peer_case.Unsupported("scaled_dot_product_attention has no quantised K and V")
    layouts = (False, True) if case.heads != case.kv_heads else (False,)
    return [Form(case, dtype, rows) for dtype in (torch.bfloat16, torch.float16) for rows in layouts]


def main() -> int:
    case = peer_case.parse_case(__doc__)
    peer_case.set_openmp(case)
    import torch

    torch.set_num_threads(case.threads)
    torch.set_grad_enabled(False)
    return peer_case.main(case, "torch", torch.__version__, forms)


if __name__ == "__main__":
    sys.exit(main())
