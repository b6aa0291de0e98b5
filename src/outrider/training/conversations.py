"""Conversations to be answered, from the file formats that prompts come in.

JSON Lines with `prompt`, `turns` or `messages`, and ShareGPT's `conversations`, as lines or as one
JSON array.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

_ROLES = {
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
}
_FORMS = '{"prompt": "…"}, {"turns": ["…"]}, {"messages": […]} or {"conversations": […]}'


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a user says, turn by turn, and what the file has as answers.

    `answers[i]`, None if the file has none, is the reply to `turns[i]`; no reply to the last turn
    is kept, because that is the one to be generated.
    """

    id: str
    domain: str
    turns: tuple[str, ...]
    answers: tuple[str | None, ...] = ()
    system: str | None = None

    def messages(self) -> list[dict[str, str]]:
        """All turns as chat messages, the file's answers in between, up to the last user turn."""
        listed = [] if self.system is None else [{"role": "system", "content": self.system}]
        for number, turn in enumerate(self.turns):
            listed.append({"role": "user", "content": turn})
            answer = self.answers[number] if number < len(self.answers) else None
            if answer is not None and number < len(self.turns) - 1:
                listed.append({"role": "assistant", "content": answer})
        return listed

    def opening(self) -> list[dict[str, str]]:
        """The system message, if there is one, and the first turn."""
        return [m for m in self.messages() if m["role"] == "system"] + [
            {"role": "user", "content": self.turns[0]}
        ]


@dataclass(frozen=True, slots=True)
class ConversationFiles:
    """What was read, and how many entries held nothing to answer."""

    conversations: tuple[Conversation, ...]
    num_empty: int


def read_conversations(paths: Sequence[Path], *, limit: int | None = None) -> ConversationFiles:
    """Read files in order; a directory stands for its `.jsonl` and `.json` files.

    `limit` keeps the first conversations of each file. An entry without a user's turn is counted
    and left out. An id that occurs twice gets a number behind it.

    Raises:
        ConfigError: A file is missing or unreadable, or an entry has a form that is not known.
    """
    found: list[Conversation] = []
    num_empty = 0
    for path in _files(paths):
        kept = 0
        for number, entry in _entries(path):
            if limit is not None and kept == limit:
                break
            conversation = _conversation(entry, number, path)
            if conversation is None:
                num_empty += 1
                continue
            found.append(conversation)
            kept += 1
    if not found:
        raise ConfigError(
            f"there is nothing to answer in {', '.join(map(str, paths))} ({num_empty} entries "
            f"without a user's turn); an entry is like {_FORMS}"
        )
    return ConversationFiles(tuple(_with_unique_ids(found)), num_empty)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in (".jsonl", ".json"))
            if not inside:
                raise ConfigError(f"directory {path} holds no .jsonl or .json file")
            yield from inside
        elif path.is_file():
            yield path
        else:
            raise ConfigError(f"there is no prompt file {str(path)!r}; check the path")


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """Number every entry of a file: its line, or its place in the array."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt file {path} cannot be read ({error})") from error
    if text.lstrip().startswith("["):
        yield from enumerate(_parsed(text, str(path)), start=1)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _parsed(line, f"{path}, line {number}")


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON ({error}); an entry is like {_FORMS}") from error


def _conversation(entry: Any, number: int, path: Path) -> Conversation | None:
    place = f"{path}, entry {number}"
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{place}: not an object; an entry is like {_FORMS}")
    turns, answers, system = _read_entry(entry, place)
    if not turns:
        return None
    for text in (*turns, *(a for a in answers if a), system or ""):
        _require_unicode(text, place)
    return Conversation(
        id=str(entry.get("id", f"{path.stem}-{number}")),
        domain=str(entry.get("domain", path.stem)),
        turns=tuple(turns),
        answers=tuple(answers),
        system=system,
    )


def _read_entry(
    entry: Mapping[str, Any], place: str
) -> tuple[list[str], list[str | None], str | None]:
    """Turns, the answers between them, and the system message."""
    for key in ("conversations", "messages"):
        if key in entry:
            spoken = [_message(m, place) for m in _listed(entry[key], key, place)]
            system = next((text for role, text in spoken if role == "system"), None)
            return *_paired([one for one in spoken if one[0] != "system"]), system
    if "turns" not in entry and "prompt" not in entry:
        raise ConfigError(f"{place}: nothing to answer; an entry is like {_FORMS}")
    listed = _listed(entry["turns"], "turns", place) if "turns" in entry else [entry["prompt"]]
    turns = [text for text in (_text(t, place) for t in listed) if text.strip()]
    return turns, [None] * max(0, len(turns) - 1), None


def _listed(value: Any, key: str, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{place}: {key} is {value!r}, but it must be a list")
    return value


def _message(message: Any, place: str) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise ConfigError(f"{place}: {message!r} is no message; give role and content")
    role = message.get("role", message.get("from"))
    if role not in _ROLES:
        raise ConfigError(
            f"{place}: a message has the role {role!r}; known: {', '.join(sorted(_ROLES))}"
        )
    return _ROLES[role], _text(message.get("content", message.get("value")), place)


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{place}: {value!r} stands where a text is wanted")
    return value


def _paired(spoken: Sequence[tuple[str, str]]) -> tuple[list[str], list[str | None]]:
    """Turns and the answer to each; words in a row of one speaker are put together.

    An answer before the first question has nothing to stand on and is left out.
    """
    turns: list[str] = []
    answers: list[str | None] = []
    for role, text in spoken:
        if not text.strip():
            continue
        if role == "user":
            if len(answers) == len(turns):
                turns.append(text)
            else:
                turns[-1] += f"\n\n{text}"
        elif turns:
            if len(answers) < len(turns):
                answers.append(text)
            else:
                answers[-1] = f"{answers[-1]}\n\n{text}"
    return turns, answers[: len(turns) - 1]


def _require_unicode(text: str, place: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}: character {error.start} is no Unicode text; save the file as UTF-8"
        ) from error


def _with_unique_ids(conversations: Sequence[Conversation]) -> Iterator[Conversation]:
    seen: dict[str, int] = {}
    for one in conversations:
        number = seen[one.id] = seen.get(one.id, 0) + 1
        if number == 1:
            yield one
        else:
            yield Conversation(f"{one.id}#{number}", one.domain, one.turns, one.answers, one.system)
