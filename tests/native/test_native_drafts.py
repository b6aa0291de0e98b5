"""Cheap drafts made in C++ against those made in Python, bit by bit."""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.ids import RequestId
from outrider.drafters.cheap import CheapDrafts, DraftCall, PlainDrafts
from outrider.drafters.ngram_table_file import NgramTable, TableHeader
from outrider.tensor.window import RowProposal
from tests import harness
from tests.native.machines import require_native
from tests.tables import table_of_texts
from tests.unchecked import unchecked

if TYPE_CHECKING:
    from outrider.drafters.native_drafts import NativeDrafts

VOCAB = 12
PIECES = st.lists(st.integers(0, 2), max_size=8) | st.lists(st.integers(0, VOCAB - 1), max_size=8)
LOOPS = st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(2, 20)).map(
    lambda each: each[0] * each[1]
)
CHANCES = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0])


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


def native_drafts(table: NgramTable | None) -> "NativeDrafts":
    from outrider.drafters.native_drafts import NativeDrafts

    return NativeDrafts(table)


@cache
def table(kind: str) -> NgramTable | None:
    """No table, one that knows the loops, one of unigram contexts, and one that knows nothing."""
    if kind == "none":
        return None
    if kind == "empty":
        return NgramTable(header(3), memoryview(bytes(8)).cast("I"), memoryview(b"").cast("Q"))
    texts = [[0, 1, 2, 0, 1, 3, 0, 1, 2, 4, 5], [7, 8, 9, 10, 11, 0, 0, 0, 1, 1]] * 3
    whole = table_of_texts(texts, vocab_size=VOCAB)
    if kind == "whole":
        return whole
    offsets, entries = whole.memory
    return NgramTable(header(1), offsets.cast("I"), entries.cast("Q"))


def header(max_order: int) -> TableHeader:
    return TableHeader(
        max_order=max_order,
        vocab_size=VOCAB,
        tokenizer="f00d",
        target="test",
        num_tokens=0,
        num_documents=0,
    )


@dataclass(frozen=True)
class Round:
    """What happens to one of three requests: it grows, is drafted for, merged and judged."""

    name: int
    grown: list[int]
    most: int
    least: float
    is_greedy: bool
    is_blind: bool
    said: list[tuple[int, float]] | None
    has_chances: bool
    accepted: int
    verified: int
    is_forgotten: bool


ROUNDS = st.lists(
    st.builds(
        Round,
        name=st.integers(0, 2),
        grown=PIECES | LOOPS,
        most=st.sampled_from([0, 1, 3, 7, 12]),
        least=st.sampled_from([0.0, 0.02, 0.1, 0.4]),
        is_greedy=st.booleans(),
        is_blind=st.booleans(),
        said=st.none() | st.lists(st.tuples(st.integers(0, VOCAB - 1), CHANCES), max_size=10),
        has_chances=st.booleans(),
        accepted=st.integers(0, 8),
        verified=st.integers(0, 8),
        is_forgotten=st.sampled_from([False] * 6 + [True]),
    ),
    max_size=14,
)


def both(
    first: CheapDrafts, second: CheapDrafts, ask: Callable[[CheapDrafts], object], at: object
) -> None:
    assert ask(first) == ask(second), at


@unchecked()
def play(kind: str, rounds: Sequence[Round], *, batched: bool) -> None:
    """Play the rounds with both sides, one request at a time or all three in every call."""
    plain, fast = PlainDrafts(table(kind)), native_drafts(table(kind))
    texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for one in rounds:
        texts[one.name] += one.grown
        names = list(texts) if batched else [one.name]
        calls = [
            DraftCall(
                RequestId(str(name)),
                texts[name],
                one.most,
                one.is_greedy,
                one.is_blind and not one.is_greedy,
            )
            for name in names
        ]
        both(plain, fast, lambda s: s.draft(calls, least=one.least, row_tokens=0.3), one)  # noqa: B023
        if one.said is not None:
            said = RowProposal(
                tuple(token for token, _ in one.said),
                None,
                tuple(chance for _, chance in one.said) if one.has_chances else None,
                ("dspark",) * len(one.said) if one.has_chances else None,
            )
            both(plain, fast, lambda s: s.merge([(calls[0].request_id, said)]), one)  # noqa: B023
        judged = [(call.request_id, one.accepted, one.verified) for call in calls]
        both(plain, fast, lambda s: s.learn(judged), one)  # noqa: B023
        if one.is_forgotten:
            for side in (plain, fast):
                side.forget(calls[0].request_id)
                side.forget(RequestId("nobody"))


@pytest.mark.parametrize("kind", ["none", "whole", "order-1", "empty"])
@settings(deadline=None, max_examples=120)
@given(rounds=ROUNDS, batched=st.booleans())
def test_the_same_drafts_as_in_python(kind: str, rounds: list[Round], batched: bool) -> None:
    """Catches: a count, a split, a correction, an order of sums or a tie that differs; state of one
    request that leaks into another; what is kept of a forgotten one."""
    play(kind, rounds, batched=batched)


def words(path: Path) -> list[int]:
    """The words and signs of a page as numbers, alike ones alike."""
    return [
        zlib.crc32(word.encode()) % 50_000
        for word in re.findall(r"\w+|\W", path.read_text("utf-8"))
    ]


@unchecked()
def test_the_same_drafts_on_real_text() -> None:
    """Catches what only shows in long texts with many words: hashed transitions, deep splits, a
    table with orders that answer one another."""
    pages = sorted((harness.ROOT / "docs" / "decisions").glob("*.md"))
    table = table_of_texts([words(page) for page in pages[:-1]], vocab_size=50_000)
    plain, fast = PlainDrafts(table), native_drafts(table)
    whole, name = words(pages[-1]) + words(pages[0]), RequestId("page")
    text = whole[:1]
    num_held = 0
    while len(text) < len(whole):
        calls = [DraftCall(name, text, 7, True, False)]
        (expected,) = plain.draft(calls, least=0.05, row_tokens=0.1)
        (drafted,) = fast.draft(calls, least=0.05, row_tokens=0.1)
        assert drafted == expected
        ahead = whole[len(text) : len(text) + len(expected.tokens)]
        hits = [mine == its for mine, its in zip(expected.tokens, ahead, strict=False)]
        accepted = [*hits, False].index(False)
        judged = [(name, accepted, len(expected.tokens))]
        assert fast.learn(judged) == plain.learn(judged)
        text = whole[: len(text) + accepted + 1]
        num_held += accepted
    assert num_held > len(whole) / 4
