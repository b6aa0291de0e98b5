"""The suffix automaton and its statistics against scans of the whole text."""

from collections import Counter
from itertools import accumulate
from operator import mul
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.suffix_automaton import (
    START,
    ScoredMatch,
    SuffixAutomaton,
    token_confidence,
)
from outrider.errors import ConfigError

TEXTS = st.lists(st.integers(0, 2), max_size=60) | st.lists(st.integers(0, 6), max_size=60)
CONTEXTS = st.sampled_from([1, 2, 3, 5, 100])


def follow_ups(sequences: list[list[int]], context: list[int]) -> list[int]:
    """Tokens seen right after `context`, in the order in which they came."""
    return [
        sequence[end]
        for sequence in sequences
        for end in range(len(context), len(sequence))
        if sequence[end - len(context) : end] == context
    ]


def scanned(
    sequences: list[list[int]],
    text: list[int],
    *,
    max_context: int,
    max_tokens: int = 8,
    min_match_len: int = 1,
    min_confidence: float = 0.0,
) -> ScoredMatch:
    """Draft what should come after `text` by scanning all `sequences` for every context."""
    context = text[-max_context:]
    tokens: list[int] = []
    confidence: list[float] = []
    match_len, survival = 0, 1.0
    while len(tokens) < max_tokens:
        while context and not follow_ups(sequences, context):
            context = context[1:]
        if len(context) < min_match_len:
            break
        seen = follow_ups(sequences, context)
        counts = Counter(seen)
        latest = {token: i for i, token in enumerate(seen)}
        best = max(counts, key=lambda token: (counts[token], latest[token]))
        chance = token_confidence(counts[best], len(seen), len(counts), len(context))
        survival *= chance
        if survival < min_confidence:
            break
        match_len = match_len or len(context)
        tokens.append(best)
        confidence.append(chance)
        context = [*context, best][-max_context:]
    return ScoredMatch(tuple(tokens), match_len, tuple(confidence))


def automaton_of(text: list[int], max_context: int = 100) -> SuffixAutomaton:
    automaton = SuffixAutomaton(max_context)
    automaton.extend(text)
    return automaton


@settings(deadline=None, max_examples=150)
@given(TEXTS, CONTEXTS, st.integers(1, 3), st.sampled_from([0.0, 0.02, 0.3]))
def test_equals_a_scan_after_every_token(
    text: list[int], max_context: int, min_match_len: int, min_confidence: float
) -> None:
    """Catches: counts lost or doubled when a state splits, a tip left behind in the wrong half,
    equals resolved to the older token, contexts beyond the cap, a back-off one token too far."""
    automaton = SuffixAutomaton(max_context)
    for end in range(len(text) + 1):
        automaton.extend(text[end - 1 : end] if end else [])
        so_far = text[:end]
        assert automaton.continuation(
            8, min_match_len=min_match_len, min_confidence=min_confidence
        ) == scanned(
            [so_far],
            so_far,
            max_context=max_context,
            min_match_len=min_match_len,
            min_confidence=min_confidence,
        )


@settings(deadline=None, max_examples=150)
@given(st.lists(TEXTS, max_size=4), TEXTS, CONTEXTS)
def test_sequences_are_kept_apart(
    sequences: list[list[int]], query: list[int], max_context: int
) -> None:
    """Catches: an occurrence or a follow-up read across the end of a sequence, and a sequence that
    begins like an earlier one landing in a state that also holds longer strings."""
    automaton = SuffixAutomaton(max_context)
    for sequence in sequences:
        automaton.extend(sequence)
        automaton.end_sequence()
    assert automaton.continuation(8) == ScoredMatch()
    seat = automaton.follow(START, query)
    assert automaton.draft(seat, 8, min_match_len=1) == scanned(
        sequences, query, max_context=max_context
    )


