"""What drafting is worth: tokens per round over the cost of a round (Leviathan et al. 2023, §3.3).

Time is measured in plain steps of the same batch. A round that drafts gamma tokens yields

    E(gamma) = 1 + s_1 + … + s_gamma            s_i: chance that the first i drafts are accepted
             = (1 - a^(gamma+1)) / (1 - a)      where each is accepted with the same chance a

tokens, and costs gamma*c + v_gamma: c per draft token, v_gamma to verify gamma + 1 positions. The
speedup is S(gamma) = E(gamma) / (gamma*c + v_gamma). Plain decoding is gamma = 0: E = v = S = 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Protocol, Self

from outrider.errors import ConfigError

RoundCost = Callable[[int, float], float]
"""Cost of a round in plain steps: of the draft length and the mean rows verified per request."""

MOST_HALVINGS = 60


class AcceptModel(Protocol):
    """Chances by draft position, counted from 1."""

    @property
    def max_draft_len(self) -> int | None:
        """Longest draft it says something about; None for any."""
        ...

    def survival(self, position: int) -> float:
        """Chance that a round accepts this many draft tokens or more, if it may draft as many."""
        ...

    def sent(self, position: int) -> float:
        """Chance that a round sends this many draft tokens or more, if it may draft as many."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """Every draft token is accepted with the same chance, given that all before it were."""

    rate: float

    def __post_init__(self) -> None:
        """Refuse what is no chance.

        Raises:
            ConfigError: The rate is not within 0 to 1.
        """
        _require_chance(self.rate, "the acceptance rate")

    @property
    def max_draft_len(self) -> int | None:
        """No limit."""
        return None

    def survival(self, position: int) -> float:
        """Power of the rate."""
        return float(self.rate**position)

    def sent(self, position: int) -> float:  # noqa: ARG002
        """Every draft has its full length."""
        return 1.0


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Chances as measured; entry i belongs to draft position i + 1."""

    survivals: tuple[float, ...]
    sents: tuple[float, ...]

    @classmethod
    def from_conditional(cls, rates: Sequence[float]) -> Self:
        """Multiply conditional accept rates up; every draft has its full length.

        Raises:
            ConfigError: There is no rate, or one is not within 0 to 1.
        """
        if not rates:
            raise ConfigError("there are no acceptance rates; give at least one")
        for position, rate in enumerate(rates, start=1):
            _require_chance(rate, f"the acceptance rate of position {position}")
        return cls(tuple(accumulate(rates, mul)), (1.0,) * len(rates))

    @classmethod
    def from_counts(
        cls, accepted_at: Sequence[int], verified_at: Sequence[int], rounds: int
    ) -> Self:
        """Divide counts per position by the rounds, those without a draft included.

        Raises:
            ConfigError: There is no round, or the counts are none of `rounds` rounds.
        """
        pairs = list(zip(accepted_at, verified_at, strict=True))
        falls = sorted(verified_at, reverse=True) == list(verified_at)
        if not (rounds > 0 and pairs and falls and all(0 <= a <= v <= rounds for a, v in pairs)):
            raise ConfigError(
                f"{list(accepted_at)} accepted of {list(verified_at)} verified tokens by position "
                f"cannot come from {rounds} rounds; measure again with a drafter that drafts"
            )
        return cls(tuple(a / rounds for a, _ in pairs), tuple(v / rounds for _, v in pairs))

    @property
    def max_draft_len(self) -> int | None:
        """As far as was measured."""
        return len(self.survivals)

    def survival(self, position: int) -> float:
        """As measured."""
        return self.survivals[position - 1]

    def sent(self, position: int) -> float:
        """As measured."""
        return self.sents[position - 1]


def _require_chance(value: float, what: str) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{what} is {value}, but it is a chance and lies within 0 and 1")


def expected_tokens(model: AcceptModel, draft_len: int) -> float:
    """Tokens of a round, the target's own included: E(gamma)."""
    return 1 + sum(model.survival(position) for position in range(1, draft_len + 1))


def expected_rows(model: AcceptModel, draft_len: int) -> float:
    """Positions a round verifies: one and the draft tokens it sends."""
    return 1 + sum(model.sent(position) for position in range(1, draft_len + 1))


