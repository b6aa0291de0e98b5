"""Prompt files: JSON Lines with a `prompt` and, if wanted, an `id` and a `domain`."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.paths import expanded
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One line of a prompt file. The domain defaults to the file's name without its ending."""

    id: str
    domain: str
    text: str


def load_prompts(paths: Sequence[str | Path], *, limit: int | None = None) -> list[PromptRow]:
    """Read prompt files in order; a directory stands for all `*.jsonl` in it.

    `limit` keeps the first lines of each file.

    Raises:
        ConfigError: A file is missing, empty, or has a line that is not a prompt.
    """
    rows: list[PromptRow] = []
    for path in prompt_files(paths):
        rows += _read(path)[:limit]
    return rows


def prompt_files(paths: Iterable[str | Path]) -> list[Path]:
    """Give the files; a directory stands for all `*.jsonl` in it.

    Raises:
        ConfigError: One is missing.
    """
    files: list[Path] = []
    for name in paths:
        path = expanded(name)
        if path.is_dir():
            inside = sorted(path.glob("*.jsonl"))
            if not inside:
                raise ConfigError(f"directory {path} holds no .jsonl file; name a prompt file")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise ConfigError(f"there is no prompt file {str(path)!r}; check the path")
    return files


def _read(path: Path) -> list[PromptRow]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt file {path} cannot be read ({error})") from error
    rows = [_row(line, number, path) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise ConfigError(f"prompt file {path} is empty; it needs one JSON object per line")
    return rows


def _row(line: str, number: int, path: Path) -> PromptRow:
    place = f"{path}, line {number}"
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f'{place}: not JSON ({error}); each line is an object like {{"prompt": "…"}}'
        ) from error
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise ConfigError(f'{place}: no "prompt"; each line is an object like {{"prompt": "…"}}')
    text = fields["prompt"]
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{place}: the prompt is {text!r}, but it must be text that is not empty")
    require_unicode(text, place)
    return PromptRow(
        id=str(fields.get("id", f"{path.stem}-{number}")),
        domain=str(fields.get("domain", path.stem)),
        text=text,
    )


def require_unicode(text: str, place: str) -> None:
    """Refuse half characters, which no tokenizer takes.

    Raises:
        ConfigError: There is one; `place` says where the text came from.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}: character {error.start} is no Unicode text; save the prompt as UTF-8"
        ) from error
