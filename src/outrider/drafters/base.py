"""The Drafter protocol, and what a drafter is built from."""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import VerifyRule
from outrider.drafters.config import SpeculativeConfig
from outrider.models.checkpoint import Checkpoint
from outrider.tensor.batch import Batch
from outrider.tensor.window import Proposal, Scores, Taps


class Drafter(Protocol):
    """Guesses the tokens after each request's anchor.

    A drafter reads the batch and owns whatever it remembers of each request. It must be able to
    catch up with any sequence from its tokens alone: requests start, are preempted and come back
    without notice.
    """

    max_draft_len: int
    taps: Taps
    """Target layers whose outputs `observe` wants; empty for none."""

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """Propose up to `row.max_draft_len` tokens for each judged row.

        `rule` is the engine's verify rule, used where a request names none: it decides how a
        sampled draft token is drawn (see `sampling.draw.draft_token`).
        """
        ...

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Learn what became of the proposals, and read the tapped features."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """Drop everything about a request; harmless when there is nothing."""
        ...


@dataclass(frozen=True, slots=True)
class DrafterSetting:
    """What a drafter may know of the engine it is built for. `checkpoint` is the target's."""

    options: SpeculativeConfig
    checkpoint: Checkpoint
    dtype: torch.dtype
    device: str
    num_kv_blocks: int
    block_size: int
