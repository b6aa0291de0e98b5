"""Survival estimates: what is believed, what is learnt, what is refused."""

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.calibration import Calibration, Curve, SourceFit
from outrider.schedule.confidence import Drift, Estimator, PositionRates, Said


def teach(estimator: Estimator, said: Said, rate: float, rounds: int = 300) -> None:
    """Verify whole drafts whose tokens are each accepted with chance `rate`."""
    numbers = random.Random(5)
    for _ in range(rounds):
        accepted = 0
        while accepted < said.num_drafted and numbers.random() < rate:
            accepted += 1
        estimator.learn(said, said.num_drafted, accepted)


@given(st.lists(st.floats(0, 1), max_size=12), st.lists(st.floats(0, 1), max_size=4))
def test_survival_is_a_falling_chance(first: list[float], second: list[float]) -> None:
    """Catches a correction that leaves [0, 1] or rises along a draft."""
    estimator = Estimator()
    for confidence in (first, second, first):
        said = Said(len(confidence), confidence)
        survival = estimator.survival(said)
        assert len(survival) == len(confidence)
        for before, after in zip([1.0, *survival], survival, strict=False):
            assert 0 <= after <= before
        estimator.learn(said, len(confidence), len(confidence) // 2)


def test_an_untaught_estimator_believes_the_drafter() -> None:
    """Catches a prior that is applied twice, or rounding that loses confidences near 1."""
    survival = Estimator().survival(Said(3, [0.9, 0.8, 0.7]))
    assert survival == pytest.approx([0.9, 0.72, 0.504], abs=0.005)


@pytest.mark.parametrize("confidence", [None, [0.95, 0.95, 0.95]], ids=["none", "too-confident"])
def test_it_learns_how_often_drafts_are_accepted(confidence: list[float] | None) -> None:
    """Catches counts of tokens that were never reached: they would pull the estimate down."""
    estimator = Estimator()
    teach(estimator, Said(3, confidence), rate=0.6)
    assert estimator.survival(Said(3, confidence)) == pytest.approx([0.6, 0.36, 0.22], abs=0.06)


def test_kinds_and_sources_are_counted_apart() -> None:
    """Catches one bad source that spoils the others, or greedy requests judged by sampled ones."""
    estimator = Estimator()
    teach(estimator, Said(2, [0.9, 0.9], sources=("weak", "weak")), rate=0.2)
    teach(estimator, Said(2, [0.9, 0.9], kind="rejection"), rate=0.2)
    assert estimator.survival(Said(2, [0.9, 0.9]))[0] == pytest.approx(0.9, abs=0.01)
    first, second = estimator.survival(Said(2, [0.9, 0.9], sources=("strong", "weak")))
    assert first == pytest.approx(0.9, abs=0.01)
    assert second < 0.3


def test_other_confidences_are_touched_little() -> None:
    """Catches a correction of all classes by one."""
    estimator = Estimator()
    teach(estimator, Said(1, [0.95]), rate=0.1)
    assert estimator.survival(Said(1, [0.3])) == pytest.approx([0.3], abs=0.01)


def test_what_is_no_longer_seen_fades() -> None:
    """Catches a class that one bad stretch condemns for good: new text, new chances."""
    estimator, said = Estimator(), Said(1, [0.8])
    teach(estimator, said, rate=0.05)
    teach(estimator, said, rate=0.9, rounds=2500)
    assert estimator.survival(said)[0] == pytest.approx(0.9, abs=0.05)


def test_a_calibration_is_where_it_starts() -> None:
    """Catches a curve of the wrong position or source."""
    curves = (Curve(slope=0.0, shift=0.0), Curve(knots=((0.0, 0.1), (1.0, 0.3))))
    kinds = {"greedy": {"": SourceFit(curves)}}
    calibration = Calibration("m", "suffix", 2, "isotonic", {"greedy": 0.0}, kinds)
    first, second, third = Estimator(calibration).survival(Said(3, [0.9, 0.9, 0.9]))
    assert first == pytest.approx(0.5)
    assert second / first == pytest.approx(0.1 + 0.9 * 0.2, abs=0.01)
    assert third / second == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    "confidence", [[float("nan"), 0.5], [1.5, 0.5], [-0.1, 0.5], [float("inf"), 1], [0.5]], ids=str
)
def test_confidence_that_is_none_is_replaced(
    confidence: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Catches a crash, a survival above 1, or a warning per step."""
    estimator = Estimator()
    with caplog.at_level(logging.WARNING):
        assert estimator.survival(Said(2, confidence)) == pytest.approx([0.5, 0.25])
        estimator.learn(Said(2, confidence), 2, 1)
        estimator.survival(Said(2, confidence))
    assert len(caplog.records) == 1
    assert "within [0, 1]" in caplog.text


def test_the_gauge_sees_both_directions_and_recovers() -> None:
    """Catches a gauge that cancels, never triggers, or never lets go."""
    drift = Drift()
    for _ in range(150):
        drift.add([0.9, 0.8], 2, 1)
    assert drift.gap == pytest.approx(0.35)
    seen = [drift.is_bad]
    for _ in range(3000):
        drift.add([0.5, 0.5], 2, 1)
    seen.append(drift.is_bad)
    for _ in range(3000):
        drift.add([0.1, 0.1], 2, 2)
    assert drift.gap < -0.5
    assert [*seen, drift.is_bad] == [True, False, True]
    drift.add([0.1], 0, 0)


def test_rates_by_position() -> None:
    """Catches a rate that counts positions which were not verified."""
    rates = PositionRates()
    for _ in range(400):
        rates.add(2, 1)
    for _ in range(400):
        rates.add(1, 0)
    assert len(rates) == 2
    assert rates.survival()[0] == pytest.approx(0.5, abs=0.25)
    assert rates.survival()[1] == 0.0
