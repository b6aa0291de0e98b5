"""Prompt files: what is read, and what is refused with which place."""

from pathlib import Path

import pytest

from outrider.analysis.prompts import PromptRow, load_prompts
from outrider.errors import ConfigError


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_are_read_with_their_defaults(tmp_path: Path) -> None:
    """Catches ids counted from the wrong line, or a domain that ignores the file's name."""
    file = write(
        tmp_path / "code.jsonl",
        '{"prompt": "a", "id": "x", "domain": "d"}',
        "",
        '{"prompt": "b", "more": 1}',
    )
    assert load_prompts([file]) == [PromptRow("x", "d", "a"), PromptRow("code-3", "code", "b")]


def test_limit_counts_per_file_and_directories_are_sorted(tmp_path: Path) -> None:
    """Catches a limit over all files together, and an order that depends on the file system."""
    for name in ("b", "a"):
        write(tmp_path / f"{name}.jsonl", '{"prompt": "1"}', '{"prompt": "2"}')
    write(tmp_path / "notes.txt", "not a prompt")
    assert [row.id for row in load_prompts([tmp_path], limit=1)] == ["a-1", "b-1"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"prompt": "a"}', "{oops"], "line 2: not JSON"),
        (['{"text": "a"}'], 'line 1: no "prompt"'),
        (["[1, 2]"], 'line 1: no "prompt"'),
        (['{"prompt": 5}'], "line 1: the prompt is 5"),
        (['{"prompt": "  "}'], "line 1: the prompt is '  '"),
        (['{"prompt": "\\ud800"}'], "line 1: character 0 is no Unicode"),
        ([], "is empty"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path: Path, lines: list[str], says: str) -> None:
    """Catches a traceback, or a message that does not say where to look."""
    file = write(tmp_path / "bad.jsonl", *lines)
    with pytest.raises(ConfigError, match=says) as caught:
        load_prompts([file])
    assert "bad.jsonl" in str(caught.value)


def test_missing_files_and_empty_directories_are_refused(tmp_path: Path) -> None:
    """Catches a run over nothing that reports success."""
    with pytest.raises(ConfigError, match="no prompt file"):
        load_prompts([tmp_path / "none.jsonl"])
    with pytest.raises(ConfigError, match=r"no \.jsonl file"):
        load_prompts([tmp_path])
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prompts([tmp_path / "latin.jsonl"])


def test_only_newlines_end_a_row(tmp_path: Path) -> None:
    """Catches JSON Lines cut at U+2028, which `str.splitlines` takes for the end of a line."""
    path = tmp_path / "p.jsonl"
    path.write_text('\ufeff{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert [row.text for row in load_prompts([path])] == ["a\u2028b"]
