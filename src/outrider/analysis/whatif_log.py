"""Plain logs of prompts and outputs, as JSON Lines.

    {"prompt": "…", "output": "…"}
    {"prompt_token_ids": [11, 42], "output_token_ids": [7, 7]}

`id`, `domain`, `model`, `max_tokens` and `finish_reason` may stand beside them. Texts are tokenized
by the model named for that; ids must be of its vocabulary, or agree with each other where none is.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from outrider.analysis.closed_loop import Completed
from outrider.analysis.whatif_clock import LoggedRequest
from outrider.core.paths import expanded
from outrider.core.trace import FORMAT
from outrider.errors import ConfigError


class Encoder(Protocol):
    """Tokenizes texts; a prompt may get a chat template around it."""

    def prompt(self, text: str) -> list[int]:
        """Tokenize what the target was asked."""
        ...

    def output(self, text: str) -> list[int]:
        """Tokenize what it answered."""
        ...


PROMPT, OUTPUT = "prompt", "output"
_IDS: Final = {PROMPT: "prompt_token_ids", OUTPUT: "output_token_ids"}
_WANTED: Final = '{"prompt": "…", "output": "…"} or prompt_token_ids and output_token_ids'
LARGEST_ID: Final = 1 << 24


def log_text(outputs: Sequence[Completed], model: str) -> str:
    """Write what was served as a log."""
    return "".join(
        json.dumps(
            {
                "id": one.job.id,
                "domain": one.job.domain,
                "model": model,
                _IDS[PROMPT]: one.job.prompt,
                _IDS[OUTPUT]: one.tokens,
                "max_tokens": one.job.params.max_tokens,
                "finish_reason": one.ending[0],
            }
        )
        + "\n"
        for one in outputs
    )


def is_trace(path: str) -> bool:
    """Look at the first line.

    Raises:
        ConfigError: There is no such file.
    """
    file = expanded(path)
    if not file.is_file():
        raise ConfigError(f"there is no file {path!r}; check the path")
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        return f'"{FORMAT}"' in next(lines, "")


def read_log(
    path: str | Path, *, encoder: Encoder | None = None, vocab_size: int | None = None
) -> tuple[list[LoggedRequest], str | None]:
    """Read a log, and the model that its lines name.

    Raises:
        ConfigError: There is no such file, it is empty, or a line cannot be used; the message names
            the line.
    """
    file = expanded(path)
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"log {path} cannot be read ({error})") from error
    requests: list[LoggedRequest] = []
    models: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        fields = _fields(line, place)
        if isinstance(fields.get("model"), str):
            models.setdefault(fields["model"], number)
        requests.append(_request(fields, place, file.stem, encoder, vocab_size))
    if not requests:
        raise ConfigError(f"log {path} is empty; each line is an object like {_WANTED}")
    if len(models) > 1:
        named = ", ".join(f"{name!r} in line {number}" for name, number in models.items())
        raise ConfigError(f"log {path} mixes models: {named}; split it, one file per model")
    return requests, next(iter(models), None)


def _fields(line: str, place: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON ({error}); each line is like {_WANTED}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{place}: no object; each line is like {_WANTED}")
    return fields


def _request(
    fields: dict[str, Any],
    place: str,
    domain: str,
    encoder: Encoder | None,
    vocab_size: int | None,
) -> LoggedRequest:
    prompt, output = (_tokens(fields, what, place, encoder, vocab_size) for what in _IDS)
    most = fields.get("max_tokens", len(output))
    if not isinstance(most, int) or isinstance(most, bool) or most < len(output):
        raise ConfigError(
            f"{place}: max_tokens is {most!r}, but the output has {len(output)} tokens"
        )
    if fields.get("finish_reason", "stop") != "stop":
        most = len(output)
    return LoggedRequest(
        str(fields.get("id", place)), str(fields.get("domain", domain)), prompt, output, most
    )


def _tokens(
    fields: dict[str, Any], what: str, place: str, encoder: Encoder | None, vocab_size: int | None
) -> tuple[int, ...]:
    ids = fields.get(_IDS[what])
    if ids is None:
        text = fields.get(what)
        if not isinstance(text, str):
            raise ConfigError(f"{place}: no {what}; each line is like {_WANTED}")
        if encoder is None:
            raise ConfigError(f"{place}: the {what} is text; name the model that tokenizes it")
        ids = encoder.prompt(text) if what == PROMPT else encoder.output(text)
    if not isinstance(ids, list) or not ids:
        raise ConfigError(f"{place}: the {what} has no token; leave the line out")
    highest = LARGEST_ID if vocab_size is None else vocab_size
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < highest:
            raise ConfigError(
                f"{place}: {token!r} in the {what} is no token of a vocabulary of {highest}; is it "
                "the log of another model?"
            )
    return tuple(ids)
