"""Intervals by resampling prompts."""

import numpy as np
import pytest

from outrider.analysis.bootstrap import Resamples


def test_every_resample_keeps_the_domains_sizes() -> None:
    """Catches prompts drawn across domains, which would let the mix of domains vary."""
    draws = Resamples.draw(["a", "b", "a", "b", "b"], num=200, seed=1)
    assert draws.weights.shape == (200, 5)
    assert (draws.weights[:, [0, 2]].sum(axis=1) == 2).all()
    assert (draws.weights[:, [1, 3, 4]].sum(axis=1) == 3).all()
    assert len(np.unique(draws.weights, axis=0)) > 5


def test_the_seed_decides() -> None:
    """Catches an interval that changes from run to run, or a seed that is ignored."""
    parts, wholes = list(range(20)), [30] * 20
    intervals = [
        Resamples.draw(["d"] * 20, num=300, seed=seed).ratio(parts, wholes) for seed in (4, 4, 5)
    ]
    assert intervals[0] == intervals[1] != intervals[2]


def test_a_ratio_is_of_sums() -> None:
    """Catches a mean of ratios: a prompt of one round would weigh as much as one of a thousand."""
    draws = Resamples.draw(["d", "d"], num=500, seed=0)
    interval = draws.ratio([1, 900], [1, 1000])
    assert interval == (0.9, 1.0)
    heavy = Resamples(np.array([[1.0, 1.0]] * 9), ("d", "d"))
    assert heavy.ratio([1, 900], [1, 1000]) == pytest.approx((901 / 1001, 901 / 1001))


def test_the_mean_over_domains_weighs_them_alike() -> None:
    """Catches a pooled ratio in its place."""
    fixed = Resamples(np.ones((3, 4)), ("a", "a", "b", "b"))
    interval = fixed.mean_ratio([1, 1, 30, 50], [2, 2, 100, 100])
    assert interval == pytest.approx((0.45, 0.45))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Catches an interval of another level, or of rounds where prompts vary.

    400 worlds of 40 prompts, each with a rate of its own; coverage of a 95 % percentile interval is
    a little below that at this size. Limits 90 % and 98 %: deterministic, the seeds are fixed.
    """
    generator = np.random.Generator(np.random.PCG64(7))
    covered = 0
    for world in range(400):
        rates = generator.beta(2, 2, 40)
        accepted = generator.binomial(25, rates)
        draws = Resamples.draw(["d"] * 40, num=200, seed=world)
        interval = draws.ratio(accepted.tolist(), [25] * 40)
        assert interval is not None
        covered += interval[0] <= 0.5 <= interval[1]
    assert 360 <= covered <= 392


def test_what_cannot_be_told_is_none() -> None:
    """Catches an interval of width 0 from one prompt, and NaN from resamples without a round."""
    one = Resamples.draw(["d"], num=50, seed=0)
    assert one.ratio([1], [2]) is None
    two = Resamples.draw(["d", "d"], num=50, seed=0)
    assert two.ratio([1, 0], [2, 0]) is None
    three = Resamples.draw(["d", "d", "d"], num=400, seed=0)
    assert three.ratio([1, 1, 0], [2, 2, 0]) is None
    assert Resamples.draw(["a", "b"], num=9, seed=0).mean_ratio([1, 1], [2, 2]) is None


def test_a_part_keeps_its_draws() -> None:
    """Catches columns mixed up when prompts are picked."""
    draws = Resamples.draw(["a", "b", "a", "b"], num=30, seed=3)
    assert (draws.of_domain("b").weights == draws.weights[:, [1, 3]]).all()
    assert draws.only([True, False, False, True]).domains == ("a", "b")
