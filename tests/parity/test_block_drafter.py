"""Packed training and drafting one block at a time are the same function.

The drafting side is written out here in the order of decoding: context rows are fused and cached
in pieces as they become known, then one block attends to all of them.
"""

import pytest
import torch
from torch import Tensor

from outrider.drafters.block.config import BlockConfig, MarkovType
from outrider.drafters.block.network import BlockNetwork, Segment
from outrider.training.dataset import FeaturedDocument
from outrider.training.forward import Trainee, block_rows
from outrider.training.packing import PackedBatch, anchor_candidates, pack
from outrider.training.teacher import Teacher
from tests.block_drafters import random_document, random_network, random_teacher, tiny_config

TOLERANCE = 1e-5


def packed(config: BlockConfig) -> tuple[Trainee, list[FeaturedDocument], PackedBatch]:
    documents = [random_document(23, 5, 1), random_document(9, 2, 2), random_document(31, 20, 3)]
    trainee = Trainee(random_network(config), random_teacher(config))
    # Neighbouring and overlapping blocks, so that a leak between them would show.
    anchors = [anchor_candidates(document.loss_mask) for document in documents]
    return trainee, documents, pack(documents, anchors, config)


def packed_outputs(trainee: Trainee, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
    network = trainee.network
    hidden = block_rows(trainee, batch)
    rows, previous = hidden, None
    if network.markov_head is not None:
        rows = torch.cat((hidden, network.markov_head.features(hidden, batch.previous)), -1)
        previous = network.markov_head.rows_of(batch.previous)
    confidence = None
    if network.confidence_head is not None:
        confidence = network.confidence_head(hidden, previous)
    return rows @ trainee.head.T, confidence


def cached_context(
    network: BlockNetwork, features: Tensor, pieces: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of the rows, computed piece by piece."""
    parts, start = [], 0
    for piece in pieces:
        rows = network.fuse(features[start : start + piece])
        parts.append(network.context_keys_values(rows, torch.arange(start, start + piece)))
        start += piece
    return [
        (torch.cat(keys), torch.cat(values))
        for keys, values in (zip(*layer, strict=True) for layer in zip(*parts, strict=True))
    ]


def drafted_outputs(
    network: BlockNetwork,
    teacher: Teacher,
    document: FeaturedDocument,
    anchor: int,
    pieces: list[int],
) -> tuple[Tensor, Tensor]:
    """Logits and confidences of one block, with the document's tokens as the drafted ones."""
    config = network.config
    width = len(config.target_layer_ids) * config.hidden_size
    context = cached_context(network, document.features[:anchor, :width], pieces)
    tokens = torch.full((1, config.block_size), config.mask_token_id)
    tokens[0, 0] = document.tokens[anchor]
    positions = anchor + torch.arange(config.block_size)[None]
    hidden = network(teacher.embedding[tokens], positions, context, [Segment(0, anchor, 0, 1)])[0]
    if config.layout == "anchor-drop":
        hidden = hidden[1:]
    head = teacher.draft_head
    markov, logits, confidences = network.markov_head, [], []
    state = None if markov is None else markov.initial_state(hidden[:1])
    for slot in range(min(len(hidden), len(document.tokens) - anchor)):
        previous = document.tokens[anchor + slot][None]
        row = hidden[slot : slot + 1]
        logit = row @ head.T
        if markov is not None and state is not None:
            features, state = markov.step(row, previous, state)
            logit = logit + features @ markov.markov_w2.weight.T
        logits.append(logit)
        if network.confidence_head is not None:
            rows = None if markov is None else markov.rows_of(previous)
            confidences.append(network.confidence_head(row, rows))
    return torch.cat(logits), torch.cat(confidences) if confidences else torch.zeros(0)


def pieces_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    pieces: list[int] = []
    while (left := length - sum(pieces)) > 0:
        pieces.append(int(torch.randint(1, left + 1, (1,), generator=generator)))
    return pieces


@pytest.mark.parametrize("layout", ["anchor-first", "anchor-drop"])
@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn", None])
@pytest.mark.parametrize("confidence", [True, False])
def test_packed_training_equals_drafting(
    layout: str, markov: MarkovType | None, confidence: bool
) -> None:
    config = tiny_config(
        layout=layout,
        markov_rank=0 if markov is None else 6,
        markov_type=markov or "vanilla",
        has_confidence_head=confidence,
    )
    trainee, documents, batch = packed(config)
    all_logits, all_confidence = packed_outputs(trainee, batch)
    for segment, document in zip(batch.segments, documents, strict=True):
        candidates = anchor_candidates(document.loss_mask).tolist()
        for index, anchor in enumerate(candidates):
            logits, confidences = drafted_outputs(
                trainee.network, trainee.teacher, document, anchor, pieces_of(anchor, index)
            )
            block = segment.first_block + index
            torch.testing.assert_close(
                all_logits[block, : len(logits)], logits, rtol=0, atol=TOLERANCE
            )
            if all_confidence is not None:
                torch.testing.assert_close(
                    all_confidence[block, : len(logits)], confidences, rtol=0, atol=TOLERANCE
                )


def test_confidence_without_markov_features_is_the_same_both_ways() -> None:
    config = tiny_config(confidence_with_markov=False)
    trainee, documents, batch = packed(config)
    _, confidence = packed_outputs(trainee, batch)
    assert confidence is not None
    _, drafted = drafted_outputs(trainee.network, trainee.teacher, documents[0], 9, [4, 5])
    torch.testing.assert_close(confidence[9 - 5], drafted, rtol=0, atol=TOLERANCE)
