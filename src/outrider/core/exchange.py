"""What a load generator sends to a server, and what it notes about each request."""

from dataclasses import dataclass, field

Message = dict[str, str]
"""`role` and `content`, as in OpenAI's chat interface."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one user says. The server's own answers are put between the turns."""

    id: str
    turns: tuple[str, ...]
    opening: tuple[Message, ...] = ()
    """Messages before the first turn: instructions, a recorded history."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer as a client saw it. Times are seconds on the client's clock."""

    conversation: str
    turn: int
    wanted: float
    """When it was due; it is sent later where the concurrency is limited."""
    sent: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    """Arrivals of the pieces that brought text; a piece may hold several tokens."""
    ended: float = 0.0
    """Arrival of the last piece, with text or with the finish reason."""
    text: str = ""
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    reason: str | None = None
    """What kind of failure `error` is, in few words that failures can be counted by."""
    retries: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the answer came whole."""
        return self.error is None

    @property
    def num_output(self) -> int:
        """Generated tokens: as the server says, else one per piece."""
        return len(self.chunk_times) if self.output_tokens is None else self.output_tokens

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first text; to the end where there was no text."""
        return (self.chunk_times[0] if self.chunk_times else self.ended) - self.sent

    @property
    def e2el(self) -> float:
        """Seconds from sending to the last piece."""
        return self.ended - self.sent

    @property
    def queued(self) -> float:
        """Seconds it waited in the client for its turn."""
        return self.sent - self.wanted

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first; None for a single token."""
        return (self.e2el - self.ttft) / (self.num_output - 1) if self.num_output > 1 else None

    def fail(self, reason: str, error: str, now: float) -> None:
        """Note why there is no whole answer."""
        self.reason, self.error, self.ended = reason, error, now
