import io
import json
import types
import unittest

from package import REPOSITORY  # noqa: F401

from fastdecode.batch import Batch
from fastdecode.errors import ServerLost, UsageError


class FakeClient:
    """Answers each request at the next poll; can be lost after some submissions."""

    def __init__(self, lost_after=None, answers=True):
        self.open = {}
        self.submitted = []
        self.most_open = 0
        self.cancelled = set()
        self._lost_after = lost_after
        self._answers = answers

    def submit(self, request_id, prompt, **options):
        if self._lost_after is not None and len(self.submitted) >= self._lost_after:
            raise ServerLost("it is gone")
        if options.get("seed", 0) > 2**64:
            raise UsageError("can't be sent")
        self.submitted.append((prompt, options))
        self.open[request_id] = prompt
        self.most_open = max(self.most_open, len(self.open))

    def cancel(self, request_id):
        self.cancelled.add(request_id)

    def poll(self, _timeout):
        done = [i for i in self.open if self._answers or i in self.cancelled]
        messages = []
        for request_id in done[::-1]:
            reason = "cancelled" if request_id in self.cancelled else "length"
            messages.append({"type": "finished", "id": request_id, "finish_reason": reason, "prompt_tokens": 1,
                             "token_ids": self.open.pop(request_id), "seed": 0})
        return messages


class NoProgress:
    def update(self, _count):
        pass

    def add_tokens(self, _count):
        pass


def run(client, lines, interrupt=None, in_flight=4, defaults=None):
    interrupt = interrupt or types.SimpleNamespace(signum=0, exit_status=0)
    output = io.StringIO()
    batch = Batch(client, None, defaults or {}, in_flight, interrupt)
    try:
        status = batch.run(lines, output, NoProgress())
    except ServerLost:
        status = "lost"
    return status, [json.loads(line) for line in output.getvalue().splitlines()]


def requests(count):
    return [json.dumps({"id": str(i), "prompt_ids": [i]}) + "\n" for i in range(count)]


class OneResultALine(unittest.TestCase):
    def test_all_well(self):
        client = FakeClient()
        status, results = run(client, requests(50))
        self.assertEqual(0, status)
        self.assertEqual({str(i): [i] for i in range(50)}, {r["id"]: r["token_ids"] for r in results})
        self.assertEqual(50, len(results))
        self.assertEqual(4, client.most_open)

    def test_broken_lines_are_answered_too(self):
        lines = ["{\n", "[1]\n", "\n", '{"id": "a"}\n', '{"id": "b", "prompt_ids": [1], "max_token": 3}\n',
                 '{"id": "c", "prompt_ids": [1], "prompt": "x"}\n', '{"id": "d", "prompt": 7}\n', "\udcff\n",
                 '{"id": "e", "prompt_ids": [1], "seed": 99999999999999999999}\n', '{"id": "f", "prompt": "text"}\n',
                 "[" * 100000 + "\n", '{"id": "g", "prompt_ids": [5]}\n']
        status, results = run(FakeClient(), lines)
        self.assertEqual(1, status)
        self.assertEqual(11, len(results))
        by_key = {r["id"] or r["line"]: r for r in results}
        codes = {key: r.get("error", {}).get("code") for key, r in by_key.items()}
        self.assertEqual({1: "bad_json", 2: "bad_json", "a": "bad_parameter", "b": "bad_parameter",
                          "c": "bad_parameter", "d": "bad_parameter", 8: "bad_json", "e": "bad_parameter",
                          "f": "no_tokenizer", 11: "bad_json", "g": None}, codes)
        self.assertIn("nearest known one is 'max_tokens'", by_key["b"]["error"]["message"])
        self.assertEqual("length", by_key["g"]["finish_reason"])

    def test_a_lost_server(self):
        status, results = run(FakeClient(lost_after=3, answers=False), requests(10))
        self.assertEqual("lost", status)
        self.assertEqual([str(i) for i in range(10)], sorted(r["id"] for r in results))
        self.assertEqual({"server_lost"}, {r["error"]["code"] for r in results})

    def test_a_signal(self):
        interrupt = types.SimpleNamespace(signum=0, exit_status=130)
        client = FakeClient(answers=False)

        def lines():
            for i, line in enumerate(requests(10)):
                if i == 3:
                    interrupt.signum = 2
                yield line

        status, results = run(client, lines(), interrupt)
        self.assertEqual(130, status)
        self.assertEqual([str(i) for i in range(10)], sorted(r["id"] for r in results))
        self.assertEqual({"cancelled"}, {r["finish_reason"] for r in results})
        self.assertEqual({1, 2, 3}, client.cancelled)


class Options(unittest.TestCase):
    def test_a_line_overrides_the_flags(self):
        client = FakeClient()
        lines = ['{"id": "a", "prompt_ids": [1], "temperature": 0.5, "top_k": null}\n', '{"id": "b", "prompt_ids": [1]}\n']
        run(client, lines, defaults={"temperature": 1.0, "max_tokens": 9})
        self.assertEqual([{"temperature": 0.5, "max_tokens": 9, "stream": False},
                          {"temperature": 1.0, "max_tokens": 9, "stream": False}], [o for _, o in client.submitted])


if __name__ == "__main__":
    unittest.main()