@settings(deadline=None)
@given(TEXTS, TEXTS, CONTEXTS)
def test_follow_finds_the_longest_suffix_that_occurs(
    text: list[int], query: list[int], max_context: int
) -> None:
    """Catches: a match that breaks off at a mismatch instead of going on with a shorter suffix."""
    automaton = automaton_of(text, max_context)
    occurring = {tuple(text[i:j]) for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    longest = max(
        (n for n in range(1, min(len(query), max_context) + 1) if tuple(query[-n:]) in occurring),
        default=0,
    )
    assert automaton.follow(START, query)[1] == longest
    half = len(query) // 2
    stepwise = automaton.follow(automaton.follow(START, query[:half]), query[half:])
    assert stepwise == automaton.follow(START, query)


@settings(deadline=None, max_examples=200)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_memory_is_linear(sequences: list[list[int]]) -> None:
    """Catches: states made twice for one class, and splits that are not shared."""
    automaton = SuffixAutomaton()
    for sequence in sequences:
        automaton.extend(sequence)
        automaton.end_sequence()
    assert len(automaton) == sum(map(len, sequences))
    assert automaton.num_states <= 2 * len(automaton) + 1
    assert automaton.num_transitions <= 3 * len(automaton)


@pytest.mark.parametrize(
    ("text", "num_states", "num_transitions"),
    [
        ([0] + [1] * 49, 2 * 50 - 1, 2 * 50 - 1),
        ([0] + [1] * 48 + [2], 2 * 50 - 2, 3 * 50 - 4),
    ],
)
def test_the_known_worst_texts_have_their_known_size(
    text: list[int], num_states: int, num_transitions: int
) -> None:
    """Catches: an automaton that is not minimal; these texts reach the bounds of Blumer et al."""
    automaton = automaton_of(text)
    assert automaton.num_states == num_states
    assert automaton.num_transitions == num_transitions


@settings(deadline=None)
@given(TEXTS)
def test_a_sequence_seen_before_adds_no_states(text: list[int]) -> None:
    """Catches: states that nothing leads to, one per token of every repeated sequence."""
    automaton = automaton_of(text)
    num_states, num_transitions = automaton.num_states, automaton.num_transitions
    automaton.end_sequence()
    automaton.extend(text)
    assert (automaton.num_states, automaton.num_transitions) == (num_states, num_transitions)


class CountingList(list[int]):
    """A list that counts how often one item is read."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("period", [1, 3, 40])
def test_a_loop_costs_a_bounded_number_of_steps_per_token(period: int) -> None:
    """Catches: a count that walks all suffix links; a loop has one link per period of the text."""
    automaton = SuffixAutomaton(max_context=8)
    links = CountingList(automaton._link)
    automaton._link = links
    automaton.extend(list(range(period)) * (2000 // period))
    assert links.num_reads <= 2 * (8 + 2) * len(automaton)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), st.integers(1, 30))
def test_a_loop_fills_the_draft(period: list[int], max_tokens: int) -> None:
    """Catches: a draft cut short where the match runs into the end of the text."""
    match = automaton_of(period * 4, max_context=12).continuation(max_tokens)
    assert match.tokens == tuple(period[i % len(period)] for i in range(max_tokens))


@settings(deadline=None)
@given(TEXTS, st.floats(0, 1))
def test_survival_is_a_probability_and_above_the_floor(text: list[int], floor: float) -> None:
    """Catches: certainty from a single occurrence, and a last token kept below the floor."""
    match = automaton_of(text).continuation(8, min_confidence=floor)
    survival = list(accumulate(match.confidence, mul))
    assert all(0 < chance < 1 for chance in match.confidence)
    assert len(match.tokens) == len(match.confidence)
    assert survival == sorted(survival, reverse=True)
    assert all(chance >= floor for chance in survival)
    longer = automaton_of(text).continuation(8).tokens
    assert longer[: len(match.tokens)] == match.tokens


def test_the_floor_itself_is_kept() -> None:
    """Catches: a floor that cuts what is exactly as likely as asked for."""
    automaton = automaton_of([1, 2, 3, 4, 1, 2])
    (chance,) = automaton.continuation(1).confidence
    assert automaton.continuation(8, min_confidence=chance).tokens[:1] == (3,)


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 20), st.integers(1, 50))
def test_confidence_moves_the_right_way(
    agreeing: int, others: int, distinct: int, context_len: int
) -> None:
    """Catches: a sign or a ratio the wrong way round in the estimate."""
    followed = agreeing + others
    chance = token_confidence(agreeing, followed, distinct, context_len)
    assert 0 < chance < agreeing / followed
    assert token_confidence(agreeing, followed, distinct, context_len + 1) > chance
    assert token_confidence(agreeing, followed, distinct + 1, context_len) < chance
    assert token_confidence(agreeing, followed + 1, distinct, context_len) < chance
    assert token_confidence(agreeing + 1, followed + 1, distinct, context_len) > chance


def test_the_commonest_token_wins_then_the_latest() -> None:
    """Catches: recency before frequency: after 1, twice 2 and then once 3; then twice each."""
    assert automaton_of([1, 2, 1, 2, 1, 3, 1]).continuation(1, min_match_len=1).tokens == (2,)
    assert automaton_of([1, 2, 1, 2, 1, 3, 1, 3, 1]).continuation(1, min_match_len=1).tokens == (3,)


@pytest.mark.parametrize("text", [[], [5], [5, 6, 7]])
def test_nothing_repeated_gives_nothing(text: list[int]) -> None:
    """Catches: the text's end matched with itself, and drafts from the empty context."""
    assert automaton_of(text).continuation(8, min_match_len=0) == ScoredMatch()


def test_no_tokens_asked_for_gives_nothing() -> None:
    """Catches: a match length reported with no draft to go with it."""
    assert automaton_of([1, 2, 1, 2]).continuation(0) == ScoredMatch()


def test_an_empty_context_is_refused() -> None:
    """Catches: a cap that silently turns every match off."""
    with pytest.raises(ConfigError, match="max_context is 0"):
        SuffixAutomaton(0)
