"""What one step did, and what it delivered; the single source for logs, metrics and streams."""

from dataclasses import dataclass, field

from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.outcome import Finish, Origin, TokenLogprobs
from outrider.core.rounds import Round
from outrider.core.trace import StepTimes, StepTrace
from outrider.tensor.shapes import Hidden


@dataclass(frozen=True, slots=True)
class Delta:
    """What a request gained in a step. `text` may lag behind `tokens`: see engine/detokenize.py."""

    request_id: RequestId
    tokens: tuple[int, ...]
    text: str
    origins: tuple[Origin, ...]
    sources: tuple[str | None, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish: Finish | None
    features: Hidden | None = None
    """With the last delta of a request whose engine records features; see engine/features.py."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One engine tick over a batch. `num_tokens` are the rows of the target's forward.

    `rounds` has one entry per judged row that yielded a token; `context_len` is how many tokens a
    row of the forward saw, on average.
    """

    num_requests: int = 0
    num_tokens: int = 0
    num_preemptions: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    deltas: tuple[Delta, ...] = ()
    rounds: tuple[Round, ...] = ()
    context_len: float = 0.0
    times: StepTimes = field(default_factory=StepTimes)

    def trace(self) -> StepTrace:
        """Give what is worth keeping of the step."""
        return StepTrace(
            self.num_requests, self.num_tokens, self.context_len, self.times, self.rounds
        )
