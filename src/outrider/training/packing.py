"""Documents to batches: anchors are drawn, every block gets its labels, nothing leaks.

A batch is some whole documents side by side. Each document is its own segment, so that blocks see
the context of their document alone, and of it only what lies strictly before their anchor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.network import Segment
from outrider.training.dataset import FeaturedDocument


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """Blocks over the context rows of some documents.

    Draft j of a block with its anchor at position a stands for the token at a + j + 1; the token
    before it and the target's features that predict it are at a + j, in both layouts. `following`
    is the document's next token, at its end the last one. `judged` lists context rows whose
    distribution is needed, `teacher` points into it.
    """

    features: Float[Tensor, "context taps_hidden"]
    positions: Int[Tensor, " context"]
    following: Int[Tensor, " context"]
    anchors: Int[Tensor, " blocks"]
    block_positions: Int[Tensor, "blocks slots"]
    previous: Int[Tensor, "blocks drafts"]
    labels: Int[Tensor, "blocks drafts"]
    is_supervised: Bool[Tensor, "blocks drafts"]
    judged: Int[Tensor, " judged"]
    teacher: Int[Tensor, "blocks drafts"]
    segments: tuple[Segment, ...]

    @property
    def num_blocks(self) -> int:
        """Blocks in the batch."""
        return len(self.anchors)


def anchor_candidates(loss_mask: Bool[Tensor, " tokens"]) -> Int[Tensor, " anchors"]:
    """Positions a block can start at: the target wrote the token and the next one."""
    return torch.nonzero(loss_mask[:-1] & loss_mask[1:]).flatten()


def draw_anchors(
    document: FeaturedDocument, share: float, generator: torch.Generator
) -> Int[Tensor, " anchors"]:
    """A share of the candidates without replacement, at least one of them, in order."""
    candidates = anchor_candidates(document.loss_mask)
    count = min(len(candidates), max(1, round(share * len(candidates))))
    drawn = torch.randperm(len(candidates), generator=generator)[:count]
    return candidates[drawn.sort().values]


def pack(
    documents: Sequence[FeaturedDocument],
    anchors: Sequence[Int[Tensor, " _"]],
    config: BlockConfig,
) -> PackedBatch:
    """Lay documents and their blocks side by side."""
    parts = [
        _blocks_of(document, chosen, config)
        for document, chosen in zip(documents, anchors, strict=True)
    ]
    first_row = first_block = first_judged = 0
    segments, judged, teacher = [], [], []
    for document, chosen, part in zip(documents, anchors, parts, strict=True):
        rows, blocks = len(document.tokens), len(chosen)
        segments.append(
            Segment(first_row, first_row + rows, first_block, first_block + blocks, chosen)
        )
        needed = torch.unique(part.sources[part.is_supervised])
        index = torch.zeros(rows + config.block_size, dtype=torch.int64)
        index[needed] = torch.arange(len(needed)) + first_judged
        judged.append(needed + first_row)
        teacher.append(torch.where(part.is_supervised, index[part.sources], first_judged))
        first_row += rows
        first_block += blocks
        first_judged += len(needed)
    slots = torch.arange(config.block_size)
    return PackedBatch(
        features=torch.cat([document.features for document in documents]),
        positions=torch.cat([torch.arange(len(document.tokens)) for document in documents]),
        following=torch.cat([_following(document.tokens) for document in documents]),
        anchors=torch.cat([part.anchors for part in parts]),
        block_positions=torch.cat(list(anchors))[:, None] + slots,
        previous=torch.cat([part.previous for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        is_supervised=torch.cat([part.is_supervised for part in parts]),
        judged=torch.cat(judged),
        teacher=torch.cat(teacher).clamp(max=max(first_judged - 1, 0)),
        segments=tuple(segments),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    anchors: Int[Tensor, " blocks"]
    sources: Int[Tensor, "blocks drafts"]
    previous: Int[Tensor, "blocks drafts"]
    labels: Int[Tensor, "blocks drafts"]
    is_supervised: Bool[Tensor, "blocks drafts"]


def _blocks_of(
    document: FeaturedDocument, anchors: Int[Tensor, " anchors"], config: BlockConfig
) -> _Blocks:
    length = len(document.tokens)
    sources = anchors[:, None] + torch.arange(config.num_drafts)
    inside = sources + 1 < length
    following = torch.where(inside, sources + 1, 0)
    # A block ends for good at the first token that the target did not write.
    is_supervised = (inside & document.loss_mask[following]).cumprod(1).bool()
    previous = document.tokens[sources.clamp(max=length - 1)]
    return _Blocks(
        anchors=document.tokens[anchors],
        sources=sources,
        previous=previous,
        labels=document.tokens[following],
        is_supervised=is_supervised,
    )


def _following(tokens: Int[Tensor, " tokens"]) -> Int[Tensor, " tokens"]:
    return torch.cat((tokens[1:], tokens[-1:]))
