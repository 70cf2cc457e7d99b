"""fastdecode-bench against the S-worker's real API over a core without a model.

    bench_test.py ECHO_SERVER FASTDECODE_BENCH
"""

import json
import signal
import subprocess
import sys
import time
import unittest

from echo_server import REPOSITORY, EchoServer

PROGRAM, BENCH = sys.argv[1:3]
TRACE = str(REPOSITORY / "bench" / "traces" / "azure_conv_2023.csv")


class Bench(unittest.TestCase):
    def start_server(self, **options):
        server = EchoServer(PROGRAM, **options)
        self.addCleanup(server.__exit__)
        self.report = server.folder / "report.json"
        return server

    def start(self, server, *arguments):
        return subprocess.Popen([BENCH, "--connect", server.address, "--secret_file", server.secret_file, "--json",
                                 self.report, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_bench(self, server, *arguments):
        process = self.start(server, *arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def test_fixed_lengths(self):
        server = self.start_server()
        status, out, err = self.run_bench(server, "--batch=8", "--prompt_tokens=10", "--output_tokens=20",
                                          "--requests=30")
        self.assertEqual((0, ""), (status, err))
        self.assertIn("tokens/s", out)
        report = json.loads(self.report.read_text())
        self.assertEqual((30, 0, 300, 600), tuple(report[name] for name in ("requests", "failed", "prompt_tokens",
                                                                            "output_tokens")))
        self.assertAlmostEqual(600 / report["wall_s"], report["tokens_per_s"])
        self.assertGreater(report["itl_ms"]["mean"], 0)

    def test_decoding_alone(self):
        server = self.start_server()
        status, _, err = self.run_bench(server, "--batch=8", "--prompt_tokens=10", "--output_tokens=40",
                                        "--decode_only")
        self.assertEqual((0, ""), (status, err))
        report = json.loads(self.report.read_text())
        self.assertEqual((8, 0), (report["requests"], report["failed"]))
        self.assertLessEqual(report["output_tokens"], 8 * (40 - 1))  # from everybody's first token on
        self.assertAlmostEqual(report["output_tokens"] / report["wall_s"], report["tokens_per_s"])

    def test_without_ramp_and_end(self):
        server = self.start_server()
        status, out, err = self.run_bench(server, "--batch=8", "--prompt_tokens=10", "--output_tokens=40",
                                          "--requests=32", "--measure=0.25:0.75")
        self.assertEqual((0, ""), (status, err))
        report = json.loads(self.report.read_text())
        self.assertEqual(0, report["failed"])
        self.assertGreaterEqual(report["requests"], 24)  # that had ended; the rest was cancelled
        self.assertLess(report["requests"], 32)
        self.assertGreaterEqual(report["output_tokens"], 12 * 40)
        self.assertLess(report["output_tokens"], 24 * 40)
        self.assertAlmostEqual(report["output_tokens"] / report["wall_s"], report["tokens_per_s"])

    def test_trace(self):
        server = self.start_server(max_context=64)
        status, _, err = self.run_bench(server, "--trace", TRACE, "--requests", "50", "--rate", "1000")
        self.assertEqual((0, ""), (status, err))
        report = json.loads(self.report.read_text())
        self.assertEqual((50, 0), (report["requests"], report["failed"]))
        self.assertLessEqual(report["prompt_tokens"], 50 * 32)

    def test_usage(self):
        server = self.start_server()
        lengths = ("--prompt_tokens=10", "--output_tokens=20")
        for arguments, text in (
            ((), "--prompt_tokens"),
            ((*lengths, "--trace", TRACE), "has its own lengths"),
            (("--prompt_tokens=2000", "--output_tokens=2000"), "more than the context"),
            (("--trace", "/nowhere"), "cannot be opened"),
            ((*lengths, "--load_control=on"), "needs --config"),
            ((*lengths, "--measure=0.5"), "expected FROM:TO"),
            ((*lengths, "--measure=0.5:0.5"), "expected FROM:TO"),
            ((*lengths, "--measure=0:1x"), "expected FROM:TO"),
            ((*lengths, "--measure=0:0.5", "--decode_only"), "exclude each other"),
            ((*lengths, "--nonsense"), "nonsense"),
            ((*lengths, "--secret_file=/nowhere"), "does not exist"),
            ((*lengths, f"--secret_file={server.new_secret('other')}"), "another secret"),
        ):
            status, _, err = self.run_bench(server, *arguments)
            self.assertEqual(2, status, err)
            self.assertIn(text, err)

    def test_a_server_that_dies(self):
        server = self.start_server(pass_us=10000)
        process = self.start(server, "--batch=8", "--prompt_tokens=10", "--output_tokens=2000")
        time.sleep(1.5)
        server.process.kill()
        out, err = process.communicate(timeout=20)
        self.assertEqual(3, process.returncode, err)
        self.assertIn("is gone", err)
        self.assertIn("16 requests, 16 failed", out)
        self.assertEqual({"unanswered": 8, "not_sent": 8}, json.loads(self.report.read_text())["failures"])

    def test_interrupt(self):
        server = self.start_server(pass_us=10000)
        process = self.start(server, "--batch=8", "--prompt_tokens=10", "--output_tokens=2000")
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        self.assertEqual(130, process.returncode, err)
        self.assertEqual(8, json.loads(self.report.read_text())["failures"]["cancelled"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
