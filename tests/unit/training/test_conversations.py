"""Every file format of prompts gives the same conversations, and bad files are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.training.conversations import Conversation, read_conversations


def write(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


def test_all_forms_of_one_conversation(tmp_path: Path) -> None:
    """Catches a role that is lost in one of the formats."""
    spoken = [("system", "be brief"), ("human", "hi"), ("gpt", "hello"), ("human", "more")]
    roles = {"human": "user", "gpt": "assistant", "system": "system"}
    lines = write(
        tmp_path / "a.jsonl",
        {"id": "s", "conversations": [{"from": role, "value": text} for role, text in spoken]},
        {"id": "m", "messages": [{"role": roles[r], "content": text} for r, text in spoken]},
        {"id": "t", "turns": ["hi", "more"], "domain": "chat"},
        {"id": "p", "prompt": "hi"},
    )
    got = read_conversations([lines]).conversations
    assert got == (
        Conversation("s", "a", ("hi", "more"), ("hello",), "be brief"),
        Conversation("m", "a", ("hi", "more"), ("hello",), "be brief"),
        Conversation("t", "chat", ("hi", "more"), (None,)),
        Conversation("p", "a", ("hi",)),
    )
    assert got[0].messages() == [{"role": roles[role], "content": text} for role, text in spoken]
    assert [m["content"] for m in got[0].opening()] == ["be brief", "hi"]


def test_an_array_and_a_directory_are_read_like_lines(tmp_path: Path) -> None:
    """Catches the JSON form of ShareGPT being read as one line."""
    entries = [{"conversations": [{"from": "human", "value": f"q{n}"}]} for n in range(3)]
    (tmp_path / "b.json").write_text(json.dumps(entries, indent=1), "utf-8")
    write(tmp_path / "a.jsonl", {"prompt": "first"})
    got = read_conversations([tmp_path]).conversations
    assert [one.turns[0] for one in got] == ["first", "q0", "q1", "q2"]
    assert len(read_conversations([tmp_path], limit=2).conversations) == 3


def test_untidy_conversations_are_put_in_order(tmp_path: Path) -> None:
    """Catches answers that move to another question."""
    messages = [
        {"role": "assistant", "content": "welcome"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "three"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "five"},
        {"role": "assistant", "content": "the answer to be made anew"},
    ]
    path = write(tmp_path / "a.jsonl", {"messages": messages})
    (one,) = read_conversations([path]).conversations
    assert one.turns == ("one\n\ntwo", "five")
    assert one.answers == ("three\n\nfour",)


def test_empty_entries_are_counted_and_ids_made_unique(tmp_path: Path) -> None:
    """Catches an empty prompt that is answered, and two documents of one name."""
    path = write(
        tmp_path / "a.jsonl",
        {"id": "x", "prompt": "one"},
        {"prompt": "  "},
        {"messages": [{"role": "assistant", "content": "hello"}]},
        {"id": "x", "prompt": "two"},
    )
    read = read_conversations([path])
    assert read.num_empty == 2
    assert [one.id for one in read.conversations] == ["x", "x#2"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"prompt": "a"}\n{"prompt"', "line 2: not JSON"),
        (b'{"text": "a"}', "entry 1: nothing to answer"),
        (b"[1]", "entry 1: not an object"),
        (b'{"prompt": 3}', "3 stands where a text is wanted"),
        (b'{"turns": "a"}', "turns is 'a', but it must be a list"),
        (b'{"messages": [{"role": "boss", "content": "a"}]}', "the role 'boss'; known: assistant"),
        (b'{"messages": ["a"]}', "'a' is no message"),
        (b'{"prompt": "\\ud800"}', "is no Unicode text"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "nothing to answer in"),
    ],
    ids=["json", "key", "array", "type", "turns", "role", "message", "surrogate", "bytes", "empty"],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    """Catches a traceback, or a message that does not say where."""
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_conversations([path])
    assert "bad.jsonl" in str(caught.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    """Catches a directory without prompts that is taken for no prompts."""
    with pytest.raises(ConfigError, match="no prompt file"):
        read_conversations([tmp_path / "none.jsonl"])
    with pytest.raises(ConfigError, match=r"holds no \.jsonl"):
        read_conversations([tmp_path])
