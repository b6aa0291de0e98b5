"""The last steps in a few numbers each, for whoever looks at the server while it runs."""

from dataclasses import dataclass
from typing import Self

from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.report import StepReport


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step. `time` is its end on the driver's clock, `rows` are tokens of its forward.

    `requests` were in it, `waiting` were not; `verify_lengths` has one entry per round. `tokens`
    were delivered. `predicted_seconds` is None without a cost table.
    """

    time: float
    rows: int
    requests: int
    waiting: int
    verify_lengths: tuple[int, ...]
    drafted: int
    verified: int
    accepted: int
    tokens: int
    context_len: float
    predicted_seconds: float | None
    seconds: float
    forward_seconds: float
    policy: str

    @classmethod
    def of(cls, report: StepReport, time: float, engine: Engine, config: EngineConfig) -> Self:
        """Sum up a step that ended at `time`."""
        counts = report.acceptance
        return cls(
            time=time,
            rows=report.num_tokens,
            requests=report.num_requests,
            waiting=engine.num_waiting,
            verify_lengths=tuple(done.verified for done in report.rounds),
            drafted=counts.drafted,
            verified=counts.verified,
            accepted=counts.accepted,
            tokens=counts.delivered,
            context_len=report.context_len,
            predicted_seconds=report.times.predicted_seconds,
            seconds=report.times.total,
            forward_seconds=report.times.forward,
            policy=config.length_policy,
        )
