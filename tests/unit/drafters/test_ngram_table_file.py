"""The table's file and its look-up: longest context first, and nothing but a sound file is read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from outrider.drafters.ngram_table_file import (
    START,
    Guess,
    NgramTable,
    TableHeader,
    extend_hash,
    extend_hashes,
)
from outrider.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel

HEADER = TableHeader(
    max_order=3, vocab_size=100, tokenizer="f00d", target="tiny", num_tokens=9, num_documents=1
)
ENTRIES = {
    (5,): (6, 0.2),
    (4, 5): (7, 0.4),
    (3, 4, 5): (8, 0.6),
    (8,): (5, 0.8),
}


def key_of(context: tuple[int, ...]) -> int:
    key = START
    for token in reversed(context):
        key = extend_hash(key, token)
    return key


def table_of(
    entries: dict[tuple[int, ...], tuple[int, float]], header: TableHeader = HEADER
) -> NgramTable:
    keys = np.array([key_of(context) for context in entries], dtype=np.uint64)
    tokens = np.array([token for token, _ in entries.values()], dtype=np.int64)
    chances = np.array([chance for _, chance in entries.values()])
    return NgramTable.build(header, keys, tokens, chances)


def test_the_longest_known_context_answers() -> None:
    """Catches a look-up that begins with the short contexts, or mixes them up."""
    table = table_of(ENTRIES)
    answers = {
        (5,): (6, 1),
        (9, 5): (6, 1),
        (4, 5): (7, 2),
        (9, 4, 5): (7, 2),
        (3, 4, 5): (8, 3),
        (1, 3, 4, 5): (8, 3),
    }
    for recent, (token, order) in answers.items():
        guess = table.guess(recent)
        assert guess is not None
        assert (guess.token, guess.order) == (token, order)
        assert guess.chance == pytest.approx(ENTRIES[recent[-order:]][1], abs=1 / 255)
    assert table.guess((5, 9)) is None
    assert table.guess(()) is None


def test_a_draft_follows_its_own_tokens() -> None:
    """Catches a draft whose context stays where it began, or that ignores its survival."""
    table = table_of(ENTRIES)
    draft = table.draft([3, 4, 5], 4)
    assert [(guess.token, guess.order) for guess in draft] == [(8, 3), (5, 1), (6, 1)]
    assert len(table.draft([3, 4, 5], 2)) == 2
    assert len(table.draft([3, 4, 5], 4, min_survival=0.4)) == 2
    assert table.draft([3, 4, 5], 4, min_survival=0.7) == []


@given(st.dictionaries(st.tuples(*[st.integers(0, 9)] * 3), st.integers(0, 99), max_size=60))
def test_every_entry_is_found(entries: dict[tuple[int, ...], int]) -> None:
    """Catches rows that are cut or shifted by one, the empty table included."""
    table = table_of({context: (token, 0.5) for context, token in entries.items()})
    assert len(table) == len(entries)
    for context, token in entries.items():
        assert table.guess(context) == Guess(token, 128 / 255, 3)
    for outside in range(10, 40):
        assert table.guess((outside, 1, 2)) is None


@given(st.lists(st.integers(0, (1 << 24) - 1), min_size=1, max_size=8))
def test_hashes_of_arrays_are_those_of_numbers(tokens: list[int]) -> None:
    """Catches an overflow that Python integers do not have."""
    single, many = START, np.full(1, START, dtype=np.uint64)
    for token in tokens:
        single = extend_hash(single, token)
        many = extend_hashes(many, np.array([token], dtype=np.uint64))
    assert int(many[0]) == single


def test_certainty_is_never_stored() -> None:
    """Catches a chance of 0 or 1, which no correction could ever move."""
    table = table_of({(1,): (2, 1.0), (2,): (3, 0.0)})
    assert [table.guess((token,)).chance * 255 for token in (1, 2)] == [254, 1]  # type: ignore[union-attr]


def test_a_file_is_read_back(tmp_path: Path) -> None:
    """Catches a header field or a tensor that is lost, and a file others cannot read."""
    path = tmp_path / "new" / "table.safetensors"
    table_of(ENTRIES).save(path)
    table = NgramTable.open(path)
    assert table.header == HEADER
    assert table.draft([3, 4, 5], 4) == table_of(ENTRIES).draft([3, 4, 5], 4)
    assert list(path.parent.iterdir()) == [path]
    with safe_open(path, framework="numpy") as file:
        assert len(file.get_tensor("entries")) == len(ENTRIES)


def test_an_empty_table_is_read_back(tmp_path: Path) -> None:
    """Catches a map of nothing."""
    path = tmp_path / "table.safetensors"
    table_of({}).save(path)
    assert NgramTable.open(path).draft([1, 2], 3) == []


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    """Catches a damaged file that drafts nonsense for ever instead of one sentence at the start."""
    path = tmp_path / "table.safetensors"
    with pytest.raises(ModelNotFound, match="outrider train --method ngram-table"):
        NgramTable.open(path)
    path.write_bytes(b"")
    with pytest.raises(CorruptCheckpoint, match="not a safetensors file"):
        NgramTable.open(path)
    save_file({"x": np.zeros(3)}, path)
    with pytest.raises(UnsupportedModel, match="no n-gram table"):
        NgramTable.open(path)


@pytest.mark.parametrize("place", [-1, -9, -33])
def test_a_flipped_bit_is_noticed(tmp_path: Path, place: int) -> None:
    """Catches a checksum that covers one of the two tensors only."""
    path = tmp_path / "table.safetensors"
    table_of(ENTRIES).save(path)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpoint, match="build it again"):
        NgramTable.open(path)


def test_a_cut_file_is_noticed(tmp_path: Path) -> None:
    """Catches a truncated copy, wherever it was cut."""
    path = tmp_path / "table.safetensors"
    table_of(ENTRIES).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpoint):
            NgramTable.open(path)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a future file that is read by the rules of today."""
    path = tmp_path / "table.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("outrider.drafters.ngram_table_file.VERSION", 2)
        table_of(ENTRIES, replace(HEADER, target="later")).save(path)
    with pytest.raises(UnsupportedModel, match="version 2, this release reads version 1"):
        NgramTable.open(path)
