"""The Target protocol: one forward over a verify window."""

from typing import ClassVar, Protocol

from outrider.models.spec import ModelSpec
from outrider.sampling.rows import RowSampler
from outrider.tensor.window import Scores, Taps, VerifyWindow


class Target(Protocol):
    """The model whose output is preserved.

    `can_roll_back` declares that a draft which was not accepted leaves nothing behind: the caller
    simply continues from a shorter `kv_len`. A target that cannot do that is refused at load.
    `sampler` draws from the logits of `score`, many rows in one call.
    """

    can_roll_back: ClassVar[bool]
    spec: ModelSpec
    sampler: RowSampler

    def score(self, window: VerifyWindow, taps: Taps = ()) -> Scores:
        """Compute every token of the window, write its keys and values, return judged logits."""
        ...
