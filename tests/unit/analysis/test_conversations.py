"""Conversation files of every form."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.analysis.conversations import load_conversations, to_sharegpt
from outrider.core.exchange import Conversation
from outrider.errors import ConfigError

SHAREGPT = [
    {
        "id": "x",
        "conversations": [
            {"from": "system", "value": "be kind"},
            {"from": "gpt", "value": "unasked"},
            {"from": "human", "value": "one"},
            {"from": "gpt", "value": "recorded"},
            {"from": "human", "value": "two"},
        ],
    },
    {"id": "silent", "conversations": [{"from": "gpt", "value": "alone"}]},
]
SYSTEM = {"role": "system", "content": "be kind"}


def write(folder: Path, *records: Any, name: str = "talk.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(each) for each in records), "utf-8")
    return path


def test_every_form_is_read(tmp_path: Path) -> None:
    """Catches a form whose turns are lost, or recorded answers sent as the user's."""
    messages = [SYSTEM, *({"role": r, "content": r} for r in ("user", "assistant", "user"))]
    lines = write(
        tmp_path,
        {"id": 7, "prompt": "p"},
        {"prompt": "p", "turns": ["one", "two"]},
        {"messages": [*messages, {"role": "assistant", "content": "recorded"}]},
    )
    shared = write(tmp_path, SHAREGPT, name="shared.json")
    prompt, turns, recorded, sharegpt = load_conversations([lines, shared])
    assert prompt == Conversation("7", ("p",))
    assert turns == Conversation("talk-2", ("one", "two"))
    assert recorded.turns == ("user",)
    assert list(recorded.opening) == messages[:3]
    assert sharegpt == Conversation("x", ("one", "two"), (SYSTEM,))


def test_number_and_turns_are_limited(tmp_path: Path) -> None:
    """Catches a limit that cuts off or repeats the wrong ones."""
    path = write(tmp_path, {"turns": ["a", "b"]}, {"turns": ["c"]})
    assert [each.turns for each in load_conversations([path], max_turns=1)] == [("a",), ("c",)]
    assert [each.turns[0] for each in load_conversations([path], num=3)] == ["a", "c", "a"]
    assert len(load_conversations([path], num=1)) == 1


def test_sharegpt_and_back(tmp_path: Path) -> None:
    """Catches turns lost on the way into the other form."""
    talks = [Conversation("a", ("one", "two"), (SYSTEM,)), Conversation("b", ("three",))]
    path = write(tmp_path, to_sharegpt(talks), name="shared.json")
    assert load_conversations([path]) == talks


@pytest.mark.parametrize(
    "record",
    [
        5,
        {},
        {"prompt": ""},
        {"prompt": 5},
        {"turns": [""]},
        {"turns": []},
        {"messages": [{"role": "assistant", "content": "alone"}]},
        {"turns": 5},
        {"messages": [{"role": "user"}]},
        {"messages": ["x"]},
        {"conversations": [{"from": "human"}]},
        {"prompt": "\ud800"},
    ],
)
def test_other_records_are_refused_with_their_place(tmp_path: Path, record: Any) -> None:
    """Catches a traceback, and a record that is silently left out."""
    path = write(tmp_path, {"prompt": "fine"}, record)
    with pytest.raises(ConfigError, match="line 2"):
        load_conversations([path])


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    """Catches a benchmark of nothing."""
    empty = write(tmp_path, name="empty.jsonl")
    with pytest.raises(ConfigError, match="is empty"):
        load_conversations([empty])
    silent = write(tmp_path, SHAREGPT[1:], name="silent.json")
    with pytest.raises(ConfigError, match="nobody says anything"):
        load_conversations([silent])
    (tmp_path / "bad.json").write_text("[{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_conversations([tmp_path / "bad.json"])
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_conversations([tmp_path / "bytes.json"])
