"""The shared index and its cursors against a fresh automaton per generation."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.shared_suffix_index import SharedSuffixIndex
from outrider.drafters.suffix_automaton import START, ScoredMatch, Seat, SuffixAutomaton
from outrider.errors import ConfigError

TOKENS = st.lists(st.integers(0, 3), max_size=12)
EVENTS = st.lists(st.tuples(st.sampled_from(["add", "advance"]), TOKENS), max_size=20)
MAX_CONTEXT = 4


def best_draft(generations: list[list[list[int]]], text: list[int]) -> ScoredMatch:
    """Rebuild each generation, match the whole text; longest match first, then the young one."""
    drafts = []
    for sequences in generations:
        automaton = SuffixAutomaton(MAX_CONTEXT)
        for sequence in sequences:
            automaton.extend(sequence)
            automaton.end_sequence()
        drafts.append(automaton.draft(automaton.follow(START, text), 6, min_match_len=1))
    return max(drafts, key=lambda draft: draft.match_len)


@settings(deadline=None, max_examples=200)
@given(EVENTS, st.sampled_from([2, 7, 20, 1000]))
def test_a_cursor_equals_a_fresh_match_at_all_times(
    events: list[tuple[str, list[int]]], max_tokens: int
) -> None:
    """Catches: a cursor left in a state that was split or in a generation that was dropped, tokens
    lost between an addition and the next draft, more tokens held than allowed."""
    index = SharedSuffixIndex(max_tokens, MAX_CONTEXT)
    cursor = index.cursor()
    young: list[list[int]] = []
    old: list[list[int]] = []
    text: list[int] = []
    half = max_tokens // 2
    for event, tokens in events:
        if event == "advance":
            cursor.advance(tokens)
            text += tokens
        else:
            index.add(tokens)
            kept = tokens[-half:]
            if sum(map(len, young)) + len(kept) > half:
                young, old = [], young
            young.append(kept)
        if len(text) % 2:  # not after every event, so that changes pile up
            assert cursor.continuation(6, min_match_len=1) == best_draft([young, old], text)
        assert len(index) == sum(map(len, young + old)) <= max_tokens


def test_a_match_stops_at_the_end_of_a_sequence() -> None:
    """Catches: sequences joined without a boundary: 3 was never followed by 4."""
    index = SharedSuffixIndex(100)
    index.add([1, 2, 3])
    index.add([4, 5, 6])
    cursor = index.cursor()
    cursor.advance([1, 2])
    assert cursor.continuation(8).tokens == (3,)
    cursor.advance([3, 4])
    assert cursor.continuation(8) == ScoredMatch()
    assert cursor.continuation(8, min_match_len=1).tokens == (5, 6)


def test_the_oldest_sequences_go_first() -> None:
    """Catches: an index that grows without bound, or that drops what was added last."""
    index = SharedSuffixIndex(12)
    for start in (10, 20, 30, 40):
        index.add([start, start + 1, start + 2])
    cursor = index.cursor()
    drafted = {}
    for start in (10, 20, 30, 40):
        cursor.advance([0, start, start + 1])
        drafted[start] = cursor.continuation(8).tokens
    assert drafted == {10: (12,), 20: (22,), 30: (32,), 40: (42,)}
    index.add([50, 51, 52])
    for start, expected in {10: (), 20: (), 30: (32,), 40: (42,), 50: (52,)}.items():
        cursor.advance([0, start, start + 1])
        assert cursor.continuation(8).tokens == expected


def test_two_cursors_do_not_disturb_each_other() -> None:
    """Catches: a place in the index that is shared between requests."""
    index = SharedSuffixIndex(100)
    index.add([1, 2, 3, 4, 5, 6])
    first, second = index.cursor(), index.cursor()
    first.advance([1, 2])
    second.advance([4, 5])
    assert first.continuation(2).tokens == (3, 4)
    assert second.continuation(2).tokens == (6,)


def test_a_cursor_may_be_older_than_the_first_sequence() -> None:
    """Catches: tokens forgotten while the index was empty."""
    index = SharedSuffixIndex(100)
    cursor = index.cursor()
    assert cursor.continuation(8) == ScoredMatch()
    cursor.advance([1, 2])
    index.add([])
    index.add([1, 2, 3])
    assert cursor.continuation(8).tokens == (3,)


def test_an_unchanged_index_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a cursor that matches its last tokens anew in every round."""
    index = SharedSuffixIndex(100)
    index.add([1, 2, 3, 4])
    cursor = index.cursor()
    followed: list[int] = []
    follow = SuffixAutomaton.follow

    def recorded(automaton: SuffixAutomaton, seat: Seat, tokens: Iterable[int]) -> Seat:
        followed.extend(tokens)
        return follow(automaton, seat, tokens)

    cursor.advance([1, 2])
    index.add([5])
    cursor.continuation(8)
    monkeypatch.setattr(SuffixAutomaton, "follow", recorded)
    cursor.advance([3])
    assert cursor.continuation(8).tokens == (4,)
    assert followed == [3, 3]  # once in each generation


def test_too_small_an_index_is_refused() -> None:
    """Catches: an index whose generations hold nothing."""
    with pytest.raises(ConfigError, match="max_tokens is 1"):
        SharedSuffixIndex(1)
