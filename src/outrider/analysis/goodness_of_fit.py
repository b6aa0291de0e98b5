"""A chi-square test of uniform numbers, with its false-alarm rate and what it can detect.

Pearson's statistic over equal bins is chi-square distributed under the hypothesis, and noncentral
chi-square with noncentrality n·w² under bins of probabilities 1/k + d(i), where
w² = k · Σ d(i)² (Cohen 1988, chapter 7).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

BINS: Final = 16
FALSE_ALARM: Final = 1e-4
POWER: Final = 0.9
_BISECTIONS: Final = 60
_POISSON_DEVIATIONS: Final = 12
_LARGEST: Final = 1e6


@dataclass(frozen=True, slots=True)
class UniformTest:
    """The outcome for `count` numbers of which `observed[i]` fell into bin i of [0, 1)."""

    observed: tuple[int, ...]

    @classmethod
    def of(cls, numbers: Sequence[float], bins: int = BINS) -> "UniformTest":
        """Count numbers from [0, 1]."""
        found = Counter(min(int(number * bins), bins - 1) for number in numbers)
        return cls(tuple(found[index] for index in range(bins)))

    @property
    def count(self) -> int:
        """Numbers that were counted."""
        return sum(self.observed)

    @property
    def statistic(self) -> float:
        """Pearson's statistic; 0 without numbers."""
        if not self.count:
            return 0.0
        expected = self.count / len(self.observed)
        return sum((found - expected) ** 2 for found in self.observed) / expected

    @property
    def threshold(self) -> float:
        """What the statistic exceeds with probability `FALSE_ALARM` if the numbers are uniform."""
        freedom = len(self.observed) - 1
        return _root(lambda x: FALSE_ALARM - chi_square_tail(x, freedom))

    @property
    def p_value(self) -> float:
        """Chance of at least this statistic if the numbers are uniform."""
        return chi_square_tail(self.statistic, len(self.observed) - 1)

    @property
    def passed(self) -> bool:
        """Whether the numbers may be uniform."""
        return self.statistic <= self.threshold

    @property
    def detectable(self) -> float:
        """Probability moved from half of the bins to the others that is found with chance `POWER`.

        A deviation that is concentrated in few bins is found when it is smaller; one that moves
        nothing from bin to bin is never found.
        """
        if not self.count:
            return 1.0
        freedom, threshold = len(self.observed) - 1, self.threshold
        noncentrality = _root(lambda x: noncentral_tail(threshold, freedom, x) - POWER)
        return min(1.0, math.sqrt(noncentrality / self.count) / 2)

    def record(self) -> dict[str, Any]:
        """Give everything for JSON."""
        return {
            "tokens": self.count,
            "bins": list(self.observed),
            "statistic": self.statistic,
            "threshold": self.threshold,
            "p_value": self.p_value,
            "false_alarm": FALSE_ALARM,
            "power": POWER,
            "detectable": self.detectable,
            "passed": self.passed,
        }


def chi_square_tail(value: float, freedom: int) -> float:
    """Chance that a chi-square number of `freedom` degrees exceeds `value`."""
    parts = torch.tensor([freedom / 2, max(value, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(parts[0], parts[1]))


def noncentral_tail(value: float, freedom: int, noncentrality: float) -> float:
    """The same for a noncentral number: a Poisson mixture of central ones."""
    mean = noncentrality / 2
    last = int(mean + _POISSON_DEVIATIONS * math.sqrt(mean + 1)) + 1
    total = 0.0
    for term in range(last):
        weight = math.exp(term * math.log(mean) - mean - math.lgamma(term + 1)) if mean else 1.0
        total += weight * chi_square_tail(value, freedom + 2 * term)
        if not mean:
            break
    return total


def _root(rises: Callable[[float], float]) -> float:
    """Where a rising function crosses 0, by bisection."""
    low, high = 0.0, 1.0
    while rises(high) < 0 and high < _LARGEST:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < 0 else (low, middle)
    return high
