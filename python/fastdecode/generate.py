"""fastdecode generate: text in, text streamed out."""

import os
import sys
import time

from fastdecode.errors import EXIT_DONE, RequestError, ServerLost, UsageError
from fastdecode.text import IncrementalDecoder, TextModel

REQUEST = 1
CANCEL_WAIT_S = 5.0


def read_prompt(args):
    if args.prompt is not None:
        return args.prompt
    if sys.stdin.isatty():
        print("Prompt (end with Ctrl-D):", file=sys.stderr)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise UsageError("the prompt on standard input is not UTF-8") from None


def encode_prompt(text_model, args, prompt):
    if not args.chat:
        return text_model.encode(prompt)
    messages = [{"role": "system", "content": args.system}] if args.system else []
    return text_model.encode_chat(messages + [{"role": "user", "content": prompt}])


def run(client, args, sampling, interrupt):
    """Returns the exit status."""
    text_model = TextModel(args.tokenizer or client.info["model_path"])
    prompt_ids = encode_prompt(text_model, args, read_prompt(args))
    decoder = IncrementalDecoder(text_model, prompt_ids)
    client.submit(REQUEST, prompt_ids, **sampling)
    try:
        finished = _stream(client, decoder, interrupt)
        _write(decoder.finish() + "\n")
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _cancel(client)
        return EXIT_DONE
    if interrupt.signum:
        return interrupt.exit_status
    if finished["finish_reason"] == "error":
        raise RequestError(finished["error"]["code"], finished["error"]["message"])
    return EXIT_DONE


def _write(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def _stream(client, decoder, interrupt):
    """Prints what comes until the request has finished, cancelling it on the first signal."""
    give_up = None
    while True:
        for message in client.poll(0.1):
            if message["type"] == "tokens":
                _write(decoder.add(message["tokens"]))
            elif message["type"] == "finished":
                return message
        if interrupt.signum and give_up is None:
            client.cancel(REQUEST)
            give_up = time.monotonic() + CANCEL_WAIT_S
        if give_up is not None and time.monotonic() > give_up:
            raise ServerLost("the server did not confirm the cancellation")


def _cancel(client):
    client.cancel(REQUEST)
    deadline = time.monotonic() + CANCEL_WAIT_S
    while time.monotonic() < deadline:
        if any(message["type"] == "finished" for message in client.poll(0.1)):
            return
