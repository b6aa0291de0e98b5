"""Confidence intervals of ratios of sums, by resampling prompts within their domains.

Rounds of one prompt resemble each other, so prompts are the unit that is drawn again (Efron &
Tibshirani, "An Introduction to the Bootstrap", chapter 13: percentile intervals).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
Interval = tuple[float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resamples:
    """`weights[r, i]` is how often prompt i was drawn in resample r.

    Every resample has as many prompts of each domain as there are.
    """

    weights: Floats
    domains: tuple[str, ...]

    @classmethod
    def draw(cls, domains: Sequence[str], *, num: int, seed: int) -> Self:
        """Draw `num` times from the prompts, whose domains are given in their order."""
        generator = np.random.Generator(np.random.PCG64(seed))
        names = np.array(domains)
        weights = np.zeros((num, len(domains)))
        for name in dict.fromkeys(domains):
            own = np.flatnonzero(names == name)
            weights[:, own] = generator.multinomial(len(own), np.full(len(own), 1 / len(own)), num)
        return cls(weights, tuple(domains))

    def of_domain(self, name: str) -> "Resamples":
        """Keep the prompts of one domain."""
        return self.only([domain == name for domain in self.domains])

    def only(self, kept: Sequence[bool]) -> "Resamples":
        """Keep the prompts marked True, as often as they were drawn."""
        domains = tuple(name for name, is_kept in zip(self.domains, kept, strict=True) if is_kept)
        return Resamples(self.weights[:, np.array(kept, dtype=bool)], domains)

    def ratio(self, parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
        """Interval of sum(parts) / sum(wholes), one of each per prompt.

        None where it cannot be told: fewer than two prompts have a whole, or some resample has
        none.
        """
        return _percentiles(self._ratios(parts, wholes)) if _is_enough(wholes) else None

    def mean_ratio(self, parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
        """Interval of the mean over domains of each domain's ratio; None as in `ratio`."""
        names = dict.fromkeys(self.domains)
        columns = []
        for name in names:
            own = [i for i, domain in enumerate(self.domains) if domain == name]
            if not _is_enough([wholes[i] for i in own]):
                return None
            domain = self.of_domain(name)
            columns.append(domain._ratios([parts[i] for i in own], [wholes[i] for i in own]))
        return _percentiles(np.mean(columns, axis=0))

    def _ratios(self, parts: Sequence[float], wholes: Sequence[float]) -> Floats:
        denominators = self.weights @ np.asarray(wholes, dtype=np.float64)
        numerators = self.weights @ np.asarray(parts, dtype=np.float64)
        ratios = np.full(len(denominators), np.nan)
        np.divide(numerators, denominators, out=ratios, where=denominators > 0)
        return ratios


def _is_enough(wholes: Sequence[float]) -> bool:
    return sum(whole > 0 for whole in wholes) > 1


def _percentiles(values: Floats) -> Interval | None:
    if np.isnan(values).any():
        return None
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
