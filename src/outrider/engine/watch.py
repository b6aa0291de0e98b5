"""How long the stages of a step take."""

from outrider.core.step_cost import Clock
from outrider.core.trace import StepTimes
from outrider.schedule.planner import Plan


class Watch:
    """Reads the clock between the stages of a step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = self._last = clock()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self._last = self._last, self._clock()
        return self._last - before

    def times(self, plan: Plan, forward_seconds: float, drift: float) -> StepTimes:
        """Sum the step up, at its end."""
        return StepTimes(
            draft=plan.step.shape.draft_seconds,
            forward=forward_seconds,
            total=self._clock() - self._started,
            predicted_tokens=plan.tokens,
            predicted_seconds=plan.seconds,
            drift=drift,
        )
