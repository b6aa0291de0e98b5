"""What a run would have brought with other verify lengths: every fixed length, and the best.

The verdict on a draft token does not depend on how far the others were verified, so one trace
answers for all lengths it covers. Steps are priced by a step cost table, all of them, the recorded
ones too, so that policies are compared on the same ruler. Rounds are taken as they came: a
different length would have moved later rounds to other places of the text, which is left out.

Where a draft was cut and all that was verified was accepted, nobody knows how far the rest would
have held; lengths beyond are credited at the conditional rates seen at those positions, and
`censored` says how many rounds that is. A trace recorded with length policy `fixed` has none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from outrider.core.acceptance import Acceptance
from outrider.core.rounds import Round
from outrider.core.trace import StepTrace
from outrider.errors import ConfigError
from outrider.schedule.cost import StepCost
from outrider.schedule.search import expected_throughput, highest, lengths_of, likeliest


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to choose lengths: its expected tokens, priced seconds and verified draft tokens."""

    name: str
    tokens: float
    seconds: float
    verified: int
    accepted: float

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def wasted(self) -> float:
        """Share of the verified draft tokens that was not accepted; 0 where none was verified."""
        return 1 - self.accepted / self.verified if self.verified else 0.0


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Fixed lengths 0, 1, …, the run itself and the oracle, over the same steps."""

    fixed: tuple[Alternative, ...]
    actual: Alternative
    oracle: Alternative
    num_steps: int
    censored: int
    rounds: int
    prediction_error: float | None
    """Median of |predicted - observed| / observed seconds over the steps; None if none was."""

    @property
    def best_fixed(self) -> Alternative:
        """The fixed length of the highest throughput."""
        return max(self.fixed, key=lambda each: each.throughput)

    @property
    def regret(self) -> float:
        """Share of the oracle's throughput that the run missed."""
        return 1 - self.actual.throughput / self.oracle.throughput


def counterfactual(steps: Iterable[StepTrace], cost: StepCost, longest: int) -> Counterfactual:
    """Price a trace at other lengths, up to `longest`. Steps that yield no token are left out.

    Raises:
        ConfigError: No step of the trace yields a token.
    """
    listed = [step for step in steps if step.rounds]
    if not listed:
        raise ConfigError("no step of the trace yielded a token; record a longer run")
    rates = _conditional_rates(listed)
    priced = [_Priced.of(step, cost, rates, longest) for step in listed]
    rounds = [each for step in listed for each in step.rounds]
    errors = [
        abs(step.times.predicted_seconds - step.times.total) / step.times.total
        for step in listed
        if step.times.predicted_seconds is not None and step.times.total > 0
    ]
    return Counterfactual(
        fixed=tuple(
            _sum(f"fixed {length}", [each.fixed(length) for each in priced])
            for length in range(longest + 1)
        ),
        actual=_sum("this run", [each.actual() for each in priced]),
        oracle=_sum("oracle", [each.oracle() for each in priced]),
        num_steps=len(listed),
        censored=sum(map(_is_censored, rounds)),
        rounds=len(rounds),
        prediction_error=median(errors) if errors else None,
    )


def _is_censored(each: Round) -> bool:
    return each.accepted == each.verified < each.drafted


def _conditional_rates(steps: Sequence[StepTrace]) -> list[float]:
    counts = Acceptance()
    for step in steps:
        for each in step.rounds:
            counts.record(
                drafted=each.drafted,
                verified=each.verified,
                accepted=each.accepted,
                delivered=each.delivered,
            )
    return [rate if rate == rate else 0.0 for rate in counts.conditional_accept_rates]


@dataclass(frozen=True, slots=True)
class _Priced:
    """One step: what each row would gain from every length, and what windows cost."""

    step: StepTrace
    gains: list[list[float]]
    """Per row and draft position, the chance that everything up to it is accepted."""
    cost: StepCost

    @classmethod
    def of(cls, step: StepTrace, cost: StepCost, rates: Sequence[float], longest: int) -> "_Priced":
        return cls(step, [_gains(each, rates, longest) for each in step.rounds], cost)

    @property
    def num_known(self) -> int:
        return self.step.num_tokens - sum(each.verified for each in self.step.rounds)

    def fixed(self, length: int) -> Alternative:
        lengths = [min(length, len(own)) for own in self.gains]
        # Somebody who verifies nothing would not have drafted.
        return self._at(lengths, is_drafting=length > 0)

    def actual(self) -> Alternative:
        rounds = self.step.rounds
        return self._at([each.verified for each in rounds], is_drafting=True)

    def oracle(self) -> Alternative:
        """Choose lengths knowing the verdicts, drafting for free only where nobody needs it."""
        falling = likeliest(self.gains)
        curve = self.cost.forward_curve(self.step.context_len, self.num_known + len(falling))
        host = self.cost.host(len(self.gains))
        known, draft = self.num_known, self.step.times.draft
        seconds = [host + draft + curve[known + count] for count in range(len(falling) + 1)]
        seconds[0] -= draft
        throughput = expected_throughput(falling, float(len(self.gains)), seconds)
        count = highest(throughput)
        return self._at(lengths_of(self.gains, falling, count), is_drafting=count > 0)

    def _at(self, lengths: Sequence[int], *, is_drafting: bool) -> Alternative:
        accepted = sum(sum(own[:length]) for own, length in zip(self.gains, lengths, strict=True))
        rows = self.num_known + sum(lengths)
        seconds = self.cost.step(rows, len(self.gains), self.step.context_len)
        if is_drafting:
            seconds += self.step.times.draft
        return Alternative("", len(self.gains) + accepted, seconds, sum(lengths), accepted)


def _gains(each: Round, rates: Sequence[float], longest: int) -> list[float]:
    gains = [float(position < each.accepted) for position in range(each.verified)]
    if _is_censored(each):
        survival = 1.0
        for position in range(each.verified, each.drafted):
            survival *= rates[position] if position < len(rates) else 0.0
            gains.append(survival)
    else:
        gains += [0.0] * (each.drafted - each.verified)
    return gains[: max(longest, each.verified)]


def _sum(name: str, parts: Sequence[Alternative]) -> Alternative:
    return Alternative(
        name,
        tokens=sum(each.tokens for each in parts),
        seconds=sum(each.seconds for each in parts),
        verified=sum(each.verified for each in parts),
        accepted=sum(each.accepted for each in parts),
    )