def speedup(model: AcceptModel, cost: RoundCost, draft_len: int) -> float:
    """Tokens per time over those of plain decoding: S(gamma); 1 for a draft length of 0."""
    if draft_len == 0:
        return 1.0
    return expected_tokens(model, draft_len) / cost(draft_len, expected_rows(model, draft_len))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantCost:
    """c per draft token, and v from a rule: `verify[i]` for draft length i + 1, else per row.

    `per_row` is what every position behind the first adds: 0 where a step costs the same whatever
    it holds (bound by memory), 1 where its cost is that of its positions (bound by arithmetic).
    """

    draft_per_token: float = 0.0
    draft_per_round: float = 0.0
    per_row: float = 0.0
    verify: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse negative costs.

        Raises:
            ConfigError: One is negative or no number, or verifying costs nothing.
        """
        for name in ("draft_per_token", "draft_per_round", "per_row"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} is {value}, but a cost is a number of 0 or more")
        for draft_len, value in enumerate(self.verify, start=1):
            if not 0 < value < float("inf"):
                raise ConfigError(
                    f"the verify cost of draft length {draft_len} is {value}, but it must be "
                    "above 0; 1 is the time of a plain step"
                )

    def __call__(self, draft_len: int, rows: float) -> float:
        """Cost of a round: gamma * c + v_gamma."""
        verify = self.verify[draft_len - 1] if self.verify else 1 + self.per_row * (rows - 1)
        return self.draft_per_round + self.draft_per_token * draft_len + verify


@dataclass(frozen=True, slots=True)
class Regime:
    """A cost under a name, such as a batch size, and the longest draft it says something about.

    `reading` is the time that prompts take, in plain steps per token of the output. No draft saves
    any of it, so it pulls every speedup towards 1.
    """

    name: str
    cost: RoundCost
    max_draft_len: int | None = None
    reading: float = 0.0

    def speedup(self, model: AcceptModel, draft_len: int) -> float:
        """Speedup of the whole, prompts included: Amdahl's law over S(gamma)."""
        decoding = speedup(model, self.cost, draft_len)
        return (1 + self.reading) / (1 / decoding + self.reading)


@dataclass(frozen=True, slots=True)
class Outlook:
    """One regime: `speedups[i]` is S(i), `break_even[i - 1]` the constant rate with S(i) = 1."""

    regime: str
    speedups: tuple[float, ...]
    break_even: tuple[float | None, ...]

    @property
    def best_draft_len(self) -> int:
        """Draft length of the greatest speedup, the shortest of equals; 0: do not draft."""
        return self.speedups.index(max(self.speedups))

    @property
    def best_speedup(self) -> float:
        """The greatest speedup."""
        return max(self.speedups)

    @property
    def break_even_rate(self) -> float | None:
        """Least constant rate at which some draft length pays; None if none ever does."""
        rates = [rate for rate in self.break_even if rate is not None]
        return min(rates, default=None)


def outlook(model: AcceptModel, regime: Regime, max_draft_len: int) -> Outlook:
    """Compute every draft length up to `max_draft_len`, or as far as model and regime go."""
    limits = [max_draft_len, model.max_draft_len, regime.max_draft_len]
    longest = min(limit for limit in limits if limit is not None)
    lengths = range(1, longest + 1)
    return Outlook(
        regime.name,
        (1.0, *(regime.speedup(model, length) for length in lengths)),
        tuple(break_even_rate(regime.cost, length) for length in lengths),
    )


def break_even_rate(cost: RoundCost, draft_len: int) -> float | None:
    """Constant rate with S(gamma) = 1, drafts of full length; None if even a rate of 1 loses.

    E grows with the rate, from 1 to gamma + 1, so halving the interval finds it.
    """
    price = cost(draft_len, float(draft_len + 1))
    if price <= 1:
        return 0.0
    if price > draft_len + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(MOST_HALVINGS):
        middle = (low + high) / 2
        if sum(middle**i for i in range(draft_len + 1)) < price:
            low = middle
        else:
            high = middle
    return high
