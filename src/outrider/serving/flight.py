"""One continuation as the engine's thread sees it: its sequence, its times, its rounds."""

from collections import Counter
from collections.abc import Callable

from outrider.core.outcome import FinishReason
from outrider.core.request import Request
from outrider.core.rounds import Round
from outrider.core.sequence import Sequence
from outrider.engine.report import Delta
from outrider.errors import RequestError, RequestFailed
from outrider.serving.failures import Cancelled, ServerStopping
from outrider.serving.metrics import Metrics
from outrider.serving.ticket import End


class Flight:
    """A continuation between its arrival and its end. Times are readings of the driver's clock."""

    def __init__(self, request: Request, arrival: float, clock: Callable[[], float]) -> None:
        """Start; the driver fills in the sequence."""
        self.request = request
        self.arrival = arrival
        self.started = clock()
        self.sequence = Sequence.of(request)
        self.first_token: float | None = None
        self.last_token = 0.0
        self.ended: float | None = None
        self.failure: RequestError | None = None
        self.outcome = "error"
        self.accepted_by_length: Counter[tuple[int, int]] = Counter()

    def give_up(self, error: RequestError) -> None:
        """End without a whole answer."""
        self.failure = error
        self.outcome = "abort" if isinstance(error, Cancelled | ServerStopping) else "error"

    def see_round(self, done: Round) -> None:
        """Count a round that sent a draft to the target."""
        if done.verified:
            self.accepted_by_length[done.verified, done.accepted] += 1

    def see(self, delta: Delta, now: float, metrics: Metrics) -> None:
        """Note when tokens came, and how it ended."""
        if delta.tokens:
            if self.first_token is None:
                self.first_token = now
                metrics.first_token_seconds.observe(now - self.arrival)
                metrics.num_prompt_tokens += self.sequence.num_prompt
                metrics.num_cached_prompt_tokens += self.sequence.num_cached_prompt
            else:
                metrics.inter_token_seconds.observe(now - self.last_token)
            self.last_token = now
        if delta.finish is not None:
            self.ended = now
            if delta.finish.reason is FinishReason.ERROR:
                self.give_up(
                    RequestFailed(
                        f"the request failed after {self.sequence.num_output} tokens: "
                        f"{delta.finish.detail}"
                    )
                )

    def count(self, metrics: Metrics) -> None:
        """Add this continuation, which is over, to the counters."""
        sequence = self.sequence
        if self.failure is not None or sequence.finish is None or self.ended is None:
            metrics.finished[self.outcome] += 1
            return
        metrics.finished[sequence.finish.reason.value] += 1
        metrics.whole_seconds.observe(self.ended - self.arrival)
        metrics.prompt_lengths.observe(sequence.num_prompt)
        metrics.output_lengths.observe(sequence.num_output)
        if self.first_token is not None and sequence.num_output > 1:
            generating = self.last_token - self.first_token
            metrics.per_token_seconds.observe(generating / (sequence.num_output - 1))

    def end(self) -> End:
        """Sum it up."""
        first = None if self.first_token is None else self.first_token - self.arrival
        ended = self.arrival if self.ended is None else self.ended
        return End(
            num_output=self.sequence.num_output,
            num_cached_prompt=self.sequence.num_cached_prompt,
            acceptance=self.sequence.acceptance,
            accepted_by_length=self.accepted_by_length,
            first_token_seconds=first,
            seconds=ended - self.arrival,
            failure=self.failure,
        )
