"""What a round did to each request, and how a request ended."""

from dataclasses import dataclass
from enum import StrEnum

from outrider.core.ids import BlockId, RequestId


class Origin(StrEnum):
    """Where a delivered token came from."""

    ACCEPTED = "accepted"
    """A draft token the target agreed to."""
    RECOVERED = "recovered"
    """The target's token after a rejected draft."""
    BONUS = "bonus"
    """The target's token after all drafts were accepted."""
    TARGET = "target"
    """The target's token in a round that verified no draft."""


class FinishReason(StrEnum):
    """Why a request ended; `stop` and `length` as in the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finish:
    """How a request ended. `detail` is the stop token, the stop string or the error's sentence."""

    reason: FinishReason
    detail: int | str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of a delivered token under the raw logits, and of the likeliest tokens.

    `rank` is 1 for the most likely token. `top` is sorted by falling log-probability.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """One request after one round.

    `committed` are the tokens appended to the sequence (accepted drafts and the added token, cut by
    the stop rules); `accepted` counts as judged, before any stop rule. The `num_cached` tokens that
    this round computed and kept stand at positions from `kv_len` on, cached through `block_table`.
    """

    request_id: RequestId
    num_cached: int
    drafted: int
    verified: int
    accepted: int
    committed: tuple[int, ...]
    is_finished: bool
    kv_len: int = 0
    block_table: tuple[BlockId, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """All rows of one step, in batch order, those that only read prompt included."""

    rows: tuple[RowOutcome, ...]
