"""How good predicted chances are: calibration error, Brier score, area under the ROC curve."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_BINS: Final = 20
"""Equal-width bins of the expected calibration error, as DeepSpec evaluates it."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """Scores of predictions of one event. NaN where they say nothing: no data, or one outcome.

    `ece_floor` is the calibration error to expect of predictions that are exactly right, by chance
    alone: an error near it says that there are too few events to see one. `rms` is the root mean
    square error over bins of equal size, less what chance adds to it: 0 where that explains all.
    """

    num: int
    predicted: float
    observed: float
    ece: float
    ece_floor: float
    rms: float
    brier: float
    auc: float


def reliability(predicted: Floats, happened: Floats) -> Reliability:
    """Score predictions; `happened` is 0 or 1 for each."""
    if not len(predicted):
        nan = float("nan")
        return Reliability(0, nan, nan, nan, nan, nan, nan, nan)
    return Reliability(
        num=len(predicted),
        predicted=float(predicted.mean()),
        observed=float(happened.mean()),
        ece=expected_calibration_error(predicted, happened),
        ece_floor=calibration_error_by_chance(predicted),
        rms=debiased_error(predicted, happened),
        brier=float(((predicted - happened) ** 2).mean()),
        auc=area_under_roc(predicted, happened),
    )


def expected_calibration_error(predicted: Floats, happened: Floats) -> float:
    """Mean distance between predicted and observed chance over bins, weighted by their size."""
    gaps = (len(p) * abs(p.mean() - y.mean()) for p, y in _bins(predicted, happened))
    return float(sum(gaps)) / len(predicted)


def calibration_error_by_chance(predicted: Floats) -> float:
    """Expected error if every event had exactly its predicted chance.

    The gap of a bin is then nearly normal around 0, so its mean size is √(2/π) of its deviation.
    """
    sizes = (
        math.sqrt(2 / math.pi * float((p * (1 - p)).sum())) for p, _ in _bins(predicted, predicted)
    )
    return sum(sizes) / len(predicted)


def debiased_error(predicted: Floats, happened: Floats) -> float:
    """Root mean square calibration error without the part that chance adds.

    The debiased estimator of Kumar, Liang and Ma (2019) over `NUM_BINS` bins of equal size; bins of
    one event say nothing.
    """
    order = np.argsort(predicted, kind="stable")
    excess = 0.0
    for chosen in np.array_split(order, NUM_BINS):
        if len(chosen) > 1:
            observed = float(happened[chosen].mean())
            gap = float(predicted[chosen].mean()) - observed
            by_chance = observed * (1 - observed) / (len(chosen) - 1)
            excess += len(chosen) * (gap * gap - by_chance)
    return math.sqrt(max(0.0, excess / len(predicted)))


def reliability_points(predicted: Floats, happened: Floats) -> list[tuple[float, float, int]]:
    """Mean predicted chance, observed share and size of every bin that is not empty."""
    return [(float(p.mean()), float(y.mean()), len(p)) for p, y in _bins(predicted, happened)]


def area_under_roc(predicted: Floats, happened: Floats) -> float:
    """Chance that an event got a higher prediction than a non-event, ties counting half."""
    num_events = int(happened.sum())
    num_others = len(happened) - num_events
    if not num_events or not num_others:
        return float("nan")
    _, places, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[places]
    rank_sum = float(ranks[happened > 0].sum())
    return (rank_sum - num_events * (num_events + 1) / 2) / (num_events * num_others)


def _bins(predicted: Floats, happened: Floats) -> Iterator[tuple[Floats, Floats]]:
    numbers = np.minimum((predicted * NUM_BINS).astype(int), NUM_BINS - 1)
    for number in np.unique(numbers):
        chosen = numbers == number
        yield predicted[chosen], happened[chosen]
