"""A cluster of the real programs, brought up by the launch script, and a client that runs many requests."""

import json
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "tests" / "integration" / "launch"), str(REPOSITORY / "python")]

import cluster_case  # noqa: E402
from cluster_case import PATIENCE_S, ClusterCase, eventually, main  # noqa: E402
from fastdecode import keys  # noqa: E402
from fastdecode.client import Client  # noqa: E402

__all__ = ["PATIENCE_S", "REPOSITORY", "Client", "E2eCase", "Run", "cluster_case", "eventually", "keys", "main", "oracle"]

NEAR_TIE = 0.02  # models/README.md: rule 1
ACCEPTED_CASES = 3  # rule 2


def oracle(model):
    return json.loads((REPOSITORY / "models" / model / "expected_many.json").read_text())["cases"]


class Run:
    """Requests on one connection; what came back, by request id."""

    def __init__(self, client):
        self.client = client
        self.streamed = {}
        self.finished = {}
        self.submitted = 0

    def submit(self, prompt, **options):
        self.submitted += 1
        self.streamed[self.submitted] = []
        self.client.submit(self.submitted, prompt, **options)
        return self.submitted

    def poll(self, timeout=0.1):
        for message in self.client.poll(timeout):
            if message["type"] == "tokens":
                for request, token in zip(message["ids"], message["tokens"]):
                    self.streamed[request].append(token)
            elif message["type"] == "finished":
                assert message["id"] not in self.finished, f"request {message['id']} finished twice"
                assert message["token_ids"] == self.streamed[message["id"]], "the stream and its end differ"
                self.finished[message["id"]] = message

    def wait(self, done=None, seconds=PATIENCE_S):
        done = done or (lambda: len(self.finished) == self.submitted)
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"{self.submitted - len(self.finished)} requests did not end"
            self.poll()

    def ids(self, request):
        message = self.finished[request]
        assert message["finish_reason"] in ("stop", "length"), message
        return message["token_ids"]


class E2eCase(ClusterCase):
    def connect(self):
        """A client of the S-worker that is up."""
        address = self.workers()["sworker"]["address"]
        client = Client(address, keys.load(self.folder / "cluster.secret"), "test")
        self.addCleanup(client.close)
        return client

    def rworkers_free(self, client, count):
        """Whether `count` R-workers are joined and no block is in use, by their own account and the scheduler's."""
        stats = client.stats()
        joined = [r for r in stats["rworkers"] if r["joined"]]
        free = all(r["free_blocks"] == r["total_blocks"] > 0 and r["sequences"] == 0 for r in joined)
        books = stats["scheduler"]
        quiet = books["waiting"] == books["prefilling"] == books["ready"] == books["decoding"] == 0
        return len(joined) == count and free and quiet and not any(books["reserved_blocks"])

    def assert_agrees(self, cases, runs):
        """runs: [(case index, our ids)]. The rule of models/README.md; returns the accepted differences."""
        accepted = []
        for index, ours in runs:
            case = cases[index]
            if ours == case["greedy_ids"]:
                continue
            both = zip(ours, case["greedy_ids"])
            step = next((i for i, (a, b) in enumerate(both) if a != b), None)
            self.assertIsNotNone(step, f"case {index}: {len(ours)} ids for {len(case['greedy_ids'])}")
            margin = case["margins"][step]
            near = margin < NEAR_TIE and ours[step] == case["second_ids"][step]
            self.assertTrue(near, f"case {index}, step {step}: {ours[step]} for {case['greedy_ids'][step]}, margin {margin}")
            accepted.append(index)
        self.assertLessEqual(len(set(accepted)), ACCEPTED_CASES, accepted)
        return accepted
