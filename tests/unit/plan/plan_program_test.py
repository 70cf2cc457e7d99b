"""fastdecode-plan recommend as a user meets it: what it refuses, and configs that are read."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
MODEL = str(pathlib.Path(__file__).resolve().parents[3] / "configs/models/llama-7b")


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_it(self, *args, command="recommend"):
        return subprocess.run([PROGRAM, command, *args], capture_output=True, text=True, check=False)

    def recommend(self, *args):
        result = self.run_it("--model", MODEL, "--json", *args)
        self.assertEqual(0, result.returncode, result.stderr)
        return json.loads(result.stdout)

    def refuses(self, *args, says, command="recommend"):
        result = self.run_it(*args, command=command)
        self.assertEqual(2, result.returncode, result.stderr)
        self.assertIn(says, result.stderr)
        self.assertEqual("", result.stdout)

    def test_numbers_out_of_range_are_named(self):
        for flag, bad in (("sockets", "0"), ("sockets", "257"), ("mini_batches", "0"), ("batch", "-1"),
                          ("block_tokens", "31"), ("block_tokens", "96"), ("prompt_tokens", "-1"),
                          ("output_tokens", "0"), ("output_tokens", "nan"), ("latency_s", "inf"), ("latency_s", "-1"),
                          ("tokens_per_s", "inf"), ("gpu_price", "-1"), ("threads", "0"), ("gpu_tflops", "0")):  # fmt: skip
            self.refuses("--model", MODEL, f"--{flag}", bad, says=f"--{flag}: found {bad}; expected")
        for bad in ("0", "nan", "-1"):
            self.refuses("--seconds", bad, says=f"--seconds: found {bad}; expected", command="read")

    def test_words(self):
        self.refuses("--model", MODEL, "--device", "tpu", says="--device is 'tpu': expected cpu or cuda:N")
        self.refuses("--model", MODEL, "--dtype", "fp8", says="--dtype is 'fp8'")
        self.refuses("--model", MODEL, "--gpu_memory", "0", says="--gpu_memory: found 0")
        self.refuses("--model", MODEL, "--socket_memory", "0GiB", says="--socket_memory: found 0")
        self.refuses("--model", MODEL, "--socket_memory", "some", says="--socket_memory: \"some\" is not a size")
        self.refuses(says="recommend needs --model")
        self.refuses("--model", MODEL, command="recomend", says="give one command: measure, recommend or read")
        where = str(self.folder / "nowhere" / "config.json")
        result = self.run_it("--model", MODEL, "--write_config", where)
        self.assertEqual(2, result.returncode)
        self.assertIn("can't be written: No such file", result.stderr)

    def test_a_folder_with_a_slash_has_a_name(self):
        result = self.run_it("--model", MODEL + "/")
        self.assertTrue(result.stdout.startswith("llama-7b: hidden 4096"), result.stdout[:80])

    def test_wishes_that_cannot_be_had(self):
        short = self.recommend("--sockets", "8", "--latency_s", "0.001")
        self.assertEqual(2, short["batch"])
        self.assertIn("even one row a mini-batch takes", short["reasons"][0])
        self.assertIn("more than the 0.0 asked for", short["shortfalls"][0])
        self.refuses("--model", MODEL, "--gpu_memory", "1GiB", says="GiB are missing")
        self.refuses("--model", MODEL, "--socket_memory", "1MiB", says="one sequence of 1024 tokens takes 0.50")

    def test_its_configs_are_read(self):
        for args in ((), ("--batch", "3"), ("--mini_batches", "5", "--sockets", "7"), ("--kv_dtype", "int8/int4"),
                     ("--device", "cpu"), ("--hosts", "a:1,b:2", "--sockets", "2"), ("--block_tokens", "32"),
                     ("--transport", "tcp"), ("--layers", "1"), ("--output_tokens", "1.5")):  # fmt: skip
            path = self.folder / "config.json"
            self.recommend(*args, "--write_config", str(path))  # 2 if LoadConfig refuses it
            self.assertGreaterEqual(json.loads(path.read_text())["load_control"]["workload_limit"], 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
