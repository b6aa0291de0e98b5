"""Length policies: numbers in, numbers out."""

import pytest

from outrider.schedule.lengths import BatchShape, Fixed, Off

SHAPE = BatchShape(num_known=3, num_judged=3)
SURVIVAL = [[0.9, 0.8, 0.1], [], [0.5]]


def test_off_verifies_nothing() -> None:
    """Catches a policy that is off and still costs."""
    assert Off().plan(SURVIVAL, SHAPE) == [0, 0, 0]


@pytest.mark.parametrize(("most", "expected"), [(0, [0, 0, 0]), (2, [2, 0, 1]), (9, [3, 0, 1])])
def test_fixed_verifies_up_to_a_number(most: int, expected: list[int]) -> None:
    """Catches a length beyond what was drafted."""
    assert Fixed(most).plan(SURVIVAL, SHAPE) == expected


def test_neither_looks_at_the_drafts() -> None:
    """Catches a policy that the rejection rule would refuse."""
    assert not Off.anticipating
    assert not Fixed.anticipating
