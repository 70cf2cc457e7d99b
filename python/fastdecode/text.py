"""Between text and token ids, with a model's own tokenizer.json."""

import functools
import json
import os

from tokenizers import Tokenizer

from fastdecode.chat import ChatTemplate
from fastdecode.errors import RequestError, UsageError

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 8  # of the prompt, before a continuation: enough to tell whether it begins with a space
MAX_HELD_TOKENS = 8  # a character has four bytes at most, so more than this is no character in the making


def _special_token(value):
    """tokenizer_config.json writes a token as text or as {"content": text, ...}."""
    return value.get("content") if isinstance(value, dict) else value


def _unicode(text):
    """`text`, unless it holds what is no character: a lone surrogate, or a byte that was not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("bad_parameter", f"the prompt is not valid Unicode at character {error.start}") from None
    return text


class TextModel:
    """A model's folder, as far as text goes."""

    def __init__(self, folder):
        self.folder = folder
        path = os.path.join(folder, "tokenizer.json")
        try:
            self.tokenizer = Tokenizer.from_file(path)
        except Exception as error:  # tokenizers raises plain Exception
            raise UsageError(f"no tokenizer in {folder}: {error}") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._special = {i for i, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}

    @functools.cached_property
    def chat_template(self):
        """The folder's chat template. Raises UsageError if there is none."""
        config = {}
        path = os.path.join(self.folder, "tokenizer_config.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
        template = config.get("chat_template")
        separate = os.path.join(self.folder, "chat_template.jinja")
        if os.path.exists(separate):
            with open(separate, encoding="utf-8") as file:
                template = file.read()
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if not template:
            raise UsageError(f"the model in {self.folder} has no chat template: use it without --chat")
        tokens = {name: _special_token(config[name]) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
                  if config.get(name)}
        return ChatTemplate(template, tokens)

    def encode(self, text):
        """Ids of a plain prompt, with what the tokenizer's post-processor adds (bos)."""
        if not text:
            raise RequestError("empty_prompt", "the prompt has no text")
        return self.tokenizer.encode(_unicode(text)).ids

    def encode_chat(self, messages):
        """Ids of [{"role": ..., "content": ...}], up to where the assistant's answer begins."""
        return self.tokenizer.encode(_unicode(self.chat_template.render(messages)), add_special_tokens=False).ids

    def decode(self, ids):
        """Text without special tokens. (The library's own way lets those through that are marked as normalized.)"""
        return self.tokenizer.decode([i for i in ids if i not in self._special], skip_special_tokens=False)

    def context_of(self, prompt_ids):
        """The prompt's last ids, from the beginning of a character on."""
        count = CONTEXT_TOKENS
        while count < len(prompt_ids) and REPLACEMENT in self.decode(prompt_ids[-count:]):
            count *= 2
        return list(prompt_ids[-count:])

    def decode_continuation(self, prompt_ids, ids):
        """Text that `ids` add to the prompt's, its leading space included."""
        context = self.context_of(prompt_ids)
        return self.decode(context + ids)[len(self.decode(context)) :]


class IncrementalDecoder:
    """Text of a growing list of ids, piece by piece.

    The pieces together are decode_continuation's text. A character whose bytes are spread
    over several tokens comes out when it is whole; a space that a tokenizer writes before a
    word comes out with that word.
    """

    def __init__(self, text_model, prompt_ids):
        self._decode = text_model.decode
        self._ids = text_model.context_of(prompt_ids)
        self._context = 0  # ids from here on are decoded, so that the first new one has a neighbour
        self._told = len(self._ids)  # ids before this one are out already

    def add(self, ids):
        """The text that can be shown now."""
        return "".join(self._add_one(token) for token in ids)

    def _add_one(self, token):
        # One at a time: bytes of several characters in a row decode together or not at all.
        self._ids.append(token)
        text, new = self._new_text()
        held = len(self._ids) - self._told
        if not new or (text.endswith(REPLACEMENT) and held <= MAX_HELD_TOKENS):
            return ""
        self._context, self._told = self._told, len(self._ids)
        return new

    def finish(self):
        """What was held back: the end of a text that broke off inside a character."""
        _, new = self._new_text()
        self._context = self._told = len(self._ids)
        return new

    def _new_text(self):
        before = self._decode(self._ids[self._context : self._told])
        text = self._decode(self._ids[self._context :])
        return text, text[len(before) :]
