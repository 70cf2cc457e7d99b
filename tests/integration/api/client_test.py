"""The command `fastdecode` against the S-worker's real API: results, exit statuses, and how it takes bad news.

    client_test.py ECHO_SERVER
"""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

from echo_server import COMMAND, REPOSITORY, EchoServer

PROGRAM = sys.argv[1]


class CommandTest(unittest.TestCase):
    def start_server(self, **options):
        server = EchoServer(PROGRAM, **options)
        self.addCleanup(server.__exit__)
        return server

    def command(self, server, *arguments, **options):
        where = ["--connect", server.address, "--secret_file", server.secret_file]
        return subprocess.Popen([COMMAND, *arguments, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, encoding="utf-8", **options)

    def run_command(self, server, *arguments, stdin=""):
        process = self.command(server, *arguments)
        out, err = process.communicate(stdin, timeout=60)
        return process.returncode, out, err

    def write(self, server, lines):
        path = server.folder / "in.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return str(path), str(server.folder / "out.jsonl")

    def results(self, path):
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


class Generate(CommandTest):
    def test_text_in_text_out(self):
        server = self.start_server()
        status, out, err = self.run_command(server, "generate", "--prompt", "Once upon a time", "--max_tokens", "16")
        self.assertEqual((0, ""), (status, err))
        self.assertIn("Once upon a time", out)  # The echo begins with the prompt.
        self.assertEqual((0, out, ""), self.run_command(server, "generate", "--max_tokens", "16",
                                                        stdin="Once upon a time"))

    def test_errors(self):
        server = self.start_server(max_context=64)
        cases = [
            (["--prompt", ""], 1, "empty_prompt"),
            (["--prompt", "a cat " * 100], 1, "too_long"),
            (["--prompt", "x", "--max_tokens", "0"], 1, "max_tokens is 0"),
            (["--prompt", "x", "--top_p", "2"], 1, "top_p is 2"),
            (["--prompt", "x", "--chat"], 2, "no chat template"),
            (["--prompt", "x", "--nonsense"], 2, "--nonsense"),
            (["--prompt", "x", "--tokenizer", str(REPOSITORY / "docs")], 2, "no tokenizer"),
        ]
        for arguments, expected, text in cases:
            status, _, err = self.run_command(server, "generate", *arguments)
            self.assertEqual(expected, status, (arguments, err))
            self.assertIn(text, err)
            self.assertNotIn("Traceback", err)

    def test_nobody_there_and_another_secret(self):
        server = self.start_server()
        other = server.new_secret("other")
        ask = [COMMAND, "generate", "--prompt", "x", "--connect", server.address, "--secret_file"]
        process = subprocess.run([*ask, other], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(2, process.returncode, process.stderr)
        self.assertIn("another secret", process.stderr)
        server.stop()
        process = subprocess.run([*ask, server.secret_file], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(3, process.returncode, process.stderr)
        self.assertIn("nobody listens", process.stderr)

    def test_interrupt(self):
        server = self.start_server(pass_us=20000)
        process = self.command(server, "generate", "--prompt", "Once upon a time", "--max_tokens", "2000")
        process.stdout.read(30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        self.assertEqual((130, ""), (process.returncode, err))
        self.assertEqual(1, len(server.await_log("connection from")))
        _, out, _ = self.run_command(server, "stats")
        self.assertEqual((1, 0), (json.loads(out)["cancelled"], json.loads(out)["running"]))

    def test_a_reader_that_leaves(self):
        server = self.start_server(pass_us=5000)
        process = self.command(server, "generate", "--prompt", "Once upon a time", "--max_tokens", "2000")
        process.stdout.read(5)
        process.stdout.close()
        self.assertEqual(0, process.wait(20))
        self.assertEqual("", process.stderr.read())
        process.stderr.close()
        process.stdin.close()


class Batch(CommandTest):
    def test_every_line_is_answered(self):
        server = self.start_server()
        lines = [{"id": str(i), "prompt_ids": [i % 2000 + 3, 5], "max_tokens": 1 + i % 7} for i in range(300)]
        lines += [{"id": "t", "prompt": "Once upon a time", "max_tokens": 8, "logprobs": True}]
        source, target = self.write(server, lines)
        status, _, err = self.run_command(server, "batch", source, target)
        self.assertEqual(0, status, err)
        results = {r["id"]: r for r in self.results(target)}
        self.assertEqual(301, len(results))
        for i in range(300):
            expected = [(i % 2000 + 3, 5)[j % 2] for j in range(1 + i % 7)]
            self.assertEqual((expected, 2, "length"), (results[str(i)]["token_ids"], results[str(i)]["prompt_tokens"],
                                                       results[str(i)]["finish_reason"]))
        self.assertEqual(8, len(results["t"]["logprobs"]))
        self.assertIn("Once upon a tim", results["t"]["text"])

    def test_bad_lines_fail_alone(self):
        server = self.start_server(max_context=32)
        source, target = self.write(server, [
            {"id": "empty", "prompt_ids": []}, {"id": "outside", "prompt_ids": [2048]},
            {"id": "long", "prompt_ids": [1] * 32}, {"id": "zero", "prompt_ids": [1], "max_tokens": 0},
            {"id": "typo", "prompt_ids": [1], "max_token": 1}, {"id": "hot", "prompt_ids": [1], "temperature": "x"},
            {"id": "good", "prompt_ids": [1, 2], "max_tokens": 3}])
        with open(source, "a", encoding="utf-8") as file:
            file.write('{"id": "cut", "prompt_ids": [1\n')
        status, _, err = self.run_command(server, "batch", source, target)
        self.assertEqual(1, status, err)
        self.assertIn("7 requests failed", err)
        codes = {r["id"] or r["line"]: r.get("error", {}).get("code") for r in self.results(target)}
        self.assertEqual({"empty": "empty_prompt", "outside": "bad_token", "long": "too_long", "zero": "bad_parameter",
                          "typo": "bad_parameter", "hot": "bad_message", "good": None, 8: "bad_json"}, codes)

    def test_files(self):
        server = self.start_server()
        source, target = self.write(server, [])
        self.assertEqual(0, self.run_command(server, "batch", source, target)[0])
        for arguments in ((source + "x", target), (source, target + "/x"), (source, source)):
            status, _, err = self.run_command(server, "batch", *arguments)
            self.assertEqual(2, status, err)
            self.assertNotIn("Traceback", err)

    def endless(self, server):
        return self.write(server, [{"id": str(i), "prompt_ids": [5], "max_tokens": 2000} for i in range(200)])

    def await_running(self, server):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if json.loads(self.run_command(server, "stats")[1])["running"] > 0:
                return
        self.fail("nothing runs")

    def test_interrupt_and_termination(self):
        for signum, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            server = self.start_server(pass_us=20000)
            source, target = self.endless(server)
            process = self.command(server, "batch", source, target)
            self.await_running(server)
            process.send_signal(signum)
            _, err = process.communicate(timeout=20)
            self.assertEqual(expected, process.returncode, err)
            results = self.results(target)
            self.assertEqual({str(i) for i in range(200)}, {r["id"] for r in results})
            self.assertEqual({"cancelled"}, {r["finish_reason"] for r in results})
            self.assertGreater(max(len(r["token_ids"]) for r in results), 0)

    def test_a_server_that_dies_or_freezes(self):
        for signum, text in ((signal.SIGKILL, "is gone"), (signal.SIGSTOP, "has been silent")):
            server = self.start_server(pass_us=20000)
            source, target = self.endless(server)
            process = self.command(server, "batch", source, target)
            self.await_running(server)
            server.process.send_signal(signum)
            start = time.monotonic()
            _, err = process.communicate(timeout=20)
            self.assertLess(time.monotonic() - start, 10)
            server.process.send_signal(signal.SIGCONT)
            self.assertEqual(3, process.returncode, err)
            self.assertIn(text, err)
            results = self.results(target)
            self.assertEqual({str(i) for i in range(200)}, {r["id"] for r in results})
            self.assertEqual({"server_lost"}, {r["error"]["code"] for r in results})

    def test_a_client_that_is_killed_leaves_nothing_running(self):
        server = self.start_server(pass_us=20000)
        source, target = self.endless(server)
        process = self.command(server, "batch", source, target, start_new_session=True)
        self.await_running(server)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.assertTrue(server.await_log("requests of it cancelled"))
        deadline = time.monotonic() + 10
        while json.loads(self.run_command(server, "stats")[1])["running"]:
            self.assertLess(time.monotonic(), deadline)

    def test_a_server_that_shuts_down_answers(self):
        server = self.start_server(pass_us=20000)
        source, target = self.endless(server)
        process = self.command(server, "batch", source, target)
        self.await_running(server)
        server.process.terminate()
        _, err = process.communicate(timeout=20)
        self.assertEqual(3, process.returncode, err)
        self.assertEqual(0, server.process.wait(10))
        codes = {r["error"]["code"] for r in self.results(target)}
        self.assertEqual(200, len(self.results(target)))
        self.assertIn("shutting_down", codes)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
