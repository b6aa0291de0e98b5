"""What training needs of the target: its embedding, its final norm and its output matrix.

The target's distribution is recomputed from the features of its last layer, which costs one
product per position and serves all blocks that predict from there.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from outrider.models.checkpoint import Checkpoint
from outrider.models.weights import EMBEDDING, HEAD, SafetensorsSource

_NORM = "model.norm.weight"
_SHIFT_COLUMNS = 32
"""Columns after the head's own, of which two are used: products like round widths."""


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """The target's outer parts. `head` is ordered like the draft vocabulary, the rest after it.

    Columns of the head beyond the hidden size serve `distributions`: two of ones, the rest zero.
    `num_drafted` rows of `head` belong to the draft vocabulary; `draft_index` gives the row of a
    target id, at least `num_drafted` for tokens that cannot be drafted.
    """

    embedding: Float[Tensor, "vocab hidden"]
    norm_weight: Float[Tensor, " hidden"]
    norm_eps: float
    head: Float[Tensor, "vocab padded_hidden"]
    draft_ids: Int[Tensor, " draft_vocab"]
    draft_index: Int[Tensor, " vocab"]

    @property
    def num_drafted(self) -> int:
        """Size of the draft vocabulary."""
        return len(self.draft_ids)

    @property
    def draft_head(self) -> Float[Tensor, "draft_vocab hidden"]:
        """Rows of the output matrix for the draft vocabulary."""
        return self.head[: self.num_drafted, : len(self.norm_weight)]

    def normed(self, last: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        """The target's final norm of the last layer's outputs, in float32 or wider."""
        wide = last.to(torch.promote_types(last.dtype, torch.float32))
        size = self.norm_weight.shape
        return functional.rms_norm(wide, size, self.norm_weight.to(wide.dtype), self.norm_eps)

    def distributions(
        self,
        last: Float[Tensor, "rows hidden"],
        near: Int[Tensor, " rows"],
        log_rest: Float[Tensor, " rows"],
        machine: Any | None = None,
    ) -> Float[Tensor, "rows draft_vocab"]:
        """Probabilities of the draft vocabulary at temperature 1, normalised over all tokens.

        In the dtype of the head. `near` and `log_rest` as in `log_rest`; `machine` is the native
        one that computes in bfloat16, None computes in torch.
        """
        logits = self._shifted(last, near, self.head[: self.num_drafted])
        if machine is not None:
            _native().softmax_rows(machine, logits.view(torch.int16), log_rest)
            return logits
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = torch.logaddexp(wide.logsumexp(-1), log_rest.to(wide.dtype))
        return wide.sub_(total[:, None]).exp_().to(logits.dtype)

    def log_rest(
        self,
        last: Float[Tensor, "rows hidden"],
        near: Int[Tensor, " rows"],
        machine: Any | None = None,
    ) -> Float[Tensor, " rows"]:
        """Logarithm of the summed exponentials of the tokens that cannot be drafted.

        Logits are taken relative to that of the token `near`, which should be a likely one: near
        zero, bfloat16 is precise.
        """
        rest = self.head[self.num_drafted :]
        if not len(rest):
            return torch.full((len(last),), float("-inf"))
        logits = self._shifted(last, near, rest)
        if machine is not None:
            result = torch.empty(len(last))
            _native().log_sum_exp_rows(machine, logits.view(torch.int16), result)
            return result
        return logits.to(torch.promote_types(rest.dtype, torch.float32)).logsumexp(-1)

    def _shifted(self, last: Tensor, near: Tensor, head: Tensor) -> Tensor:
        normed = self.normed(last)
        rows = normed.new_zeros((len(last), head.shape[1]), dtype=head.dtype)
        size = normed.shape[1]
        rows[:, :size] = normed
        chosen = self.head[self.draft_index[near], :size]
        shift = (rows[:, :size].to(normed.dtype) * chosen.to(normed.dtype)).sum(-1)
        # The columns of ones subtract inside the product, before its result is rounded.
        rows[:, size] = -shift
        rows[:, size + 1] = -shift - rows[:, size].to(normed.dtype)
        return rows @ head.T


def _native() -> Any:
    from outrider.native import _native

    return _native


def load_teacher(
    checkpoint: Checkpoint, draft_ids: Int[Tensor, " draft_vocab"] | None, dtype: torch.dtype
) -> Teacher:
    """Read the outer parts of a target, matrices in `dtype`.

    Raises:
        ModelError: a tensor is missing or cannot be read.
    """
    spec = checkpoint.spec
    source = checkpoint.gguf or SafetensorsSource(checkpoint.path)

    def read(name: str, *shape: int) -> Tensor:
        values = torch.empty(shape)
        source.read_into(name, values)
        return values

    shape = (spec.vocab_size, spec.hidden_size)
    embedding = read(EMBEDDING, *shape).to(dtype)
    head = embedding if spec.tied_head else read(HEAD, *shape).to(dtype)
    return make_teacher(embedding, head, read(_NORM, spec.hidden_size), spec.norm_eps, draft_ids)


def make_teacher(
    embedding: Float[Tensor, "vocab hidden"],
    head: Float[Tensor, "vocab hidden"],
    norm_weight: Float[Tensor, " hidden"],
    norm_eps: float,
    draft_ids: Int[Tensor, " draft_vocab"] | None,
) -> Teacher:
    """Order the output matrix by the draft vocabulary; None means every token."""
    vocab = torch.arange(len(head))
    drafted = vocab if draft_ids is None else draft_ids
    is_rest = torch.ones(len(head), dtype=torch.bool)
    is_rest[drafted] = False
    order = torch.cat((drafted, vocab[is_rest]))
    hidden = head.shape[1]
    padded = head.new_zeros(len(head), hidden + _SHIFT_COLUMNS)
    padded[:, :hidden] = head[order]
    padded[:, hidden : hidden + 2] = 1
    return Teacher(embedding, norm_weight, norm_eps, padded, drafted, torch.argsort(order))
