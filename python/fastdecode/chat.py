"""A model's chat template: Jinja in a sandbox, set up as Hugging Face transformers does."""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fastdecode.errors import UsageError


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's part for training: here, just its content."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def _raise_exception(message):
    raise jinja2.TemplateError(message)


def _strftime_now(fmt):
    return datetime.datetime.now().strftime(fmt)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    def __init__(self, template, special_tokens):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = special_tokens
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateError as error:
            raise UsageError(f"the model's chat template is broken: {error}") from None

    def render(self, messages, add_generation_prompt=True):
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._special_tokens
            )
        except jinja2.TemplateError as error:
            raise UsageError(f"the model's chat template refuses this conversation: {error}") from None
