"""One step's decisions about drafts: who makes them, how many are verified, what came of it.

Joins the parts that know one thing each: `rationing` who should draft, `confidence` how likely a
draft holds, `cost` what a step takes, and the length policy, which weighs the last two.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Final, NamedTuple

from outrider.core.ids import RequestId
from outrider.core.price import DraftPrice
from outrider.schedule.confidence import Drift, Estimator, PositionRates, Said
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import BatchShape, LengthPolicy
from outrider.schedule.rationing import Rationing
from outrider.schedule.search import expected_throughput, highest
from outrider.schedule.surcharge import Surcharge

logger = logging.getLogger(__name__)

MOST_DELAY: Final = 2.0
"""Drafting that took longer than so many times its measured cost was held up by other work."""


class DraftedRow(NamedTuple):
    """A row with what its drafter says; `was_asked` is False where it was not to draft."""

    request_id: RequestId
    said: Said
    was_asked: bool


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """A step between its drafts and its forward; rows in batch order."""

    rows: tuple[DraftedRow, ...]
    shape: BatchShape


@dataclass(frozen=True, slots=True)
class Plan:
    """Verify lengths of a step and what is expected of it.

    `tokens` are the tokens it should emit, `seconds` what it should take, drafting included; None
    without a cost table. `survival` has one entry per draft token of each row. The table gives the
    step `bare` seconds without drafts and `extra` for its drafts, before any surcharge.
    """

    step: DraftedStep
    lengths: list[int]
    survival: list[list[float]]
    tokens: float
    seconds: float | None
    bare: float = 0.0
    extra: float = 0.0


class Planner:
    """Plans steps and learns from them. State of requests is dropped with `forget`."""

    def __init__(
        self,
        policy: LengthPolicy,
        *,
        cost: StepCost | None = None,
        estimator: Estimator | None = None,
    ) -> None:
        """Plan by `policy`.

        Without an estimator, confidences are taken at their word and missing ones for certainty.
        Without a cost table everybody drafts and no fall-back is possible.
        """
        self._policy = policy
        self._cost = cost
        self._estimator = estimator
        self._rationing = Rationing() if cost is not None else None
        self._surcharge = Surcharge()
        self._is_look = False
        self._rates = PositionRates()
        self.drift = Drift()
        self._has_warned = False

    def begin_step(self, num_requests: int) -> None:
        """Start a step of so many requests, before anyone is asked for drafts."""
        if self._rationing is not None:
            self._rationing.begin_step(num_requests)
            self._is_look = self._surcharge.takes_a_look(num_requests)

    def may_draft(self, request_id: RequestId) -> bool:
        """Whether drafts of this request are expected to pay, or are to be tried again."""
        if self._rationing is None:
            return True
        return not self._is_look and self._rationing.may_draft(request_id)

    def price(self, shape: BatchShape) -> DraftPrice | None:
        """Say what drafts cost in a step of this shape; None without a cost table."""
        if self._cost is None:
            return None
        return price_of(self._cost, shape, self._surcharge.factor(shape.num_judged))

    def plan(self, step: DraftedStep) -> Plan:
        """Choose the verify lengths of a step."""
        shape = replace(step.shape, surcharge=self._surcharge.factor(step.shape.num_judged))
        step = replace(step, shape=shape)
        survival = [self._survival(row) for row in step.rows]
        if not any(survival):
            lengths = [0] * len(survival)
        elif self._cost is not None and self._falls_back():
            lengths = self._fixed_lengths(self._cost, step)
        else:
            lengths = self._policy.plan(survival, shape)
        tokens = shape.num_judged + sum(
            sum(own[:length]) for own, length in zip(survival, lengths, strict=True)
        )
        if self._cost is None:
            return Plan(step, lengths, survival, tokens, None)
        bare, extra = _seconds(self._cost, shape, sum(lengths))
        return Plan(step, lengths, survival, tokens, bare + shape.surcharge * extra, bare, extra)

    def learn(self, plan: Plan, accepted: Sequence[int]) -> None:
        """Hear how many of the verified drafts of each row were accepted."""
        if self._rationing is not None:
            self._ration(self._rationing, plan)
        for row, survival, verified, count in zip(
            plan.step.rows, plan.survival, plan.lengths, accepted, strict=True
        ):
            self.drift.add(survival, verified, count)
            self._rates.add(verified, count)
            if self._estimator is not None and row.said.num_drafted:
                self._estimator.learn(row.said, verified, count, row.request_id, survival)

    def hear(self, plan: Plan, seconds: float) -> None:
        """Hear how long the planned step took, from beginning to end."""
        shape = plan.step.shape
        if plan.seconds is None or shape.num_known != shape.num_judged:
            return
        self._surcharge.hear(
            shape.num_judged,
            bare=plan.bare,
            extra=plan.extra if any(row.was_asked for row in plan.step.rows) else 0.0,
            gain=plan.tokens / plan.seconds * plan.bare / shape.num_judged,
            seconds=seconds,
        )

    def forget(self, request_id: RequestId) -> None:
        """Drop a request; harmless when it is not there."""
        if self._rationing is not None:
            self._rationing.forget(request_id)
        if self._estimator is not None:
            self._estimator.forget(request_id)

    def _survival(self, row: DraftedRow) -> list[float]:
        said = row.said
        if self._estimator is not None:
            return self._estimator.survival(said, row.request_id)
        return list(accumulate(said.confidence or [1.0] * said.num_drafted, mul))

    def _ration(self, rationing: Rationing, plan: Plan) -> None:
        """Tell each request that was asked for drafts what they were worth, in tokens."""
        rows, shape = plan.step.rows, plan.step.shape
        num_asked = sum(row.was_asked for row in rows)
        if not num_asked:
            return
        assert self._cost is not None
        assert plan.seconds is not None
        reading = self._cost.reading(shape.num_known, shape.num_judged, shape.context_len)
        price = plan.tokens / (plan.seconds - reading)
        verified = sum(plan.lengths)
        dearer = price * shape.surcharge
        per_token = dearer * (plan.extra - shape.draft_seconds) / verified if verified else 0.0
        drafting = dearer * self._draft_seconds(self._cost, shape, num_asked) / num_asked
        for row, survival, length in zip(rows, plan.survival, plan.lengths, strict=True):
            if row.was_asked:
                gain = sum(survival[:length]) - per_token * length if length else 0.0
                rationing.learn(row.request_id, gain, drafting)

    @staticmethod
    def _draft_seconds(cost: StepCost, shape: BatchShape, num_asked: int) -> float:
        """What drafting took, unless something else was going on."""
        measured = cost.drafting(num_asked)
        return min(shape.draft_seconds, MOST_DELAY * measured or shape.draft_seconds)

    def _falls_back(self) -> bool:
        """Whether estimates are too far off to plan with; says so once."""
        if self.drift.is_bad and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "per verified token %+.2f drafts fewer are accepted than estimated; verify lengths "
                "are fixed while that is so; `outrider calibrate` may help",
                self.drift.gap,
            )
        return self.drift.is_bad

    def _fixed_lengths(self, cost: StepCost, step: DraftedStep) -> list[int]:
        """Give every row the one length that pays best at the rates seen so far.

        It depends on earlier steps and not even on how long these drafts became, since a drafter
        may end a draft at a token it drew: so it does not anticipate.
        """
        rows, shape = step.rows, step.shape
        longest = len(self._rates)
        num_asked = sum(row.was_asked for row in rows)
        counts = [shape.num_known + num_asked * length for length in range(longest + 1)]
        forward = cost.forward_curve(shape.context_len, counts[-1])
        bare = forward[shape.num_known]
        around = shape.draft_seconds + cost.host(shape.num_judged) + bare
        around -= cost.reading(shape.num_known, shape.num_judged, shape.context_len)
        gains = [num_asked * rate for rate in self._rates.survival()]
        seconds = [around + shape.surcharge * (forward[number] - bare) for number in counts]
        best = highest(expected_throughput(gains, shape.num_judged, seconds))
        return [min(row.said.num_drafted, best) for row in rows]


def _seconds(cost: StepCost, shape: BatchShape, num_verified: int) -> tuple[float, float]:
    """Seconds of a step without drafts, and what drafting and so many verified drafts add."""
    bare = cost.step(shape.num_known, shape.num_judged, shape.context_len)
    rows = shape.num_known + num_verified
    whole = cost.step(rows, shape.num_judged, shape.context_len)
    return bare, shape.draft_seconds + whole - bare


def price_of(cost: StepCost, shape: BatchShape, surcharge: float = 1.0) -> DraftPrice:
    """Read from `cost` what drafts add to a step of this shape, `surcharge` times that.

    A row costs the mean over as many as there are judged rows: forwards grow in stairs.
    """
    bare = shape.num_known
    more = bare + max(1, shape.num_judged)
    forward = cost.forward_curve(shape.context_len, more)
    reading = cost.reading(bare, shape.num_judged, shape.context_len)
    return DraftPrice(
        num_judged=shape.num_judged,
        step_seconds=forward[bare] - reading + cost.host(shape.num_judged),
        row_seconds=surcharge * (forward[more] - forward[bare]) / (more - bare),
        draft_seconds=lambda number: surcharge * cost.drafting(number),
    )
