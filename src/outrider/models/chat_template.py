"""Chat templates: the Jinja dialect that checkpoints carry, in a sandbox.

Templates are code from strangers; the sandbox gives them neither attributes of Python objects nor
a way to change what they are handed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import RequestRejected, UnsupportedModel

Message = Mapping[str, Any]


class ChatTemplate:
    """One compiled template; `special_tokens` (`bos_token`, ...) are visible inside it."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`.

        Raises:
            UnsupportedModel: the template is not valid in this dialect.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedModel(
                f"the checkpoint's chat template does not compile, line {error.lineno}: "
                f"{error.message}; pass a plain prompt instead of messages"
            ) from error
        except Exception as error:
            raise UnsupportedModel(
                f"the checkpoint's chat template does not compile ({_named(error)}); "
                "pass a plain prompt instead of messages"
            ) from error

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """Write the conversation as the model was trained to read it.

        `extra` reaches the template by name (`tools`, `enable_thinking`, ...). Special tokens are
        part of the text, so encode the result with `add_special_tokens=False`.

        Raises:
            RequestRejected: the template refuses these messages or trips over them.
        """
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                **{"tools": None, "documents": None, **self._special_tokens, **extra},
            )
        except Exception as error:
            raise RequestRejected(
                f"the chat template cannot render these messages: {_named(error)}; "
                "each message needs a role and a content the template knows"
            ) from error


def _named(error: Exception) -> str:
    """The template's own words, and the kind of what it did not mean to say."""
    return str(error) if isinstance(error, jinja2.TemplateError) else repr(error)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; rendering ignores the mark."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    # Jinja's own tojson escapes HTML, which models have never seen.
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals.update(helpers)
    return environment


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
