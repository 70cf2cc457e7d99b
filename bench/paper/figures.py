"""The paper's figures (FastDecode, arXiv 2403.11421), and what fastdecode-sim says of each.

What the paper leaves open is decided once for all figures, here:
- Batch sizes are sequences in flight; two mini-batches; eight sockets unless a figure says otherwise.
- Throughput and latency: prompts of one token, sequences of 1024, load control as the scheduler does it by
  itself (limit and interval "auto"), measured over the middle of a long run.
- What load control brings: with micro-batches every F = S/3 steps (calibrated) and the limit B(S+F)/2.
- Strong scaling: 131,072 cached tokens in all, i.e. sequences that have reached their full length:
  128 of 1024 tokens, 1024 of 128. What one socket has to hold is then the same 107 GB (13b) in both.
"""

import dataclasses
import functools
import json
import pathlib
import subprocess
import tempfile

import cluster

INTERVAL = 1 / 3  # F/S, calibrated: load-stabilised latency 66-70 % of the peak without it
SOCKETS = 8
BATCHES = (128, 256, 512, 1024)
SCALING_TOKENS = 131_072
PUBLISHED_THROUGHPUT = {"llama-7b": (1052, 1542, 2202, 2279), "llama-13b": (660, 1026, 1363, 1441)}


@dataclasses.dataclass(frozen=True)
class Simulator:
    program: str
    calibrated: tuple = ()  # pairs that replace cluster.CALIBRATED's

    @functools.cache
    def run(self, model, batch, sockets=SOCKETS, prompt=1, length=1024, generations=4, sworkers=1, flags=()):
        with tempfile.TemporaryDirectory() as folder:
            profile, out = f"{folder}/profile.json", f"{folder}/out.json"
            shape = cluster.MODELS[model]
            cluster.write(profile, shape, sockets, dict(self.calibrated), sworkers)
            command = [self.program, "--profile", profile, "--layers", shape.layers, "--batch", batch]
            command += ["--rworkers", sockets, "--max_context", length, "--prompt_tokens", prompt]
            command += ["--output_tokens", length - prompt, "--requests", generations * batch]
            # RDMA: no thread of a socket receives. The model has no noise, for the paper states none.
            command += ["--wire_on_rworker", 0, "--jitter", 0, "--json", out, *flags]
            subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
            return json.loads(pathlib.Path(out).read_text(encoding="utf-8"))

    def steady(self, model, batch, **kwargs):
        return self.run(model, batch, flags=("--measure", "0.3:0.7"), **kwargs)

    def stabilised(self, model, batch, length=1024, interval=INTERVAL):
        steps = max(1, round(interval * length))
        limit = round(batch * (length + steps) / 2 / SOCKETS)  # B(S+F)/2 over the sockets
        flags = ("--workload_limit", limit, "--interval_steps", steps, "--measure", "0.3:0.7")
        return self.run(model, batch, length=length, flags=flags)

    def together(self, model, batch, length=1024, **kwargs):
        """Without load control: three batches that start and end together, one after another."""
        return self.run(model, batch, length=length, generations=3, flags=("--load_control", "off"), **kwargs)

    def steps(self, model, batch, load_control):
        """When each pass of mini-batch 0 began (s), and how long it took (ms), from the timeline."""
        with tempfile.TemporaryDirectory() as folder:
            timeline = f"{folder}/timeline.json"
            limit = round(batch * 1024 * (1 + INTERVAL) / 2 / SOCKETS)
            flags = ("--workload_limit", limit, "--interval_steps", round(1024 * INTERVAL))
            flags = flags if load_control else ("--load_control", "off")
            self.run(model, batch, generations=3, flags=(*flags, "--events", "step", "--trace_out", timeline))
            events = json.loads(pathlib.Path(timeline).read_text(encoding="utf-8"))
        passes = [event for event in events if event["name"] == "pass" and event["tid"] == 1]
        return [event["ts"] / 1e6 for event in passes], [event["dur"] / 1e3 for event in passes]

    def at_full_length(self, model, sockets, length):
        """Tokens/s of sequences that are all about `length` long."""
        flags = ("--load_control", "off", "--measure", "0.3:0.7")
        batch = SCALING_TOKENS // length
        report = self.run(model, batch, sockets, prompt=length - 17, length=length, generations=6, flags=flags)
        return report["tokens_per_s"]

    def efficiency(self, model, sockets, length):
        return self.at_full_length(model, sockets, length) / self.at_full_length(model, 1, length) / sockets


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    unit: str
    low: float  # as published: a number, or a range
    high: float
    simulate: object  # of a Simulator
    calibrates: str = ""

    def error(self, value):
        """Relative; 0 inside a range."""
        if value < self.low:
            return value / self.low - 1
        return value / self.high - 1 if value > self.high else 0.0


