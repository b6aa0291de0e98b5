"""One batch through the drafter, as in decoding but with the data's tokens before every slot."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from outrider.drafters.block.network import BlockNetwork
from outrider.training.candidates import CandidateConfig, choose_candidates
from outrider.training.objectives import (
    CE,
    OVERLAP,
    HeadInputs,
    ObjectiveConfig,
    d_pace_weights,
    head_loss,
    slot_weights,
)
from outrider.training.packing import PackedBatch
from outrider.training.teacher import Teacher

NATIVE_MULTIPLE = 16
"""The native loss goes through a row in steps of this many columns."""

_TINY = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class BatchLoss:
    """The loss to follow, and what it is made of, per slot; zero where nothing is supervised."""

    total: Float[Tensor, ""]
    confidence: Float[Tensor, ""]
    terms: Float[Tensor, "blocks drafts 4"]


class Trainee:
    """A drafter in training, with what it is trained against.

    `head` is [output matrix | markov_w2], kept together for one product: the target's half is
    copied once, the Markov half at every `refresh`. Products are taken in the dtype of the
    teacher's matrices; `machine` is the native one for losses in bfloat16, None for torch, which
    also computes where the native one cannot.
    """

    def __init__(self, network: BlockNetwork, teacher: Teacher, machine: Any | None = None) -> None:
        """Reserve the matrix and fill it."""
        self.network, self.teacher = network, teacher
        rows = (teacher.num_drafted, len(teacher.head))
        self.machine = None if any(size % NATIVE_MULTIPLE for size in rows) else machine
        hidden = network.config.hidden_size
        self.head = torch.empty(
            teacher.num_drafted, hidden + network.config.markov_rank, dtype=teacher.head.dtype
        )
        self.head[:, :hidden] = teacher.draft_head
        self._markov = self.head[:, hidden:]
        self.refresh()

    def refresh(self) -> None:
        """Take over the present `markov_w2`."""
        if self.network.markov_head is not None:
            with torch.no_grad():
                self._markov.copy_(self.network.markov_head.markov_w2.weight)


def block_rows(trainee: Trainee, batch: PackedBatch) -> Float[Tensor, "blocks drafts hidden"]:
    """Rows of the slots that predict something, after the final norm, in the head's dtype."""
    network, embedding = trainee.network, trainee.teacher.embedding
    config = network.config
    dtype = embedding.dtype
    width = config.hidden_size * len(config.target_layer_ids)
    context = network.fuse(batch.features[:, :width].to(dtype))
    keys_values = network.context_keys_values(context, batch.positions)
    tokens = torch.full_like(batch.block_positions, config.mask_token_id)
    tokens[:, 0] = batch.anchors
    rows: Tensor = network(embedding[tokens], batch.block_positions, keys_values, batch.segments)
    return rows[:, config.slots_dropped :]


def batch_loss(
    trainee: Trainee,
    batch: PackedBatch,
    probabilities: Float[Tensor, "judged draft_vocab"],
    objective: ObjectiveConfig,
    candidates: tuple[CandidateConfig, torch.Generator] | None = None,
) -> BatchLoss:
    """Loss of a batch; every term is divided by the sum of the slot weights."""
    network, teacher = trainee.network, trainee.teacher
    hidden = block_rows(trainee, batch)
    rows, markov_w2 = hidden, None
    if network.markov_head is not None:
        markov = network.markov_head.features(hidden, batch.previous)
        rows, markov_w2 = torch.cat((hidden, markov), -1), network.markov_head.markov_w2.weight
    labels = teacher.draft_index[batch.labels]
    labels = torch.where((labels < teacher.num_drafted) & batch.is_supervised, labels, -1)
    inputs = _head_inputs(trainee.head, probabilities, batch, labels.flatten(), candidates)
    flat = rows.flatten(0, 1)
    weights = slot_weights(batch.is_supervised, objective.decay)
    if objective.d_pace is not None:
        with torch.no_grad():
            _, first = head_loss(flat.detach(), None, inputs, trainee.machine)
        ce = first[:, CE].view_as(weights)
        weights = d_pace_weights(ce, batch.is_supervised, objective.d_pace)
    weights = weights / (weights.sum() + _TINY)
    per_term = torch.tensor((objective.ce, objective.l1, objective.kl))
    inputs.weights.copy_(weights.flatten()[:, None] * per_term)
    loss, terms = head_loss(flat, markov_w2, inputs, trainee.machine)
    terms = terms.view(*labels.shape, 4)
    confidence = _confidence_loss(network, hidden, batch, terms[..., OVERLAP], weights)
    return BatchLoss(loss + objective.confidence * confidence, confidence.detach(), terms)


def _head_inputs(
    head: Tensor,
    probabilities: Tensor,
    batch: PackedBatch,
    labels: Tensor,
    candidates: tuple[CandidateConfig, torch.Generator] | None,
) -> HeadInputs:
    weights = torch.zeros(len(labels), 3)
    if candidates is None:
        return HeadInputs(head, probabilities, batch.teacher.flatten(), labels, weights)
    chosen = choose_candidates(probabilities, labels[labels >= 0], *candidates)
    return HeadInputs(
        head[chosen.columns],
        chosen.teacher(probabilities),
        batch.teacher.flatten(),
        torch.where(labels >= 0, chosen.place[labels], -1),
        weights,
        chosen.columns,
        chosen.offset.to(head.dtype),
    )


def _confidence_loss(
    network: BlockNetwork,
    hidden: Tensor,
    batch: PackedBatch,
    overlap: Tensor,
    weights: Tensor,
) -> Tensor:
    if network.confidence_head is None:
        return torch.zeros(())
    previous = None if network.markov_head is None else network.markov_head.rows_of(batch.previous)
    logits = network.confidence_head(hidden, previous)
    losses = functional.binary_cross_entropy_with_logits(
        logits, overlap.clamp(0, 1).to(logits.dtype), reduction="none"
    )
    return (losses * weights).sum()
