"""`fastdecode` and `fastdecode-bench` with --config: they bring the real cluster up for the call, and down again."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "tests" / "integration" / "launch"))

import cluster_case  # noqa: E402
from cluster_case import PATIENCE_S, ClusterCase, main  # noqa: E402

COMMAND = str(REPOSITORY / "scripts" / "fastdecode")


class ConfigTest(ClusterCase):
    def setUp(self):
        super().setUp()
        self.write_config()

    def run_program(self, *command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                              timeout=3 * PATIENCE_S, stdin=subprocess.DEVNULL)
        self.pids |= set(self.pids_in(done.stdout + done.stderr))
        return done

    def fastdecode(self, *arguments):
        return self.run_program(COMMAND, *arguments, "--config", self.config, "--build", cluster_case.programs)

    def bench(self, *arguments):
        return self.run_program(f"{cluster_case.programs}/fastdecode-bench", "--config", self.config, *arguments)

    def assert_all_down(self):
        self.assertEqual(3, len(self.pids))
        self.assert_down(*self.pids)


class Command(ConfigTest):
    def test_generate(self):
        done = self.fastdecode("generate", "--prompt", "Once upon a time there was a little ", "--max_tokens", "20")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertGreater(len(done.stdout.split()), 5)
        self.assert_all_down()

    def test_batch_gives_the_references_ids(self):
        cases = json.loads((REPOSITORY / "models/tinystories-656k/expected_many.json").read_text())["cases"][5:15]
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        source.write_text("".join(json.dumps({"id": str(i), "prompt_ids": case["prompt_ids"], "max_tokens": 48}) + "\n"
                                  for i, case in enumerate(cases)))
        done = self.fastdecode("batch", source, target)
        self.assertEqual(0, done.returncode, done.stderr)
        results = {r["id"]: r for r in map(json.loads, target.read_text().splitlines())}
        for i, case in enumerate(cases):
            self.assertEqual(case["greedy_ids"], results[str(i)]["token_ids"], i)
        self.assert_all_down()

    def test_a_cluster_that_is_up_is_used_and_left(self):
        self.up()
        pids = {self.pid(name) for name in self.workers()}
        done = self.fastdecode("stats")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("is up at", done.stderr)
        self.assertEqual(2, len(json.loads(done.stdout)["rworkers"]))
        self.assertEqual(pids, {self.pid(name) for name in self.workers()})

    def test_a_config_that_is_wrong(self):
        self.write_config(pipeline__max_bach=3)
        for done in (self.fastdecode("generate", "--prompt", "x"),
                     self.bench("--batch=1", "--prompt_tokens=1", "--output_tokens=1"),
                     self.bench("--batch=1", "--prompt_tokens=1", "--output_tokens=1", "--load_control=on")):
            self.assertEqual(2, done.returncode, done.stderr)
            self.assertIn("max_batch", done.stderr)


class Bench(ConfigTest):
    def report(self, *arguments):
        path = self.folder / "report.json"
        done = self.bench("--json", path, *arguments)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("where the time went", done.stdout)
        self.assert_all_down()
        self.pids.clear()
        return json.loads(path.read_text())

    def test_the_report_is_filled_and_load_control_can_be_set(self):
        for word, enabled in (("on", True), ("off", False)):
            report = self.report("--load_control", word, "--batch=4", "--prompt_tokens=20", "--output_tokens=30",
                                 "--requests=8")
            self.assertEqual((8, 0, 160, 240), tuple(report[name] for name in (
                "requests", "failed", "prompt_tokens", "output_tokens")))
            self.assertEqual(enabled, report["config"]["load_control"]["enabled"])
            self.assertAlmostEqual(1, sum(report["share"].values()), delta=0.02)
            self.assertGreater(report["steps"], 29)
            self.assertGreater(report["step_ms"]["max"], 0)
            self.assertGreaterEqual(report["ttft_ms"]["max"], report["ttft_ms"]["p50"])
            self.assertGreater(report["workload"]["peak"], 0)
            # Q and O rows of 128 f16, K and V rows of 64, in each of two layers, for every token decoded.
            self.assertGreater(report["wire_bytes_per_token"], 2 * 2 * (128 + 128 + 64 + 64) * 29 / 30)
            if enabled:
                self.assertLessEqual(report["workload"]["peak"], report["workload"]["limit"])

    def test_interrupt_takes_the_cluster_down(self):
        process = subprocess.Popen(
            [f"{cluster_case.programs}/fastdecode-bench", "--config", str(self.config), "--batch=4",
             "--prompt_tokens=20", "--output_tokens=400", "--requests=10000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = ""
        while "Ctrl-C" not in said and "up:" not in said:
            line = process.stderr.readline()
            self.assertTrue(line, said)
            said += line
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        self.pids |= set(self.pids_in(said + err))
        self.assertEqual(130, process.returncode, err)
        self.assert_all_down()


if __name__ == "__main__":
    main()
