"""The Drafter protocol, and what a drafter is built from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import VerifyRule
from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.runner import BlockRunner
from outrider.drafters.config import SpeculativeConfig
from outrider.models.checkpoint import Checkpoint
from outrider.models.spec import ModelSpec
from outrider.tensor.batch import Batch
from outrider.tensor.span import Span, SpanScores
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


class SpanScorer(Protocol):
    """A loaded model with a paged KV pool, as drafters use one; `target.TorchTarget` is one."""

    spec: ModelSpec

    def score_spans(self, spans: Sequence[Span], taps: Taps = ()) -> SpanScores:
        """Compute spans in one forward."""
        ...


@dataclass(frozen=True, slots=True)
class DrafterSetting:
    """What a drafter may know of the engine it is built for.

    `checkpoint` is the target's. `load` makes a model out of another checkpoint, with a KV pool of
    `num_kv_blocks` blocks of `block_size` tokens. `load_block` puts a block drafter's network
    beside the target's embedding and head, with a pool of that size for its context.
    """

    options: SpeculativeConfig
    checkpoint: Checkpoint
    load: Callable[[Checkpoint], SpanScorer]
    load_block: Callable[[BlockCheckpoint], BlockRunner]
    num_kv_blocks: int
    block_size: int
