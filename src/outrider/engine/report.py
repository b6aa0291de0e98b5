"""What one step did, and what it delivered; the single source for logs, metrics and streams."""

from dataclasses import dataclass, field

from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.outcome import Finish, Origin, TokenLogprobs
from outrider.core.rounds import Round
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

    `rounds` has one entry per judged row that yielded a token.
    """

    num_requests: int = 0
    num_tokens: int = 0
    num_preemptions: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    deltas: tuple[Delta, ...] = ()
    rounds: tuple[Round, ...] = ()
