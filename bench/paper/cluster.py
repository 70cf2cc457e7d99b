"""The paper's cluster as a profile of fastdecode-sim: one A10, and EPYC sockets behind InfiniBand.

Every constant is from a data sheet (named), calibrated on one published number (CALIBRATED, four
at most), or derived from these. None belongs to a single figure.
"""

import dataclasses
import json
import sys

# Data sheets.
GPU_FLOPS = 125e12  # NVIDIA A10: f16 tensor cores, dense
GPU_BYTES_PER_S = 600e9  # NVIDIA A10: GDDR6
PCIE_BYTES_PER_S = 31.5e9  # PCIe 4.0 x16, after 128b/130b
LINK_BYTES_PER_S = 12.5e9  # InfiniBand EDR/HDR100, 100 Gbit/s

F16 = 2

# Name: value, and the one published number that it was chosen for (bench/paper/calibrate).
CALIBRATED = {
    # One socket reads K and V at this rate. Llama-7b, batch 1024: 2279 tokens/s.
    "socket_bytes_per_s": 76.56e9,
    # Of one layer's exchange with one socket, whatever its rows: messages, waking up, launches. The S-worker
    # talks to its sockets one after another (the paper sees 8 slower than 4 where little is to be read).
    # Llama-7b, batch 128: 1052 tokens/s.
    "exchange_seconds": 0.2433e-3,
    # Share of their data sheets that PCIe and the link reach. 13b: 7.4 ms to send Q, K, V of two layers.
    "link_share": 0.6802,
}


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocab: int
    matrices: int  # of the feed-forward: 3 with a gate, 2 without

    @property
    def layer_parameters(self):
        return self.hidden * (4 * self.hidden + self.matrices * self.intermediate)


MODELS = {
    "llama-7b": Model("llama-7b", 32, 4096, 11008, 32, 32000, 3),
    "llama-13b": Model("llama-13b", 40, 5120, 13824, 40, 32000, 3),
    "opt-175b": Model("opt-175b", 96, 12288, 49152, 96, 50272, 2),
}

ROWS = [1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def roofline(parameters, rows):
    """Seconds of matrix products: the larger of reading the weights and multiplying."""
    return max(parameters * F16 / GPU_BYTES_PER_S, 2 * parameters * rows / GPU_FLOPS)


def curve(unit, seconds, points):
    return [{unit: x, "seconds": max(1e-9, seconds(x)), "spread": 0} for x in points]


def profile(model, sockets, calibrated=None, sworkers=1):
    """For so many sockets. `sworkers` > 1: as many GPUs cut each layer (heads and feed-forward) between them, and add up
    twice a layer over the link, as a ring; what is returned is one of them with its own R-workers."""
    c = {**CALIBRATED, **(calibrated or {})}
    heads = model.heads // sworkers
    head_dim = model.hidden // model.heads
    link = LINK_BYTES_PER_S * c["link_share"]
    pcie = PCIE_BYTES_PER_S * c["link_share"]
    row = heads * head_dim * F16  # of Q, K, V or O
    ring = 2 * (sworkers - 1) / sworkers * model.hidden * F16  # bytes a row of one sum

    def layer(rows):
        return roofline(model.layer_parameters / sworkers, rows) + 2 * rows * ring / link

    def outer(rows):
        return roofline(model.vocab * model.hidden / sworkers, rows)

    key = {
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "vocab_size": model.vocab,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": head_dim,
        "dtype": "f16",
        "device": "cuda",
        "kv_keys": "f16",
        "kv_values": "f16",
        "transport": "any",
    }
    return {
        "schema": 2,
        "models": [
            {
                "name": model.name,
                "key": key,
                "layer": curve("rows", layer, ROWS),
                "copy_in": curve("rows", lambda rows: rows * row / pcie, ROWS),
                "copy_out": curve("rows", lambda rows: 3 * rows * row / pcie, ROWS),
                "outer": curve("rows", outer, ROWS),
                "rworkers": [
                    {
                        "address": "a socket",
                        "seconds_per_token": 2 * row / c["socket_bytes_per_s"],
                        "wire": curve("bytes", lambda b: sockets * c["exchange_seconds"] + b / link, [1, 1e9]),
                    }
                ],
            }
        ],
    }


def write(path, *args, **kwargs):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(profile(*args, **kwargs), file, indent=1)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS or not sys.argv[2].isdigit():
        sys.exit(f"usage: cluster.py {'|'.join(MODELS)} SOCKETS >profile.json")
    json.dump(profile(MODELS[sys.argv[1]], int(sys.argv[2])), sys.stdout, indent=1)
