"""Conversation files: JSON Lines of prompts, turns or messages, and JSON in ShareGPT's form."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.analysis.prompts import prompt_files, require_unicode
from outrider.core.exchange import Conversation, Message
from outrider.errors import ConfigError

_USERS = frozenset({"human", "user"})
_FORMS = 'a "prompt", "turns", "messages" or "conversations"'


def load_conversations(
    paths: Sequence[str | Path], *, num: int | None = None, max_turns: int | None = None
) -> list[Conversation]:
    """Read files in order; a directory stands for all `*.jsonl` in it.

    A record is one of: `prompt` (one turn); `turns` (texts of the user); `messages` in OpenAI's
    form (one turn, the last of the user, behind the others as they are recorded); `conversations`
    in ShareGPT's form (`from` and `value`; what `human` says becomes the turns, and a record in
    which no human speaks is left out). `max_turns` keeps the first turns of each; with `num` they
    are repeated from the start until there are so many.

    Raises:
        ConfigError: A file is missing, empty or has a record of another form.
    """
    found: list[Conversation] = []
    for path in prompt_files(paths):
        read = [_conversation(record, place, path) for place, record in _records(path)]
        found += [each for each in read if each.turns]
    if not found:
        raise ConfigError("nobody says anything in these conversation files; check their form")
    if max_turns is not None:
        found = [replace(each, turns=each.turns[:max_turns]) for each in found]
    if num is not None:
        found = [found[number % len(found)] for number in range(num)]
    return found


def _records(path: Path) -> Iterable[tuple[str, Any]]:
    """Yield where a record is, and the record."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"conversation file {path} cannot be read ({error})") from error
    records = [*_parsed(text, path)]
    if not records:
        raise ConfigError(f"conversation file {path} is empty; it needs {_FORMS}")
    return records


def _parsed(text: str, path: Path) -> Iterable[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        for number, record in enumerate(_json(text, str(path)), start=1):
            yield f"{path}, record {number}", record
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _json(line, place)


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON ({error}); a record has {_FORMS}") from error


def _conversation(record: Any, place: str, path: Path) -> Conversation:
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: a record is an object with {_FORMS}, not {type(record)}")
    try:
        opening, turns = _content(record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{place}: the record must have {_FORMS} in its usual form") from error
    is_silent = not turns and "conversations" not in record
    if is_silent or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ConfigError(f"{place}: a turn of the user must be text that is not empty")
    for text in (*turns, *(message["content"] for message in opening)):
        require_unicode(text, place)
    name = record.get("id", f"{path.stem}-{place.rpartition(' ')[2]}")
    return Conversation(str(name), tuple(turns), tuple(opening))


def _content(record: dict[str, Any]) -> tuple[list[Message], list[Any]]:
    """Give what comes before the first turn, and the turns."""
    if "conversations" in record:
        said = [(each["from"], each["value"]) for each in record["conversations"]]
        opening = [{"role": "system", "content": text} for who, text in said if who == "system"]
        return opening, [text for who, text in said if who in _USERS and text.strip()]
    if "messages" in record:
        messages = [
            {"role": str(each["role"]), "content": str(each["content"])}
            for each in record["messages"]
        ]
        while messages and messages[-1]["role"] != "user":
            messages.pop()
        return messages[:-1], [each["content"] for each in messages[-1:]]
    if "turns" in record:
        return [], list(record["turns"])
    return [], [record["prompt"]]


def to_sharegpt(conversations: Iterable[Conversation]) -> list[dict[str, Any]]:
    """Give records in ShareGPT's form. The answers are empty: whoever plays them gets their own."""
    return [
        {
            "id": each.id,
            "conversations": [
                *({"from": "system", "value": one["content"]} for one in each.opening),
                *(
                    line
                    for turn in each.turns
                    for line in ({"from": "human", "value": turn}, {"from": "gpt", "value": ""})
                ),
            ],
        }
        for each in conversations
    ]
