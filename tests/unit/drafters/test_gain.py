"""Means that forget, and what a network is worth by what was promised without it."""

import pytest

from outrider.drafters.gain import FIRST_GAINS, FadingMean, Gain


def test_a_mean_moves_from_its_prior_to_what_is_seen_and_back() -> None:
    """Catches a prior that is never outweighed, and an experience that never fades."""
    mean = FadingMean(memory=0.9, prior_weight=2.0)
    assert mean.value(0.7) == pytest.approx(0.7)
    mean.add(4.0)
    assert mean.value(0.7) == pytest.approx((4.0 + 2 * 0.7) / 3)
    for _ in range(200):
        mean.add(4.0)
    assert mean.value(0.7) == pytest.approx((10 * 4.0 + 2 * 0.7) / 12)
    for _ in range(200):
        mean.fade()
    assert mean.value(0.7) == pytest.approx(0.7)


def test_gains_are_told_apart_by_what_was_promised() -> None:
    """Catches a network that is judged by rounds in which there was nothing to add."""
    gain = Gain()
    assert [gain.expected(promised) for promised in (0.0, 1.2, 2.9, 3.0, 9.0)] == [
        *FIRST_GAINS, FIRST_GAINS[-1],
    ]  # fmt: skip
    for _ in range(50):
        gain.learn(5.5, -1.0)
        gain.learn(0.5, 2.0)
    assert gain.expected(3.5) < 0 < FIRST_GAINS[0] < gain.expected(0.1)
    assert gain.expected(1.5) == FIRST_GAINS[1]
    for _ in range(1000):
        gain.learn(5.5, None)
    assert gain.expected(3.5) == pytest.approx(FIRST_GAINS[-1], abs=0.01)
