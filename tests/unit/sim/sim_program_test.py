"""fastdecode-sim as a user meets it: what it writes, and what it says of broken input."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
TRACES = pathlib.Path(__file__).resolve().parents[3] / "bench/traces"


def profile(**changes):
    model = {
        "name": "toy",
        "key": {
            "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100, "num_heads": 4, "num_kv_heads": 4,
            "head_dim": 16, "dtype": "f16", "device": "cuda", "kv_keys": "f16", "kv_values": "f16",
            "transport": "any",
        },
        "layer": [{"rows": 1, "seconds": 1e-3}, {"rows": 100, "seconds": 2e-3}],
        "rworkers": [{"seconds_per_token": 1e-7}],
    }  # fmt: skip
    model.update(changes)
    return {"schema": 2, "models": [model]}


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.profile = self.write("profile.json", json.dumps(profile()))

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def run_it(self, *args, profile_path=None):
        command = [PROGRAM, "--profile", profile_path or self.profile, "--layers", "4", "--batch", "16", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def refuses(self, *args, says, **kwargs):
        result = self.run_it(*args, **kwargs)
        self.assertEqual(2, result.returncode, result.stderr)
        self.assertIn(says, result.stderr)
        self.assertEqual("", result.stdout)

    def test_json_and_timeline(self):
        out, timeline = str(self.folder / "out.json"), str(self.folder / "timeline.json")
        azure = str(TRACES / "azure_conv_2023.csv")
        args = ["--trace", azure, "--requests", "40", "--json", out, "--trace_out", timeline]
        result = self.run_it(*args)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("tokens/s", result.stdout)
        first = pathlib.Path(out).read_bytes(), pathlib.Path(timeline).read_bytes()
        report = json.loads(first[0])
        for name in ("tokens_per_s", "requests", "failed", "failures", "prompt_tokens", "output_tokens", "asked_for",
                     "ttft_ms", "itl_ms", "wall_s", "steps", "step_ms", "share", "workload", "wire_bytes_per_token"):  # fmt: skip
            self.assertIn(name, report)
        self.assertEqual((40, 0), (report["requests"], report["failed"]))
        self.assertAlmostEqual(1, sum(report["share"].values()), places=6)
        self.assertLessEqual(report["workload"]["peak"], report["workload"]["limit"])
        names = {event["name"] for event in json.loads(first[1])}
        self.assertLessEqual({"S-part", "R-part", "pass", "process_name", "thread_name"}, names)
        self.run_it(*args)
        self.assertEqual(first, (pathlib.Path(out).read_bytes(), pathlib.Path(timeline).read_bytes()))

    def test_mooncake(self):
        result = self.run_it("--trace", str(TRACES / "mooncake_conv.jsonl"), "--requests", "20", "--max_context", "16384")
        self.assertEqual(0, result.returncode, result.stderr)

    def test_help(self):
        result = self.run_it("--help")
        self.assertEqual(0, result.returncode)
        self.assertIn("--straggling", result.stdout)

    def test_broken_traces(self):
        lines = (TRACES / "azure_conv_2023.csv").read_text().splitlines()
        lines[7] = lines[7][:-5]
        self.refuses("--trace", self.write("t.csv", "\n".join(lines)), says="t.csv, line 8: expected TIMESTAMP,")
        lines = (TRACES / "mooncake_conv.jsonl").read_text().splitlines()
        lines[3] = lines[3][:40]
        self.refuses("--trace", self.write("t.jsonl", "\n".join(lines)), says="t.jsonl, line 4: expected {\"timestamp\"")
        self.refuses("--trace", self.write("empty", ""), says="has no entry")
        self.refuses("--trace", str(self.folder / "nowhere"), says="cannot be opened")

    def test_broken_profiles(self):
        lengths = ["--prompt_tokens", "10", "--output_tokens", "10"]
        text = json.dumps(profile())
        self.refuses(*lengths, profile_path=self.write("cut.json", text[: len(text) // 2]), says="cut.json")
        for seconds in ("-0.001", "0", "NaN", "1e9"):
            broken = text.replace("0.002", seconds)
            self.refuses(*lengths, profile_path=self.write("absurd.json", broken), says="absurd.json")
        twice = profile()
        twice["models"] += profile()["models"]
        twice["models"][1]["key"]["transport"] = "tcp"
        path = self.write("twice.json", json.dumps(twice))
        self.refuses(*lengths, "--model", "toy", profile_path=path, says="has several entries called toy")
        self.refuses(*lengths, "--model", "other", says="has no model 'other'; give --model, one of: toy")

    def test_usage(self):
        lengths = ["--prompt_tokens", "10", "--output_tokens", "10"]
        self.refuses(says="give --prompt_tokens and --output_tokens")
        self.refuses(*lengths, "--events", "pass", says="expected layer or step")
        self.refuses(*lengths, "--fail", "1@2", says="there is no R-worker 1")
        self.refuses(*lengths, "--fail", "soon", says="as in 3@12.5+2")
        self.refuses(*lengths, "--measure", "0.5", says="expected FROM:TO")
        self.refuses("--prompt_tokens", "4000", "--output_tokens", "1000", says="more than the context")
        self.refuses(*lengths, "--measure", "0:1x", says="expected FROM:TO")
        self.refuses(*lengths, "--jitter", "nan", says="--jitter takes a number")
        self.refuses(*lengths, "--nonsense", says="nonsense")

    def test_numbers_out_of_range_are_named(self):
        lengths = ["--prompt_tokens", "10", "--output_tokens", "10"]
        for flag in ("layers", "batch", "mini_batches", "rworkers", "max_context", "block_tokens", "interval_steps"):
            for value in (-1, 2**31 - 1):
                self.refuses(*lengths, f"--{flag}", str(value), says=f"--{flag} is {value}: expected")
        for flag in ("workload_limit", "kv_tokens"):
            for value in (-1, 2**63 - 1):
                self.refuses(*lengths, f"--{flag}", str(value), says=f"--{flag} is {value}: expected")
        self.refuses(*lengths, "--kv_tokens", "127", says="does not hold one block of 128 tokens")

    def test_flags_change_what_the_memory_of_a_config_holds(self):
        config = {
            "model": {"path": str(TRACES.parents[1] / "configs/models/llama-7b"), "weights": "random", "dtype": "f16"},
            "sworker": {"device": "cuda:0"},
            "rworkers": {"count": 1, "kv_memory": "8GiB"},
        }
        key = {"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000, "num_heads": 32, "num_kv_heads": 32,
               "head_dim": 128, "dtype": "f16", "device": "cuda", "kv_keys": "f16", "kv_values": "f16",
               "transport": "any"}  # fmt: skip
        flags = ["--profile", self.write("llama.json", json.dumps(profile(key=key))), "--prompt_tokens", "1",
                 "--output_tokens", "1", "--config", self.write("config.json", json.dumps(config))]  # fmt: skip
        out = self.folder / "out.json"

        def blocks(*more):
            subprocess.run([PROGRAM, *flags, *more, "--json", str(out)], check=True, stdout=subprocess.DEVNULL)
            return json.loads(out.read_text())["simulated"]["kv_blocks"]

        self.assertEqual(blocks(), 8 * 2**30 // (16384 * 32 * 128))  # 16 KiB a token and layer
        self.assertEqual(blocks("--block_tokens", "32"), 8 * 2**30 // (16384 * 32 * 32))
        self.assertEqual(blocks("--layers", "2"), 8 * 2**30 // (16384 * 2 * 128))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
