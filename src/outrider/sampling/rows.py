"""Many rows of logits at once → the tokens that matching defines: the protocol, and plain arg-max.

Only options whose effect is the same at every position can be drawn like this; what looks at the
history is warped position by position, see `verify.verifier`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from outrider.core.request import SamplingParams
from outrider.tensor.shapes import Logits

NOT_NUMBERS: Final = -1
"""In place of a token: a logit is NaN or the largest is infinite."""
NONE_LEFT: Final = -2
"""In place of a token: the options leave none."""


@dataclass(frozen=True, slots=True)
class RowRun:
    """Consecutive rows of one request: `logits[first_row]` belongs to output position `position`.

    `seed` is the request's; with the position it fixes the noise of a row. `masks` has one entry
    per row, as in `warp.Context`, or None for no grammar.
    """

    first_row: int
    num_rows: int
    params: SamplingParams
    seed: int
    position: int
    masks: Sequence[bytes] | None = None


class RowSampler(Protocol):
    """Draws many rows in one call; the tokens are those of `warp` and `draw.coupled_token`."""

    def can_draw(self, params: SamplingParams) -> bool:
        """Whether rows under these options can be drawn here."""
        ...

    def draw(self, logits: Logits, runs: Sequence[RowRun]) -> list[int]:
        """Give the tokens of all runs, one after the other; NOT_NUMBERS or NONE_LEFT for none."""
        ...


class ArgmaxSampler:
    """The likeliest token of each row, on any device and in any precision."""

    def can_draw(self, params: SamplingParams) -> bool:
        """See `RowSampler`."""
        return params.is_plain_argmax

    def draw(self, logits: Logits, runs: Sequence[RowRun]) -> list[int]:
        """See `RowSampler`."""
        tops = logits.argmax(-1, keepdim=True)
        is_number = torch.isfinite(logits.gather(-1, tops))
        tokens = torch.where(is_number, tops, NOT_NUMBERS).squeeze(-1).tolist()
        return [
            tokens[row]
            for run in runs
            for row in range(run.first_row, run.first_row + run.num_rows)
        ]
