"""Cheap drafts made in C++ against those made in Python, bit by bit."""

import gc
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.cheap import CheapDraft, CheapDrafts, DraftCall, PlainDrafts
from outrider.drafters.ngram_table_file import NgramTable, TableHeader
from outrider.drafters.suffix_automaton import START, SuffixAutomaton
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
        said=st.none()
        | st.lists(st.tuples(st.integers(0, VOCAB - 1), CHANCES), min_size=1, max_size=10),
        has_chances=st.booleans(),
        accepted=st.integers(0, 8),
        verified=st.integers(0, 8),
        is_forgotten=st.sampled_from([False] * 6 + [True]),
    ),
    max_size=14,
)


class Both:
    """The same requests on both sides; what is asked of one is asked of the other."""

    def __init__(self, table: NgramTable | None) -> None:
        self.sides: tuple[CheapDrafts, CheapDrafts] = (PlainDrafts(table), native_drafts(table))
        self.texts: dict[int, tuple[Any, Any]] = {}

    def draft(self, calls: Sequence[tuple[int, DraftCall]], least: float) -> list[CheapDraft]:
        for name, _ in calls:
            if name not in self.texts:
                self.texts[name] = (self.sides[0].new_text(), self.sides[1].new_text())
        plain, fast = (
            side.draft(
                [call._replace(text=self.texts[name][which]) for name, call in calls],
                least=least,
                row_tokens=0.3,
            )
            for which, side in enumerate(self.sides)
        )
        assert plain == fast
        return plain

    def merge(self, name: int, said: RowProposal) -> None:
        plain, fast = (
            side.merge([(self.texts[name][which], said)]) for which, side in enumerate(self.sides)
        )
        assert plain == fast

    def learn(self, judged: Sequence[tuple[int, int, int]]) -> None:
        plain, fast = (
            side.learn([(self.texts[name][which], *counts) for name, *counts in judged])
            for which, side in enumerate(self.sides)
        )
        assert plain == fast


@unchecked()
def play(kind: str, rounds: Sequence[Round], *, batched: bool) -> None:
    """Play the rounds with both sides, one request at a time or all three in every call."""
    both = Both(table(kind))
    texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for one in rounds:
        texts[one.name] += one.grown
        names = [one.name, *(name for name in texts if batched and name != one.name)]
        is_blind = one.is_blind and not one.is_greedy
        calls = [
            (name, DraftCall(None, texts[name], one.most, one.is_greedy, is_blind))
            for name in names
        ]
        both.draft(calls, one.least)
        if one.said is not None:
            tokens, chances = (tuple(column) for column in zip(*one.said, strict=True))
            sources = ("dspark",) * len(tokens)
            named = RowProposal(tokens, None, chances, sources)
            both.merge(one.name, named if one.has_chances else RowProposal(tokens))
        both.learn([(name, one.accepted, one.verified) for name in names])
        if one.is_forgotten:
            both.texts.pop(one.name)


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
    both = Both(table)
    whole = words(pages[-1]) + words(pages[0])
    text = whole[:1]
    num_held = 0
    while len(text) < len(whole):
        (drafted,) = both.draft([(0, DraftCall(None, text, 7, True, False))], least=0.05)
        ahead = whole[len(text) : len(text) + len(drafted.tokens)]
        hits = [mine == its for mine, its in zip(drafted.tokens, ahead, strict=False)]
        accepted = [*hits, False].index(False)
        both.learn([(0, accepted, len(drafted.tokens))])
        text = whole[: len(text) + accepted + 1]
        num_held += accepted
    assert num_held > len(whole) / 4


STEPS = st.lists(st.tuples(st.sampled_from(["extend", "end", "ask"]), PIECES | LOOPS), max_size=12)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.sampled_from([1, 3, 32]), st.integers(0, 3), st.sampled_from([0.0, 0.05, 0.5]))
def test_the_same_automaton_as_in_python(
    steps: list[tuple[str, list[int]]], max_context: int, min_match_len: int, min_confidence: float
) -> None:
    """Catches: sequences that run into each other, and a seat that is another one."""
    from outrider.drafters.native_automaton import NativeAutomaton

    plain, fast = SuffixAutomaton(max_context), NativeAutomaton(max_context)
    options: Any = {"min_match_len": min_match_len, "min_confidence": min_confidence}
    for step, tokens in steps:
        if step == "extend":
            plain.extend(tokens)
            fast.extend(tokens)
        elif step == "end":
            plain.end_sequence()
            fast.end_sequence()
        seat = plain.follow(START, tokens)
        assert fast.follow(START, tokens) == seat
        assert (fast.tip, len(fast)) == (plain.tip, len(plain))
        for own in (seat, plain.tip):
            assert fast.draft(own, 9, **options) == plain.draft(own, 9, **options)


def test_what_cannot_be_drafted_from_is_refused() -> None:
    """Catches a number that C++ cuts to size or takes for an address."""
    from outrider.drafters.native_automaton import NativeAutomaton

    drafts, automaton = native_drafts(None), NativeAutomaton(4)
    for token in (-1, 2**31, 2**40):
        with pytest.raises(ValueError, match="outside 0 to"):
            automaton.extend([token])
        call = DraftCall(drafts.new_text(), [1, token], 3, True, False)
        with pytest.raises(ValueError, match="outside 0 to"):
            drafts.draft([call], least=0.0, row_tokens=0.0)
    with pytest.raises(ValueError, match="cannot be made"):
        drafts.draft(
            [DraftCall(drafts.new_text(), [1], -1, True, False)], least=0.0, row_tokens=0.0
        )
    with pytest.raises(ValueError, match="no seat"):
        automaton.draft((7, 1), 3)
    with pytest.raises(ValueError, match="holds nothing"):
        native_drafts(NgramTable(header(0), memoryview(bytes(8)).cast("I"), memoryview(b"")))


def test_a_table_lives_as_long_as_its_drafts(tmp_path: Path) -> None:
    """Catches memory of a mapped table that is read after Python gave it up."""
    path = tmp_path / "table.safetensors"
    table_of_texts([[3, 4, 5, 6]] * 4, vocab_size=VOCAB).save(path)
    drafts = native_drafts(NgramTable.open(path))
    gc.collect()
    call = DraftCall(drafts.new_text(), [3], 3, True, False)
    assert drafts.draft([call], least=0.0, row_tokens=0.0)[0].tokens == (4, 5, 6)
