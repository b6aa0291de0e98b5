"""Finding the loop an output ends in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.loops import loop_start


def brute_force(tokens: list[int], max_period: int, min_repeats: int, min_len: int) -> int | None:
    """The rule as a sentence: the longest tail that equals itself shifted by some period."""
    for start in range(len(tokens)):
        tail = tokens[start:]
        for period in range(1, max_period + 1):
            is_periodic = all(a == b for a, b in zip(tail, tail[period:], strict=False))
            if is_periodic and len(tail) >= max(min_len, min_repeats * period):
                return start
    return None


@given(
    head=st.lists(st.integers(0, 2), max_size=12),
    turn=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    repeats=st.integers(0, 6),
    cut=st.integers(0, 5),
)
def test_it_equals_the_rule(head: list[int], turn: list[int], repeats: int, cut: int) -> None:
    """Catches an off-by-one in the start, and periods that are skipped."""
    tokens = head + turn * repeats + turn[:cut]
    for min_repeats, min_len in ((2, 4), (3, 6)):
        found = loop_start(tokens, max_period=4, min_repeats=min_repeats, min_len=min_len)
        assert found == brute_force(tokens, 4, min_repeats, min_len)


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ([], None),
        ([5], None),
        (list(range(200)), None),
        ([7] * 23, None),
        ([1, 2] + [7] * 24, 2),
        (list(range(30)) * 2, None),
        ([99, *range(30), *range(30), *range(30)], 1),
        ([*range(30), *range(30), *range(30), 99], None),
    ],
)
def test_the_defaults_spare_short_repetition(tokens: list[int], start: int | None) -> None:
    """Catches a table ruler or a twice-told passage called a loop."""
    assert loop_start(tokens) == start
