"""Acceptance length on held-out documents that the target wrote greedily.

There the document is the target's own greedy text, so that a draft is accepted exactly as far as
it repeats the document. Every position is tried as an anchor at once; the rounds of decoding are
then walked through what was found, which gives their number without decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from outrider.training.dataset import FeaturedDocument
from outrider.training.forward import Trainee, block_rows
from outrider.training.packing import PackedBatch, anchor_candidates, pack


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over documents: rounds, tokens they emitted, and drafts accepted per position.

    `offered[k]` counts rounds whose drafts up to k were all right and whose document went on.
    """

    rounds: int
    emitted: int
    offered: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def mean_accept_length(self) -> float:
        """Tokens per round, the target's own included."""
        return self.emitted / max(self.rounds, 1)

    @property
    def conditional_accept_rates(self) -> list[float]:
        """Chance of each position, given that those before it were accepted."""
        return [
            hits / max(tries, 1) for hits, tries in zip(self.accepted, self.offered, strict=True)
        ]

    def __add__(self, other: "Acceptance") -> "Acceptance":
        """Counts of both."""
        return Acceptance(
            self.rounds + other.rounds,
            self.emitted + other.emitted,
            tuple(map(sum, zip(self.offered, other.offered, strict=True))),
            tuple(map(sum, zip(self.accepted, other.accepted, strict=True))),
        )


@torch.no_grad()
def greedy_drafts(trainee: Trainee, batch: PackedBatch) -> Int[Tensor, "blocks drafts"]:
    """The likeliest draft of every block, each token given the ones drafted before it."""
    hidden = block_rows(trainee, batch)
    markov = trainee.network.markov_head
    previous = batch.anchors
    state = None if markov is None else markov.initial_state(hidden[:, 0])
    drafts = []
    for slot in range(hidden.shape[1]):
        rows = hidden[:, slot]
        if markov is not None:
            assert state is not None
            features, state = markov.step(rows, previous, state)
            rows = torch.cat((rows, features), -1)
        previous = trainee.teacher.draft_ids[(rows @ trainee.head.T).argmax(-1)]
        drafts.append(previous)
    return torch.stack(drafts, 1)


def measure_acceptance(trainee: Trainee, documents: Sequence[FeaturedDocument]) -> Acceptance:
    """Walk the rounds of decoding every document greedily."""
    size = trainee.network.config.num_drafts
    total = Acceptance(0, 0, (0,) * size, (0,) * size)
    for document in documents:
        anchors = anchor_candidates(document.loss_mask)
        if not len(anchors):
            continue
        batch = pack([document], [anchors], trainee.network.config)
        drafts = greedy_drafts(trainee, batch)
        right = ((drafts == batch.labels) & batch.is_supervised).cumprod(1).sum(1)
        total += _walk(anchors.tolist(), right.tolist(), batch.is_supervised.sum(1).tolist(), size)
    return total


def _walk(anchors: list[int], right: list[int], known: list[int], size: int) -> Acceptance:
    """Rounds over one document: each starts at the last token of the round before."""
    found = dict(zip(anchors, zip(right, known, strict=True), strict=True))
    offered, accepted = [0] * size, [0] * size
    rounds = emitted = 0
    position: int | None = anchors[0]
    while position in found:
        hits, left = found[position]
        for slot in range(min(hits + 1, left)):
            offered[slot] += 1
            accepted[slot] += slot < hits
        rounds += 1
        # At the end of the document there is no token of the target's own left to emit.
        emitted += min(hits + 1, left)
        position += hits + 1
    return Acceptance(rounds, emitted, tuple(offered), tuple(accepted))
