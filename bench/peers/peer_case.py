"""What the Python peers share: the command line, memory, the passes and the JSON line.

A peer is a class with `forms(case)`, the ways of calling it that may be fastest (each has a
`name`, `bytes_per_token` of K and V together, `layer(memory)` and `attend(layer)`).
"""

import argparse
import json
import math
import mmap
import os
import pathlib
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass

TRIAL_SECONDS = 0.1
TRIALS = 3
PASS_SECONDS = 0.5
UNSUPPORTED = 4  # exit status: the peer has no such format or shape


class Unsupported(Exception):
    """The peer has no such format or shape; the text says which."""


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    head_dim: int
    groups: tuple[tuple[int, int], ...]  # (sequences, cached tokens of each), longest first
    threads: int
    layers: int  # 0: as many as it takes to leave the caches
    passes: int
    kv_dtype: str
    in_turns: bool

    @property
    def contexts(self) -> list[int]:
        return [context for sequences, context in self.groups for _ in range(sequences)]

    @property
    def context_tokens(self) -> int:
        return sum(sequences * context for sequences, context in self.groups)

    @property
    def contexts_text(self) -> str:
        return ",".join(f"{sequences}x{context}" for sequences, context in self.groups)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def contexts(text: str) -> tuple[tuple[int, int], ...]:
    """'1x16384,63x128' or '16384,128,128' as (sequences, context) pairs, longest first."""
    counts: Counter[int] = Counter()
    for item in text.split(","):
        sequences, _, context = item.rpartition("x")
        counts[positive(context)] += positive(sequences or "1")
    return tuple((counts[context], context) for context in sorted(counts, reverse=True))


def parse_case(description: str) -> Case:
    parser = argparse.ArgumentParser(
        description=description,
        epilog="Prints one JSON object. Exit status: 0 done, 2 usage, 3 could not measure, 4 no such format.",
    )
    parser.add_argument("--heads", type=positive, default=32, help="query heads (32)")
    parser.add_argument("--kv_heads", type=positive, default=32, help="KV heads; divides heads (32)")
    parser.add_argument("--head_dim", type=positive, default=128, help="elements of a head (128)")
    parser.add_argument("--batch", type=positive, help="sequences (32)")
    parser.add_argument("--context", type=positive, help="cached tokens of each sequence (1024)")
    parser.add_argument("--contexts", type=contexts, help="sequences by length, as in 1x16384,63x128; without --batch")
    parser.add_argument("--threads", type=positive, default=1, help="threads (1)")
    parser.add_argument("--layers", type=int, default=0, help="to cycle over; 0: enough to leave the caches (0)")
    parser.add_argument("--passes", type=positive, default=5, help="that are measured (5)")
    parser.add_argument("--kv_dtype", choices=("f16", "int8", "int4"), default="f16", help="of K and V (f16)")
    parser.add_argument(
        "--in_turns", action="store_true", help="print 'ready' and wait for a line on standard input before each pass"
    )
    args = parser.parse_args()
    if args.heads % args.kv_heads:
        parser.error("--kv_heads must divide --heads")
    if args.contexts and (args.batch or args.context):
        parser.error("--contexts takes the place of --batch and --context")
    allowed = len(os.sched_getaffinity(0))
    if args.threads > allowed:
        parser.error(f"--threads {args.threads}, but this process may use {allowed} CPUs")
    groups = args.contexts or ((args.batch or 32, args.context or 1024),)
    return Case(
        args.heads,
        args.kv_heads,
        args.head_dim,
        groups,
        args.threads,
        max(args.layers, 0),
        args.passes,
        args.kv_dtype,
        args.in_turns,
    )


def set_openmp(case: Case) -> None:
    """Before the library is loaded: its threads, each pinned to a CPU."""
    cpus = sorted(os.sched_getaffinity(0))[: case.threads]
    os.sched_setaffinity(0, cpus)
    os.environ["OMP_NUM_THREADS"] = str(case.threads)
    os.environ["OMP_PROC_BIND"] = "true"
    os.environ["OMP_WAIT_POLICY"] = "active"


def bytes_beyond_caches() -> int:
    """1 GiB and three times the largest cache: what must be touched so that memory answers."""
    sizes = [0]
    for file in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        number, unit = file.read_text().strip()[:-1], file.read_text().strip()[-1]
        sizes.append(int(number) << {"K": 10, "M": 20, "G": 30}[unit])
    return max(1 << 30, 3 * max(sizes))


