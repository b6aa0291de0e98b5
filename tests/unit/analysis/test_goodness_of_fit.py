"""The test statistic has the law it claims, and the power."""

import pytest
import torch
from scipy import stats

from outrider.analysis.goodness_of_fit import (
    BINS,
    FALSE_ALARM,
    POWER,
    UniformTest,
    chi_square_tail,
    noncentral_tail,
)

DRAWN = torch.Generator().manual_seed(3)


def uniform(count: int) -> list[float]:
    numbers: list[float] = torch.rand(count, generator=DRAWN, dtype=torch.float64).tolist()
    return numbers


@pytest.mark.parametrize(("value", "freedom"), [(0.0, 3), (2.5, 1), (30.0, 15), (80.0, 15)])
def test_the_tails_are_those_of_the_distributions(value: float, freedom: int) -> None:
    """Catches a wrong degree of freedom, and a mixture that is cut too early."""
    assert chi_square_tail(value, freedom) == pytest.approx(stats.chi2.sf(value, freedom), rel=1e-9)
    for shift in (0.5, 20.0, 300.0):
        expected = stats.ncx2.sf(value, freedom, shift)
        assert noncentral_tail(value, freedom, shift) == pytest.approx(expected, rel=1e-7)


def test_the_threshold_has_the_stated_false_alarm_rate() -> None:
    """Catches a threshold of another rate or another number of bins."""
    test = UniformTest.of(uniform(2000))
    assert test.threshold == pytest.approx(stats.chi2.isf(FALSE_ALARM, BINS - 1), rel=1e-9)
    assert test.statistic == pytest.approx(stats.chisquare(test.observed).statistic)
    assert test.p_value == pytest.approx(stats.chisquare(test.observed).pvalue)
    assert test.passed
    assert not UniformTest.of([number**1.5 for number in uniform(2000)]).passed


def test_what_is_said_to_be_detectable_is_detected_as_often() -> None:
    """Catches a power that is computed for another deviation. The rate of detections of 400 runs
    lies within 0.06 (four deviations) of the stated one; seeds are fixed.
    """
    count, runs = 1000, 400
    shift = UniformTest.of(uniform(count)).detectable
    found = 0
    for _ in range(runs):
        picks = torch.rand(count, generator=DRAWN) < 0.5 + shift
        numbers = torch.rand(count, generator=DRAWN) / 2
        numbers = torch.where(picks, numbers, numbers + 0.5)
        found += not UniformTest.of(numbers.tolist()).passed
    assert found / runs == pytest.approx(POWER, abs=0.06)


def test_no_numbers_detect_nothing() -> None:
    """Catches a division by zero where a drafter produced nothing to test."""
    empty = UniformTest.of([])
    assert (empty.statistic, empty.passed, empty.detectable) == (0.0, True, 1.0)
    assert UniformTest.of([1.0, 0.0]).observed[-1] == 1
