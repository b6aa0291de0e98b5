"""What computes a block drafter: features in, draft tokens and confidences out.

The drafter keeps the books (`drafter.py`); a runner holds the weights and the context's keys and
values, paged in the target's blocks: slot of position i = table[i // size] * size + i % size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from jaxtyping import Float
from torch import Tensor

from outrider.core.ids import BlockId
from outrider.core.request import VerifyRule
from outrider.core.sequence import Sequence as Tokens
from outrider.tensor.window import RowProposal

Features = Float[Tensor, "tokens features"]

NUM_CANDIDATES: Final = 64
"""Draft tokens of a slot that are looked at: those with the largest logits before the Markov bias.

The drafter's distribution is that of these tokens alone, and it is the one handed over.
"""


@dataclass(frozen=True, slots=True)
class NewContext:
    """Features of the target at positions from `kv_len` on, one row each, and their blocks."""

    kv_len: int
    block_table: Sequence[BlockId]
    features: Features


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A request to draft up to `num_drafts` tokens for, by the verify rule `rule`.

    Its anchor stands at position `kv_len`; every position before has context.
    """

    sequence: Tokens
    kv_len: int
    block_table: Sequence[BlockId]
    num_drafts: int
    rule: VerifyRule


class BlockRunner(Protocol):
    """Weights of a block drafter and the pool of its context."""

    def draft(self, new: Sequence[NewContext], rows: Sequence[BlockRow]) -> list[RowProposal]:
        """Cache new context, in order, then draft for every row.

        What is drafted for a row does not depend on the others.
        """
        ...
