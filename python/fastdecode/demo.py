"""make demo: a small cluster on this machine, a few prompts continued together, and where the time went."""

import argparse
import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

from fastdecode import keys
from fastdecode.client import Client
from fastdecode.cluster import running
from fastdecode.errors import EXIT_USAGE, FastdecodeError, RequestError, UsageError
from fastdecode.interrupt import Interrupt
from fastdecode.text import IncrementalDecoder, TextModel

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_WIDTH = 100


@dataclass(frozen=True)
class Demo:
    title: str
    config: str
    chat: bool
    prompts: tuple
    sampling: dict
    bench: tuple  # flags of fastdecode-bench
    needs: str = ""  # a folder, and the script that makes it
    made_by: str = ""


DEMOS = {
    "tinystories": Demo(
        title="TinyStories-656K, a very small writer of children's stories",
        config="configs/demo.json",
        chat=False,
        prompts=(
            # This tokenizer ends its words with their space, so a prompt ends with one too.
            "Once upon a time, there was a little girl named Lily. One day, she ",
            "Tom had a big red ball. He went to the ",
            "The little dog was sad because he ",
            "One day, it rained and rained. Ben wanted to ",
        ),
        sampling={"max_tokens": 70, "temperature": 0.4, "top_p": 0.9, "seed": 7},
        bench=("--batch=64", "--prompt_tokens=32", "--output_tokens=96"),
    ),
    "smollm2": Demo(
        title="SmolLM2-135M-Instruct, a small chat model",
        config="configs/smollm2.json",
        chat=True,
        prompts=(
            "What is the capital of France, and what is it famous for?",
            "Why is the sky blue? Answer in two sentences.",
            "Write a short story about a lighthouse keeper and a lost whale.",
        ),
        sampling={"max_tokens": 40, "temperature": 0},
        bench=("--batch=8", "--prompt_tokens=16", "--output_tokens=16", "--requests=8"),
        needs="models/smollm2-135m-instruct",
        made_by="scripts/fetch_smollm2",
    ),
}


@dataclass
class Story:
    """One prompt and what has come of it so far."""

    prompt: str
    decoder: IncrementalDecoder
    text: str = ""
    tokens: int = 0
    finished: bool = False
    error: dict = field(default_factory=dict)


class Page:
    """Writes text word by word, wrapped and indented; words come in pieces of any size."""

    def __init__(self, prompt):
        width = min(MAX_WIDTH, shutil.get_terminal_size().columns - 1)
        self._wrap = textwrap.TextWrapper(width=width, initial_indent="  ", subsequent_indent="  ")
        self._width = width
        lines = self._wrap.wrap(prompt)
        self._column = len(lines[-1])
        self._pending = prompt[len(prompt.rstrip()) :]  # The space between prompt and answer.
        print(f"{_bold(os.linesep.join(lines))}", end="", flush=True)

    def write(self, text, last=False):
        self._pending += text
        while True:
            cut = next((i for i, c in enumerate(self._pending) if c.isspace() and i), len(self._pending) if last else 0)
            if not cut:
                return
            self._word(self._pending[:cut])
            self._pending = self._pending[cut:]

    def _word(self, word):
        if word.startswith("\n"):
            self._break()
            word = word.lstrip()
        elif self._column + len(word) > self._width:
            self._break()
            word = word.lstrip()
        print(word, end="", flush=True)
        self._column += len(word)

    def _break(self):
        if self._column > 2:
            print("\n  ", end="")
            self._column = 2


def _bold(text):
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _heading(text):
    print(f"\n{_bold(text)}\n", flush=True)


def _submit(client, demo, text_model):
    stories = []
    for number, prompt in enumerate(demo.prompts):
        ids = (text_model.encode_chat([{"role": "user", "content": prompt}]) if demo.chat
               else text_model.encode(prompt))
        stories.append(Story(prompt, IncrementalDecoder(text_model, ids)))
        client.submit(number, ids, **demo.sampling)
    return stories


def _take(client, stories):
    for message in client.poll(0.1):
        if message["type"] == "tokens":
            for number, token in zip(message["ids"], message["tokens"]):
                stories[number].text += stories[number].decoder.add([token])
                stories[number].tokens += 1
        elif message["type"] == "finished":
            story = stories[message["id"]]
            story.text += story.decoder.finish()
            story.finished = True
            story.error = message.get("error", {})


def _show(client, stories, chat, interrupt):
    """All are decoded together; each is shown as it grows, one after the other."""
    for story in stories:
        page = Page(story.prompt)
        if chat:
            page.write("\n", last=True)
        shown = 0
        while not (story.finished and shown == len(story.text)):
            if interrupt.signum:
                return
            if shown == len(story.text):
                _take(client, stories)
            page.write(story.text[shown:], last=False)
            shown = len(story.text)
        page.write("", last=True)
        print("\n", flush=True)
        if story.error:
            raise RequestError(story.error["code"], story.error["message"])


def _bench(programs, address, secret_file, flags):
    bench = programs / "bin" / "fastdecode-bench"
    if not bench.exists():
        raise UsageError(f"{bench} is missing: build it first (make build)")
    command = [bench, "--connect", address, "--secret_file", secret_file, *flags]
    return subprocess.run(command, check=False).returncode


def run(demo, programs, interrupt):
    folder = REPOSITORY / demo.needs if demo.needs else None
    if folder is not None and not (folder / "model.safetensors").exists():
        _heading(f"Fetching the model ({demo.made_by})")
        if subprocess.run([REPOSITORY / demo.made_by], check=False).returncode:
            raise UsageError(f"{demo.made_by} failed")
    _heading("One S-worker and two R-workers on this machine")
    config = str(REPOSITORY / demo.config)
    with running(config, str(programs), interrupt, output=sys.stdout) as (address, secret_file):
        with Client(address, keys.load(secret_file), "demo") as client:
            _heading(demo.title)
            start = time.monotonic()
            stories = _submit(client, demo, TextModel(client.info["model_path"]))
            _show(client, stories, demo.chat, interrupt)
            tokens = sum(story.tokens for story in stories)
            print(f"{tokens} tokens for {len(stories)} prompts, decoded together in {time.monotonic() - start:.1f} s")
        if interrupt.signum:
            return interrupt.exit_status
        _heading("More sequences at a time: fastdecode-bench " + " ".join(demo.bench))
        status = _bench(programs, address, secret_file, demo.bench)
        _heading("Taking it down")
    return interrupt.exit_status if interrupt.signum else status


def main(argv=None):
    parser = argparse.ArgumentParser(prog="demo", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="tinystories", help=f"{' or '.join(DEMOS)} (default: tinystories)")
    parser.add_argument("--build", default=str(REPOSITORY / "build" / "release"), metavar="DIR",
                        help="the build folder whose programs to start (default: build/release)")
    args = parser.parse_args(argv)
    if args.model not in DEMOS:
        print(f"demo: there is no demo of '{args.model}': expected {' or '.join(DEMOS)}", file=sys.stderr)
        return EXIT_USAGE
    try:
        with Interrupt() as interrupt:
            return run(DEMOS[args.model], Path(args.build).resolve(), interrupt)
    except FastdecodeError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return error.exit_status
