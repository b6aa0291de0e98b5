"""A run of tokens to compute for one sequence, and what computing it gave."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.ids import BlockId
from outrider.tensor.shapes import Hidden, Logits


@dataclass(frozen=True, slots=True)
class Span:
    """`tokens` at positions from `kv_len` on, cached through `block_table`.

    The last `num_judged` of them need logits.
    """

    tokens: Sequence[int]
    kv_len: int
    block_table: Sequence[BlockId]
    num_judged: int

    @property
    def context_len(self) -> int:
        """Positions the last token sees, itself included."""
        return self.kv_len + len(self.tokens)


@dataclass(frozen=True, slots=True)
class SpanScores:
    """One forward over spans.

    `logits` holds the judged rows of all spans in order, `features` a row per token if tapped.
    """

    logits: Logits
    features: Hidden | None