def send_ms(sim, layers=2):
    shape = cluster.MODELS["llama-13b"]
    share = {**cluster.CALIBRATED, **dict(sim.calibrated)}["link_share"]
    return layers * 1024 * 3 * shape.hidden * cluster.F16 / (cluster.LINK_BYTES_PER_S * share) * 1e3


def d2h_ms(sim):
    return send_ms(sim) * cluster.LINK_BYTES_PER_S / cluster.PCIE_BYTES_PER_S


def gain_percent(sim, length):
    stabilised = sim.stabilised("llama-7b", 1024, length)["tokens_per_s"]
    return 100 * (stabilised / sim.together("llama-7b", 1024, length)["tokens_per_s"] - 1)


def stabilised_percent(sim):
    stabilised = sim.stabilised("llama-7b", 1024)["step_ms"]["max"]
    return 100 * stabilised / sim.together("llama-7b", 1024)["step_ms"]["max"]


def token_ms(sim, model, batch):
    return sim.steady(model, batch)["step_ms"]["mean"]


def two_sworkers(sim):
    one = sim.steady("opt-175b", 1024)["tokens_per_s"]
    return sim.steady("opt-175b", 1024, sworkers=2)["tokens_per_s"] / one


def all_figures():
    figures = []

    def add(name, unit, published, simulate, calibrates=""):
        low, high = published if isinstance(published, tuple) else (published, published)
        figures.append(Figure(name, unit, low, high, simulate, calibrates))

    for model, published in PUBLISHED_THROUGHPUT.items():
        for batch, value in zip(BATCHES, published):
            calibrates = {("llama-7b", 1024): "socket_bytes_per_s", ("llama-7b", 128): "exchange_seconds"}
            add(f"{model}, batch {batch}", "tokens/s", value,
                lambda sim, m=model, b=batch: sim.steady(m, b)["tokens_per_s"], calibrates.get((model, batch), ""))  # fmt: skip
    for model, value in (("llama-7b", 120.8), ("llama-13b", 191.6)):
        add(f"{model}, mean token latency, batch 128", "ms", value, lambda sim, m=model: token_ms(sim, m, 128))
    for model in PUBLISHED_THROUGHPUT:
        add(f"{model}, latency at batch 1024 over 128", "x", 3.5,
            lambda sim, m=model: token_ms(sim, m, 1024) / token_ms(sim, m, 128))  # fmt: skip
    add("load-stabilised latency over the peak without", "%", (66, 70), stabilised_percent, "F/S")
    add("throughput gained by it, length 1024", "%", (8, 11), lambda sim: gain_percent(sim, 1024))
    add("throughput gained by it, length 768", "%", 13, lambda sim: gain_percent(sim, 768))
    for model, value in (("llama-7b", 72.8), ("llama-13b", 84.1)):
        add(f"{model}, strong scaling to 8 sockets, 1024 tokens", "%", value,
            lambda sim, m=model: 100 * sim.efficiency(m, 8, 1024))  # fmt: skip
    for sockets, value in ((4, 75.9), (8, 37.6)):
        add(f"llama-13b, strong scaling to {sockets} sockets, 128 tokens", "%", value,
            lambda sim, p=sockets: 100 * sim.efficiency("llama-13b", p, 128))  # fmt: skip
    add("opt-175b, 2 S-workers with twice the sockets", "x", 1.84, two_sworkers)
    add("llama-13b, two layers: Q, K, V to the host", "ms", 3.0, d2h_ms)
    add("llama-13b, two layers: sending Q, K, V", "ms", 7.4, send_ms, "link_share")
    add("llama-13b, two layers of an iteration", "ms", 43.0, lambda sim: token_ms(sim, "llama-13b", 1024) / 20)
    add("llama-13b, R-workers busy", "%", (75, 100),
        lambda sim: 100 * sim.steady("llama-13b", 1024)["busy_share"]["r_workers"])  # fmt: skip
    add("llama-13b, S-worker busy", "%", (0, 50),
        lambda sim: 100 * sim.steady("llama-13b", 1024)["busy_share"]["s_worker"])  # fmt: skip
    return figures
