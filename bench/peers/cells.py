"""The cells of the comparison: what bench/peers/grid runs and bench/peers/table prints."""

from dataclasses import dataclass

# (query heads, KV heads, head_dim): Llama-2-7b, Llama-3-8b, Llama-3-70b, Llama-2-13b, Qwen2.5-0.5B,
# SmolLM2-135M, Falcon-7b, and the paper's OPT-175b.
SHAPES = ("32,32,128", "32,8,128", "64,8,128", "40,40,128", "14,2,64", "9,3,64", "71,1,64", "96,96,128")
# Sequences x cached tokens of each; the last is a mix.
LOADS = ("32x1024", "8x4096", "1x16384", "64x256", "1x16384,63x128")
THREADS = (1, 2)
KV = ("f16", "int8", "int4")
PEERS = ("ggml", "torch", "vllm")


@dataclass(frozen=True)
class Cell:
    shape: str
    load: str
    threads: int
    kv: str

    def formats(self) -> tuple[str, ...]:
        """Of K and V, in ours: f16 and, where query heads share a KV head, bf16, as peers take the faster of the two."""
        heads, kv_heads, _ = self.shape.split(",")
        return (self.kv, "bf16") if self.kv == "f16" and heads != kv_heads else (self.kv,)

    def options(self, kv: str = "") -> list[str]:
        """As our program and every driver read them; `kv`: in this format instead."""
        heads, kv_heads, head_dim = self.shape.split(",")
        return [
            f"--heads={heads}",
            f"--kv_heads={kv_heads}",
            f"--head_dim={head_dim}",
            f"--contexts={self.load}",
            f"--threads={self.threads}",
            f"--kv_dtype={kv or self.kv}",
        ]

    def __str__(self) -> str:
        return f"({self.shape}) {self.load}, {self.threads} thread{'s' * (self.threads > 1)}, {self.kv}"


def cell_of(record: dict) -> Cell:
    return Cell(**record["cell"])


def best_peer(record: dict) -> str | None:
    """The one that attends to most tokens a second."""
    rates = {
        who: result["tokens_per_s"]
        for who, result in record["results"].items()
        if who in PEERS and "tokens_per_s" in result
    }
    return max(rates, key=rates.get) if rates else None


def tokens_by_pass(result: dict) -> list[float]:
    """Cached tokens attended to a second."""
    return [rate / result["median"] * result["tokens_per_s"] for rate in result["by_pass"]]


def ratios(record: dict, who: str) -> list[float]:
    """Its tokens/s over the best peer's, round by round; empty: one of the two has no figure."""
    best = best_peer(record)
    result = record["results"].get(who, {})
    if best is None or "by_pass" not in result:
        return []
    return [mine / other for mine, other in zip(tokens_by_pass(result), tokens_by_pass(record["results"][best]))]
