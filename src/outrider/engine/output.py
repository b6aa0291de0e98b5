"""What `LLM` gives back."""

from dataclasses import dataclass

from outrider.core.acceptance import Acceptance
from outrider.core.outcome import Origin, TokenLogprobs
from outrider.tensor.shapes import Hidden


@dataclass(slots=True)
class CompletionOutput:
    """One continuation. Times are seconds on the monotonic clock."""

    index: int
    text: str
    token_ids: list[int]
    origins: list[Origin]
    sources: list[str | None]
    """Per token the drafter it came from; None for the target's own."""
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None
    acceptance: Acceptance
    num_cached_tokens: int
    arrival_time: float
    first_token_time: float
    finish_time: float
    features: Hidden | None = None
    """With `feature_taps`: the tapped outputs of every computed token of prompt and continuation,
    a bfloat16 row each, layers side by side. The last token was usually not computed."""


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its continuations, in the order of their index."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What one continuation gained in one step."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    sources: tuple[str | None, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str | None
