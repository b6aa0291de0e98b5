"""The arithmetic of drafting, against numbers worked out by hand and by a slower way."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.analysis.benefit import (
    ConstantCost,
    ConstantRate,
    MeasuredRates,
    Regime,
    break_even_rate,
    expected_rows,
    expected_tokens,
    outlook,
    speedup,
)
from outrider.errors import ConfigError

RATES = st.floats(0.0, 1.0)
COSTS = st.floats(0.0, 2.0)


def test_the_worked_example() -> None:
    """Catches a sum that misses the target's own token or a cost that counts gamma + 1 drafts."""
    model, cost = ConstantRate(0.9), ConstantCost(draft_per_token=0.15)
    assert expected_tokens(model, 4) == pytest.approx(4.0951)
    assert cost(4, 5.0) == pytest.approx(1.6)
    assert speedup(model, cost, 4) == pytest.approx(4.0951 / 1.6)


@pytest.mark.parametrize(("rate", "limit"), [(0.5, 2), (0.9, 10)])
def test_long_drafts_approach_a_limit(rate: float, limit: float) -> None:
    """Catches a geometric sum with a wrong end."""
    values = [expected_tokens(ConstantRate(rate), n) for n in (1, 10, 500)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(limit)
    assert values[-2] < limit


@given(rate=st.floats(0.0, 0.999), draft_len=st.integers(0, 40))
def test_the_sum_is_the_closed_form(rate: float, draft_len: int) -> None:
    """Catches either of the two written wrongly."""
    closed = (1 - rate ** (draft_len + 1)) / (1 - rate)
    assert expected_tokens(ConstantRate(rate), draft_len) == pytest.approx(closed, rel=1e-9)


def test_a_rate_of_one_yields_everything() -> None:
    """Catches a division by 1 - a."""
    assert expected_tokens(ConstantRate(1.0), 7) == 8
    assert speedup(ConstantRate(1.0), ConstantCost(), 7) == 8
    assert expected_tokens(ConstantRate(0.0), 7) == 1


@given(rate=st.floats(0.01, 0.99))
def test_where_rows_cost_their_number_drafting_never_pays(rate: float) -> None:
    """Catches a verify cost of gamma instead of gamma + 1."""
    found = outlook(ConstantRate(rate), Regime("high", ConstantCost(per_row=1.0)), 12)
    later = found.speedups[1:]
    assert max(later) < 1
    assert list(later) == sorted(later, reverse=True)
    assert found.best_draft_len == 0
    assert found.best_speedup == 1.0
    assert found.break_even_rate == pytest.approx(1.0)


@given(
    rates=st.lists(RATES, min_size=1, max_size=9),
    draft=COSTS,
    per_row=COSTS,
    limit=st.integers(1, 9),
)
def test_the_optimum_is_that_of_brute_force(
    rates: list[float], draft: float, per_row: float, limit: int
) -> None:
    """Catches a search that stops at the first draft length which is worse than the one before."""
    best, best_len = Fraction(1), 0
    expected, survival = Fraction(1), Fraction(1)
    for length, rate in enumerate(rates[:limit], start=1):
        survival *= Fraction(rate)
        expected += survival
        value = expected / (length * Fraction(draft) + 1 + Fraction(per_row) * length)
        if value > best * (1 + Fraction(1, 10**12)):
            best, best_len = value, length
    regime = Regime("r", ConstantCost(draft_per_token=draft, per_row=per_row))
    found = outlook(MeasuredRates.from_conditional(rates), regime, limit)
    assert found.best_speedup == pytest.approx(float(best), rel=1e-9)
    assert found.speedups[best_len] == pytest.approx(found.best_speedup, rel=1e-9)


def test_a_dip_does_not_hide_the_optimum() -> None:
    """Catches hill climbing: verify costs are a staircase."""
    regime = Regime("stairs", ConstantCost(verify=(1.9, 1.9, 1.9, 1.9)))
    assert outlook(ConstantRate(0.9), regime, 4).best_draft_len == 4
    regime = Regime("stairs", ConstantCost(verify=(1.0, 2.5, 1.1)))
    assert outlook(ConstantRate(0.9), regime, 3).best_draft_len == 3


@given(draft=COSTS, per_row=COSTS, draft_len=st.integers(1, 12))
def test_break_even_is_where_the_speedup_is_one(
    draft: float, per_row: float, draft_len: int
) -> None:
    """Catches a root on the wrong side, and a rate promised where none is enough."""
    cost = ConstantCost(draft_per_token=draft, per_row=per_row)
    rate = break_even_rate(cost, draft_len)
    if rate is None:
        assert speedup(ConstantRate(1.0), cost, draft_len) < 1
    elif rate > 0:
        assert speedup(ConstantRate(rate), cost, draft_len) == pytest.approx(1, abs=1e-9)
    else:
        assert speedup(ConstantRate(0.0), cost, draft_len) >= 1 - 1e-12


def test_a_batch_needs_more_acceptance_the_more_its_rows_cost() -> None:
    """Catches a break-even that is that of the longest draft instead of the best."""
    rates = []
    for per_row in (0.0, 0.2, 0.6):
        cost = ConstantCost(draft_per_token=0.05, per_row=per_row)
        rate = outlook(ConstantRate(0.5), Regime("r", cost), 8).break_even_rate
        assert rate is not None
        rates.append(rate)
    assert rates[0] == pytest.approx(0.05)
    assert rates == sorted(rates)


def test_counts_know_the_rounds_that_sent_less() -> None:
    """Catches rates taken for survivals: half the rounds here draft nothing."""
    model = MeasuredRates.from_counts([3, 1], [4, 2], 8)
    assert expected_tokens(model, 2) == 1.5
    assert expected_rows(model, 2) == 1.75
    assert expected_tokens(model, 1) == 1.375
    assert speedup(model, ConstantCost(per_row=1.0), 2) == 1.5 / 1.75
    assert model.max_draft_len == 2


def test_conditional_rates_multiply() -> None:
    """Catches marginal rates taken for conditional ones."""
    model = MeasuredRates.from_conditional([0.9, 0.8, 0.7])
    assert model.survival(3) == pytest.approx(0.504)
    assert len(outlook(model, Regime("r", ConstantCost()), 9).speedups) == 4


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), float("inf")])
def test_what_is_no_chance_is_refused(rate: float) -> None:
    """Catches a rate given in percent."""
    with pytest.raises(ConfigError, match="chance"):
        ConstantRate(rate)
    with pytest.raises(ConfigError, match="position 2"):
        MeasuredRates.from_conditional([0.5, rate])


def test_impossible_numbers_are_refused() -> None:
    """Catches negative costs and counts that no run gives."""
    with pytest.raises(ConfigError, match="draft_per_token"):
        ConstantCost(draft_per_token=-0.1)
    with pytest.raises(ConfigError, match="draft length 2"):
        ConstantCost(verify=(1.0, 0.0))
    with pytest.raises(ConfigError, match="no acceptance rates"):
        MeasuredRates.from_conditional([])
    for accepted, verified, rounds in (
        ([1], [2], 0),
        ([3], [2], 9),
        ([1, 1], [1, 2], 9),
        ([], [], 3),
    ):
        with pytest.raises(ConfigError, match="rounds"):
            MeasuredRates.from_counts(accepted, verified, rounds)
