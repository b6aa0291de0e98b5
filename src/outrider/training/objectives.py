"""What a block drafter is trained for.

Per slot, with p the drafter's distribution (Markov bias included), t the target's, both at
temperature 1: cross-entropy to the data token, L1 = Σ|p − t| (from 0 to 2), cross-entropy to t
(which is KL up to a constant), and for the confidence head binary cross-entropy to the overlap
Σ min(p, t) = 1 − L1 / 2. DSpark (arXiv 2607.05147) weighs them 0.1, 0.9, 0 and 1; DFlash is
cross-entropy alone. Slot j counts exp(−j / decay). D-PACE instead weighs a slot by what its
acceptance would be worth: W_j = Σ_{i ≥ j} Π_{l ≤ i} s_l with s = (1 − α) exp(−CE) + α.

The product with the output matrix and the loss are one function that goes through the vocabulary
rows chunk by chunk and makes the gradient at once, so that no logits outlive their chunk.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK_ROWS = 512
"""Rows of logits alive at once."""

CE, L1, OVERLAP, SOFT_CE = range(4)
"""Columns of the loss terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """Weights of the terms. `decay` None counts all slots alike; `d_pace` replaces the decay."""

    ce: float = 0.1
    l1: float = 0.9
    kl: float = 0.0
    confidence: float = 1.0
    decay: float | None = 4.0
    d_pace: float | None = None


DSPARK = ObjectiveConfig()
DFLASH = ObjectiveConfig(ce=1.0, l1=0.0, confidence=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class HeadInputs:
    """Rows of slots for the output matrix, and what they are held against.

    `matrix` is [head | markov_w2] with a row per candidate; `labels` are candidates, -1 where the
    data token is none; `weights` are those of ce, l1 and kl. `columns` are the draft ids of the
    candidates, None for the whole draft vocabulary, and `offset` is added to their logits.
    """

    matrix: Float[Tensor, "candidates features"]
    teacher: Float[Tensor, "judged candidates"]
    teacher_rows: Int[Tensor, " rows"]
    labels: Int[Tensor, " rows"]
    weights: Float[Tensor, "rows 3"]
    columns: Int[Tensor, " candidates"] | None = None
    offset: Float[Tensor, " candidates"] | None = None


def slot_weights(
    is_supervised: Bool[Tensor, "blocks drafts"], decay: float | None
) -> Float[Tensor, "blocks drafts"]:
    """exp(−j / decay) where there is a label, 0 elsewhere."""
    slots = torch.arange(is_supervised.shape[1], dtype=torch.float32)
    weights = torch.ones_like(slots) if decay is None else torch.exp(-slots / decay)
    return weights * is_supervised


def d_pace_weights(
    ce: Float[Tensor, "blocks drafts"], is_supervised: Bool[Tensor, "blocks drafts"], alpha: float
) -> Float[Tensor, "blocks drafts"]:
    """What accepting a slot is worth, from the cross-entropy of the data tokens."""
    chance = (1 - alpha) * torch.exp(-ce) + alpha
    reached = torch.cumprod(chance, 1) * is_supervised
    return reached.flip(1).cumsum(1).flip(1) * is_supervised


def head_loss(
    rows: Float[Tensor, "rows features"],
    markov_w2: Float[Tensor, "draft_vocab rank"] | None,
    inputs: HeadInputs,
    machine: Any | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows 4"]]:
    """Weighted sum of the terms, with gradients to `rows` and `markov_w2`, and the bare terms.

    `machine` is the native one that computes the loss of bfloat16 rows; None computes in torch.
    """
    loss, terms = _HeadLoss.apply(rows, markov_w2, inputs, machine)  # type: ignore[no-untyped-call]
    return loss, terms


class _HeadLoss(torch.autograd.Function):
    """Forward makes both gradients, since the logits are gone afterwards."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        markov_w2: Tensor | None,
        inputs: HeadInputs,
        machine: Any | None,
    ) -> tuple[Tensor, Tensor]:
        terms = torch.empty(len(rows), 4)
        row_gradient = torch.empty_like(rows)
        rank = 0 if markov_w2 is None else markov_w2.shape[1]
        partial = torch.zeros(
            len(inputs.matrix), rank, dtype=torch.promote_types(rows.dtype, torch.float32)
        )
        for start in range(0, len(rows), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            logits = rows[part] @ inputs.matrix.T
            if inputs.offset is not None:
                logits += inputs.offset
            if machine is None:
                gradient = _torch_terms(logits, inputs, part, terms[part])
            else:
                gradient = _native_terms(logits, inputs, part, terms[part], machine)
            torch.mm(gradient, inputs.matrix, out=row_gradient[part])
            if rank:
                partial += gradient.T @ rows[part, -rank:]
        matrix_gradient = None
        if markov_w2 is not None:
            matrix_gradient = partial
            if inputs.columns is not None:
                matrix_gradient = torch.zeros_like(markov_w2).index_copy_(
                    0, inputs.columns, partial
                )
        ctx.save_for_backward(row_gradient, matrix_gradient)
        # Outside the draft vocabulary the drafter has nothing, so L1 follows from the overlap.
        terms[:, L1] = 2 - 2 * terms[:, OVERLAP]
        loss = (terms[:, (CE, L1, SOFT_CE)] * inputs.weights).sum()
        ctx.mark_non_differentiable(terms)
        return loss, terms

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        row_gradient, matrix_gradient = ctx.saved_tensors
        if matrix_gradient is not None:
            matrix_gradient = matrix_gradient * loss_gradient
        return row_gradient * loss_gradient, matrix_gradient, None, None


def _native_terms(
    logits: Tensor, inputs: HeadInputs, part: slice, terms: Tensor, machine: Any
) -> Tensor:
    from outrider.native import _native

    _native.block_loss(
        machine,
        logits.view(torch.int16),
        inputs.teacher.view(torch.int16),
        inputs.teacher_rows[part],
        inputs.labels[part],
        inputs.weights[part],
        terms,
    )
    return logits


def _torch_terms(logits: Tensor, inputs: HeadInputs, part: slice, terms: Tensor) -> Tensor:
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_drafted = torch.log_softmax(logits.to(wide), -1)
    drafted = log_drafted.exp()
    teacher = inputs.teacher[inputs.teacher_rows[part]].to(wide)
    labels, weights = inputs.labels[part], inputs.weights[part].to(wide)
    ce_weight, l1_weight, kl_weight = weights.unbind(1)
    has_label = labels >= 0
    ce_weight = ce_weight * has_label
    label = labels.clamp(min=0)[:, None]
    mass = teacher.sum(-1)
    signs = torch.where(drafted < teacher, -1.0, 1.0)
    lean = (drafted * signs).sum(-1)
    shared = ce_weight + kl_weight * mass - l1_weight * lean
    gradient = drafted * (shared[:, None] + l1_weight[:, None] * signs)
    gradient -= kl_weight[:, None] * teacher
    gradient.scatter_add_(1, label, -ce_weight[:, None])
    terms[:, CE] = -log_drafted.gather(1, label)[:, 0] * has_label
    terms[:, OVERLAP] = torch.minimum(drafted, teacher).sum(-1)
    terms[:, SOFT_CE] = -(teacher * log_drafted).sum(-1)
    return gradient.to(logits.dtype)
