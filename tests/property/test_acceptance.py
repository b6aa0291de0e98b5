"""Acceptance counters against the rounds written out, and their sum."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.acceptance import Acceptance, SourceCounts, total

Round = tuple[int, int, int, int]  # drafted, verified, accepted, delivered


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    drafted = draw(st.integers(0, 5))
    verified = draw(st.integers(0, drafted))
    accepted = draw(st.integers(0, verified))
    return drafted, verified, accepted, draw(st.integers(1, accepted + 1))


histories = st.lists(rounds(), max_size=12)


def counted(history: list[Round]) -> Acceptance:
    acceptance = Acceptance()
    for drafted, verified, accepted, delivered in history:
        acceptance.record(
            drafted=drafted, verified=verified, accepted=accepted, delivered=delivered
        )
    return acceptance


@given(st.lists(st.tuples(st.lists(st.sampled_from("ab")), st.integers(0, 5)), max_size=8))
def test_sources_are_counted_by_what_happened_to_their_tokens(
    history: list[tuple[list[str], int]],
) -> None:
    """Catches the token behind the rejected one counted as reached, and a sum that shares state."""
    parts = []
    expected = {name: [0, 0, 0] for name in "ab"}
    for sources, wanted in history:
        accepted = min(wanted, len(sources))
        part = Acceptance()
        part.record(
            drafted=len(sources),
            verified=len(sources),
            accepted=accepted,
            delivered=accepted + 1,
            sources=sources,
        )
        parts.append(part)
        for position, name in enumerate(sources):
            for place, holds in enumerate((True, position <= accepted, position < accepted)):
                expected[name][place] += holds
    for _ in range(2):
        added = total(parts).by_source
        for name, counts in expected.items():
            found = added.get(name, SourceCounts())
            assert [found.verified, found.reached, found.accepted] == counts
            assert same(found.accept_rate, ratio(counts[2], counts[1]))


def same(one: float, other: float) -> bool:
    return one == pytest.approx(other) or (math.isnan(one) and math.isnan(other))


def ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


@given(histories)
def test_the_definitions(history: list[Round]) -> None:
    """Catches a counter that includes the target's own token, or a position off by one."""
    acceptance = counted(history)
    assert acceptance.rounds == len(history)
    assert acceptance.drafted == sum(drafted for drafted, _, _, _ in history)
    assert acceptance.verified == sum(verified for _, verified, _, _ in history)
    assert acceptance.accepted == sum(accepted for _, _, accepted, _ in history)
    assert acceptance.emitted == sum(accepted + 1 for _, _, accepted, _ in history)
    assert acceptance.delivered == sum(delivered for _, _, _, delivered in history)
    assert same(acceptance.acceptance_length, ratio(acceptance.emitted, acceptance.rounds))
    assert same(acceptance.acceptance_rate, ratio(acceptance.accepted, acceptance.verified))


@given(histories)
def test_rates_by_position(history: list[Round]) -> None:
    """Catches conditional and marginal rates that are mixed up, or short windows that count."""
    acceptance = counted(history)
    longest = max((verified for _, verified, _, _ in history), default=0)
    marginal, conditional = acceptance.marginal_accept_rates, acceptance.conditional_accept_rates
    assert len(marginal) == len(conditional) == longest
    for position in range(longest):
        sent = [accepted for _, verified, accepted, _ in history if verified > position]
        reached = [accepted for accepted in sent if accepted >= position]
        held = [accepted for accepted in sent if accepted > position]
        assert same(marginal[position], ratio(len(held), len(sent)))
        assert same(conditional[position], ratio(len(held), len(reached)))


@given(histories, histories, histories)
def test_addition_is_associative_and_counts_both(
    first: list[Round], second: list[Round], third: list[Round]
) -> None:
    """Catches a sum that depends on how rounds were split over requests or engines."""
    whole = counted([*first, *second, *third])
    one, two, three = counted(first), counted(second), counted(third)
    assert total([one, two, three]) == whole
    assert total([total([one, two]), three]) == total([one, total([two, three])]) == whole
    assert (one, two, three) == (counted(first), counted(second), counted(third))


def test_nothing_is_not_a_number() -> None:
    """Catches a rate of 0 or 1 where nothing was measured."""
    empty = Acceptance()
    assert math.isnan(empty.acceptance_length)
    assert math.isnan(empty.acceptance_rate)
    assert empty.marginal_accept_rates == []
    assert total([]) == empty
