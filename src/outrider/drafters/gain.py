"""How many tokens a network adds to a cheap draft: fading means, learnt online."""

from dataclasses import dataclass
from typing import Final

FIRST_GAINS: Final = (0.8, 0.6, 0.3, 0.2)
"""Gains assumed before the first round, by whole numbers of promised tokens."""


@dataclass(slots=True)
class FadingMean:
    """A fading mean that begins at a prior worth `prior_weight` values."""

    memory: float
    prior_weight: float
    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """Note a value."""
        self.total = self.total * self.memory + value
        self.weight = self.weight * self.memory + 1

    def fade(self) -> None:
        """Trust the past a little less."""
        self.total *= self.memory
        self.weight *= self.memory

    def value(self, prior: float) -> float:
        """Give the mean."""
        return (self.total + self.prior_weight * prior) / (self.weight + self.prior_weight)


def of_engine() -> FadingMean:
    """A mean over the rounds of all requests."""
    return FadingMean(memory=0.99, prior_weight=20.0)


def of_request() -> FadingMean:
    """A mean over the rounds of one request."""
    return FadingMean(memory=0.9, prior_weight=10.0)


class Gain:
    """What the network adds to the tokens that the cheap draft promises, learnt online.

    One mean per whole number of promised tokens: the more is promised, the less there is to add.
    """

    def __init__(self) -> None:
        """Start at `FIRST_GAINS`."""
        self._means = [of_engine() for _ in FIRST_GAINS]

    def expected(self, promised: float) -> float:
        """Tokens that the network adds to so many promised ones."""
        kind = self._kind(promised)
        return self._means[kind].value(FIRST_GAINS[kind])

    def learn(self, promised: float, gained: float | None) -> None:
        """Note the gain of a round; None where the network was not asked."""
        mean = self._means[self._kind(promised)]
        if gained is None:
            mean.fade()
        else:
            mean.add(gained)

    @staticmethod
    def _kind(promised: float) -> int:
        return min(int(promised), len(FIRST_GAINS) - 1)
