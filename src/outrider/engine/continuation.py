"""One continuation of a prompt on its way, as the caller's side of the engine sees it."""

from dataclasses import dataclass, field

from outrider.core.outcome import Finish
from outrider.core.request import Request
from outrider.core.sequence import Sequence
from outrider.engine.output import CompletionOutput, StreamChunk
from outrider.engine.report import Delta
from outrider.sampling.noise import Purpose, mix
from outrider.tensor.shapes import Hidden


def continuation_seed(seed: int, index: int = 0) -> int:
    """Give the seed of the noise of continuation `index` of a request with this `seed`."""
    return mix(Purpose.SEED, seed, index)


@dataclass(slots=True)
class Running:
    """A continuation on its way, with the clock readings only the caller's side knows.

    `inbox` holds what it gained while another call was stepping the engine.
    """

    prompt: str | None
    request: Request
    sequence: Sequence
    arrival: float
    first_token: float = field(default=0.0)
    finish: float = field(default=0.0)
    inbox: list[Delta] = field(default_factory=list)
    features: Hidden | None = None

    def see(self, delta: Delta, now: float) -> None:
        """Take what a step brought, at a reading of the clock."""
        self.inbox.append(delta)
        if delta.tokens and not self.first_token:
            self.first_token = now
        if delta.finish is not None:
            self.finish = now
            self.features = delta.features

    def completion(self) -> CompletionOutput:
        """Give all of it, at its end."""
        sequence = self.sequence
        finish_reason, stop_reason = _reasons(sequence.finish)
        return CompletionOutput(
            index=self.request.index,
            text=sequence.text,
            token_ids=list(sequence.output),
            origins=list(sequence.origins),
            sources=list(sequence.sources),
            logprobs=list(sequence.logprobs) if sequence.params.logprobs is not None else None,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            acceptance=sequence.acceptance,
            num_cached_tokens=sequence.num_cached_prompt,
            arrival_time=self.arrival,
            first_token_time=self.first_token,
            finish_time=self.finish,
            features=self.features,
        )


def chunk_of(request: Request, delta: Delta) -> StreamChunk:
    """Give what a step brought to a request."""
    return StreamChunk(
        request.index,
        delta.text,
        delta.tokens,
        delta.origins,
        delta.sources,
        delta.logprobs,
        _reasons(delta.finish)[0],
    )


def _reasons(finish: Finish | None) -> tuple[str | None, int | str | None]:
    return (None, None) if finish is None else (finish.reason.value, finish.detail)
