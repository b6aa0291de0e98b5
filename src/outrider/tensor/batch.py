"""Who takes part in a step, as the scheduler decided it. Needs no torch.

Position picture of one row (n = len(sequence)):

    tokens   t0 t1 … t(n-2) t(n-1)          the anchor t(n-1) is never cached between rounds
    kv       ■  ■  …   ■      □             kv_len = n-1
    window                    t(n-1) d1 … dL    L+1 rows; row i judges d(i+1), row L adds the bonus
    after    a accepted, one token added    n' = n+a+1      kv_len' = kv_len + a + 1

A prompt is the same picture with more known tokens and no drafts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.core.ids import BlockId
from outrider.core.price import DraftPrice
from outrider.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One request's part of a step.

    `num_known` tokens from `kv_len` on are known but not cached and will be computed now. The row
    may add up to `max_draft_len` draft tokens; `block_table` has room for all of them.
    """

    sequence: Sequence
    kv_len: int
    num_known: int
    max_draft_len: int
    block_table: tuple[BlockId, ...]

    @property
    def is_judged(self) -> bool:
        """Whether the window reaches the anchor, so that this row yields a token."""
        return self.kv_len + self.num_known == len(self.sequence)

    @property
    def known_tokens(self) -> list[int]:
        """The known tokens to compute now."""
        return self.sequence.tokens[self.kv_len : self.kv_len + self.num_known]


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step; empty when nothing can run.

    `price` is what drafts cost in it, where that was measured.
    """

    rows: tuple[BatchRow, ...]
    price: DraftPrice | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.rows)

    def __iter__(self) -> Iterator[BatchRow]:
        """Go through the rows in order."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.rows)