def layers_of(case: Case, layer_bytes: int) -> int:
    if case.layers:
        return case.layers
    return max(1, min(math.ceil(bytes_beyond_caches() / layer_bytes), (4 << 30) // layer_bytes))


class Memory:
    """Tensors for K and V, in huge pages where the system gives them."""

    def __init__(self, size: int):
        self._map = mmap.mmap(-1, size + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._at = 0

    def tensor(self, shape, dtype):
        import torch

        count = math.prod(shape)
        made = torch.frombuffer(self._map, dtype=dtype, count=count, offset=self._at).view(shape)
        self._at += (count * made.element_size() + 63) // 64 * 64
        return made


def fill_normal(tensor) -> None:
    """Normal numbers, the same ones again and again; exact in tensor's type."""
    import torch

    flat = tensor.view(-1)
    numbers = torch.randn(min(flat.numel(), 1 << 20), generator=torch.Generator().manual_seed(1)).to(tensor.dtype)
    if flat.element_size() == 1:  # copied as bytes: float8 has no fast copy of its own
        flat, numbers = flat.view(torch.uint8), numbers.view(torch.uint8)
    for at in range(0, flat.numel(), numbers.numel()):
        piece = flat[at : at + numbers.numel()]
        piece.copy_(numbers[: piece.numel()])


class Runner:
    """Passes of one form over layers that together exceed the caches."""

    def __init__(self, case: Case, form):
        self.form = form
        self.layer_bytes = case.context_tokens * form.bytes_per_token
        count = layers_of(case, self.layer_bytes)
        memory = Memory(count * (self.layer_bytes + form.slack_bytes))
        self.layers = [form.layer(memory) for _ in range(count)]
        self.in_pass = 1
        self._next = 0

    def run(self) -> float:
        """Seconds for the next `in_pass` layers."""
        count = len(self.layers)
        chosen = [self.layers[(self._next + i) % count] for i in range(self.in_pass)]
        self._next = (self._next + self.in_pass) % count
        attend = self.form.attend
        start = time.perf_counter()
        for layer in chosen:
            attend(layer)
        return time.perf_counter() - start

    def fit(self, seconds: float) -> None:
        """Lets a pass take about that long."""
        self.in_pass = 1
        self.run()
        self.in_pass = max(1, min(len(self.layers), int(seconds / self.run())))

    def try_out(self) -> float:
        """Layers a second, of a few short passes the fastest."""
        self.fit(TRIAL_SECONDS)
        return self.in_pass / min(self.run() for _ in range(TRIALS))


def wait_for_turn(case: Case) -> None:
    if case.in_turns:
        print("ready", flush=True)
        sys.stdin.readline()


def measure(case: Case, peer: str, version: str, forms) -> dict:
    """The fastest of the forms, as the object that a driver prints."""
    best = None
    for form in forms:
        error = form.relative_error()
        if not error < form.worst_error:
            raise RuntimeError(f"{peer}, {form.name}: relative error {error:.3g}")
        runner = Runner(case, form)
        speed = runner.try_out()
        if best is None or speed > best[0]:
            best = (speed, form, error)
        del runner  # one K/V memory at a time
    _, form, error = best
    runner = Runner(case, form)
    runner.fit(PASS_SECONDS)
    pass_bytes = runner.layer_bytes * runner.in_pass
    rates = []
    for _ in range(case.passes):
        wait_for_turn(case)
        rates.append(pass_bytes / runner.run() / 1e9)
    median = statistics.median(rates)
    return {
        "name": "decode_attention_peer",
        "peer": peer,
        "version": version,
        "case": {
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "contexts": case.contexts_text,
            "threads": case.threads,
            "kv_dtype": case.kv_dtype,
            "format": form.format,
            "layers": len(runner.layers),
            "pass_bytes": pass_bytes,
            "passes": case.passes,
        },
        "how": form.name,
        "unit": "GB/s of K and V",
        "median": round(median, 4),
        "min": round(min(rates), 4),
        "max": round(max(rates), 4),
        "by_pass": [round(rate, 4) for rate in rates],
        "tokens_per_s": round(median * 1e9 / form.bytes_per_token),
        "relative_error": float(f"{error:.3g}"),
    }


def main(case: Case, peer: str, version: str, forms) -> int:
    program = os.path.basename(sys.argv[0])
    try:
        print(json.dumps(measure(case, peer, version, forms(case))))
    except Unsupported as why:
        print(f"{program}: {why}", file=sys.stderr)
        return UNSUPPORTED
    except (RuntimeError, OSError, ValueError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 3
    return 0
