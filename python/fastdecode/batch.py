"""fastdecode batch: a file of requests in, a file of results out, a line each."""

import difflib
import json
import os
import sys
import time

from tqdm import tqdm

from fastdecode.errors import EXIT_DONE, EXIT_SOME_FAILED, RequestError, ServerLost, UsageError
from fastdecode.text import TextModel

SAMPLING_FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop_ids", "ignore_eos", "logprobs")
FIELDS = ("id", "prompt", "prompt_ids", *SAMPLING_FIELDS)
MIN_IN_FLIGHT = 64
CANCEL_WAIT_S = 10.0


class Line:
    """One line of input: what it asks for, or what is wrong with it."""

    def __init__(self, number, text):
        self.number = number
        self.id = None
        self.prompt_ids = []
        self.sampling = {}
        self.error = None
        try:
            self._parse(text)
        except RequestError as error:
            self.error = {"code": error.code, "message": error.message}

    def _parse(self, text):
        try:
            request = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError("bad_json", f"line {self.number} is not JSON: {error}") from None
        if not isinstance(request, dict):
            raise RequestError("bad_json", f"line {self.number} is not a JSON object")
        if isinstance(request.get("id"), (str, int, float)):
            self.id = request["id"]
        for name in request:
            if name not in FIELDS:
                nearest = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0)[0]
                raise RequestError("bad_parameter", f"unknown field '{name[:60]}'; the nearest known one is '{nearest}'")
        if ("prompt" in request) == ("prompt_ids" in request):
            raise RequestError("bad_parameter", "exactly one of 'prompt' and 'prompt_ids' is needed")
        if not isinstance(request.get("prompt", ""), str):
            raise RequestError("bad_parameter", "'prompt' must be a string")
        self.prompt = request.get("prompt")
        self.prompt_ids = request.get("prompt_ids", [])
        self.sampling = {name: request[name] for name in SAMPLING_FIELDS if request.get(name) is not None}

    def result(self, finish_reason, prompt_tokens=0, token_ids=(), text="", error=None, logprobs=None):
        result = {"id": self.id} if self.id is not None else {"id": None, "line": self.number}
        result |= {"prompt_tokens": prompt_tokens, "token_ids": list(token_ids), "text": text}
        result["finish_reason"] = finish_reason
        if error is not None:
            result["error"] = error
        if logprobs is not None:
            result["logprobs"] = logprobs
        return result


class Batch:
    """Keeps a bounded number of requests in flight and writes each result as it comes."""

    def __init__(self, client, text_model, defaults, in_flight, interrupt):
        self._client = client
        self._text_model = text_model  # None: the model has no tokenizer here
        self._defaults = defaults
        self._in_flight = in_flight
        self._interrupt = interrupt
        self._open = {}  # request id: Line
        self.failed = 0
        self.lost = None

    def run(self, lines, output, progress):
        """One result a line, however it ends. Returns the exit status."""
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            line = Line(number, text)
            if self._stopped():
                self._write(output, progress, self._stopped_result(line))
                continue
            self._start(line, output, progress)
            while len(self._open) >= self._in_flight and not self._stopped():
                self._take(output, progress)
        while self._open and not self._stopped():
            self._take(output, progress)
        self._wind_up(output, progress)
        if self._interrupt.signum:
            return self._interrupt.exit_status
        if self.lost is not None:
            raise self.lost
        return EXIT_SOME_FAILED if self.failed else EXIT_DONE

    def _stopped(self):
        return self._interrupt.signum or self.lost is not None

    def _stopped_result(self, line):
        if line.error is not None:
            return line.result("error", error=line.error)
        if self.lost is not None:
            return line.result("error", error={"code": "server_lost", "message": str(self.lost)})
        return line.result("cancelled")

    def _start(self, line, output, progress):
        try:
            if line.error is None:
                self._submit(line)
        except RequestError as error:
            line.error = {"code": error.code, "message": error.message}
        except UsageError as error:
            line.error = {"code": "bad_parameter", "message": str(error)}
        except ServerLost as error:
            self.lost = error
        if line.error is not None or self.lost is not None:
            self._open.pop(line.number, None)
            self._write(output, progress, self._stopped_result(line))

    def _submit(self, line):
        if line.prompt is not None:
            if self._text_model is None:
                raise RequestError("no_tokenizer", "the model's folder has no tokenizer here: give prompt_ids")
            line.prompt_ids = self._text_model.encode(line.prompt)
        self._client.submit(line.number, line.prompt_ids, stream=False, **(self._defaults | line.sampling))
        self._open[line.number] = line

    def _take(self, output, progress):
        try:
            messages = self._client.poll(0.1)
        except ServerLost as error:
            self.lost = error
            return
        for message in messages:
            if message["type"] == "finished" and message["id"] in self._open:
                line = self._open.pop(message["id"])
                self._write(output, progress, self._finished_result(line, message))

    def _finished_result(self, line, message):
        ids = message["token_ids"]
        text = ""
        if self._text_model is not None and ids:
            text = self._text_model.decode_continuation(line.prompt_ids, ids)
        return line.result(
            message["finish_reason"], message["prompt_tokens"], ids, text, message.get("error"), message.get("logprobs")
        )

    def _write(self, output, progress, result):
        if result["finish_reason"] == "error":
            self.failed += 1
        output.write(json.dumps(result, ensure_ascii=False) + "\n")
        output.flush()
        progress.update(1)
        progress.add_tokens(len(result["token_ids"]))

    def _wind_up(self, output, progress):
        """After a signal or a loss: cancels what is open, and writes how each ended."""
        try:
            for request_id in self._open if self.lost is None else ():
                self._client.cancel(request_id)
        except ServerLost as error:
            self.lost = error
        deadline = time.monotonic() + CANCEL_WAIT_S
        while self._open and self.lost is None and time.monotonic() < deadline:
            self._take(output, progress)
        for line in self._open.values():
            self._write(output, progress, self._stopped_result(line))
        self._open.clear()


class Progress(tqdm):
    """Requests done, and tokens a second."""

    _tokens = 0

    def add_tokens(self, count):
        self._tokens += count
        elapsed = max(self.format_dict["elapsed"], 1e-3)
        self.set_postfix_str(f"{self._tokens / elapsed:.0f} tokens/s", refresh=False)


def count_lines(path):
    with open(path, "rb") as file:
        return sum(1 for line in file if line.strip())


def run(client, args, sampling, interrupt):
    """Returns the exit status."""
    try:
        text_model = TextModel(args.tokenizer or client.info["model_path"])
    except UsageError:
        if args.tokenizer:
            raise
        text_model = None
    in_flight = args.in_flight or max(MIN_IN_FLIGHT, 2 * client.info.get("max_batch", 0))
    batch = Batch(client, text_model, sampling, in_flight, interrupt)
    try:
        if os.path.exists(args.output) and os.path.samefile(args.input, args.output):
            raise UsageError("input and output are the same file")
        total = count_lines(args.input)
        # Bytes that are not UTF-8 make their own line's JSON bad, not the whole file.
        with open(args.input, encoding="utf-8", errors="surrogateescape") as lines, open(
            args.output, "w", encoding="utf-8", errors="replace"
        ) as output, Progress(total=total, unit="req", disable=None, file=sys.stderr) as progress:
            status = batch.run(lines, output, progress)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    if batch.failed:
        print(f"fastdecode: {batch.failed} requests failed; {args.output} says why", file=sys.stderr)
    return status
