"""Draft vocabulary, repeated matrices of the target, and tokenizers."""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from outrider.analysis.doctor.files import EMBEDDING, HEAD, BlockFiles
from outrider.analysis.doctor.findings import Finding
from outrider.drafters.vocabulary import require_same_vocabulary
from outrider.errors import IncompatibleDraft
from outrider.models import weights
from outrider.models.checkpoint import Checkpoint
from outrider.models.weights import SafetensorsSource

SAME: Final = 0.9
"""Mean cosine of rows from which on two matrices are roundings of the same one."""
_SAMPLED_ROWS: Final = 512


def check_vocabulary(files: BlockFiles, target: Checkpoint) -> Iterator[Finding]:
    """`d2t` and `t2d` against the sizes the configuration names, and against each other."""
    whole = target.spec.vocab_size
    size = files.fields.get("draft_vocab_size")
    size = size if isinstance(size, int) else whole
    offsets = files.tensors.get("d2t")
    if offsets is None:
        if size != whole:
            yield Finding("d2t-missing", f"draft_vocab_size is {size} of {whole}", "d2t")
        return
    if offsets.ndim != 1 or not len(offsets) or offsets.is_floating_point():
        detail = f"numbers of type {offsets.dtype} and shape {tuple(offsets.shape)}"
        yield Finding("d2t-invalid", detail, "d2t")
        return
    ids = offsets.long() + torch.arange(len(offsets))
    marked = files.tensors.get("t2d")
    is_valid = _names_tokens(ids, size, whole)
    # Different tokens below the vocabulary's size may be valid offsets too: then t2d decides.
    is_doubtful = not _matches(ids, marked) and _names_tokens(offsets.long(), size, whole)
    if is_doubtful and (_matches(offsets.long(), marked) or not is_valid):
        yield Finding("d2t-absolute", "its entries are different tokens", "d2t")
        return
    if not is_valid:
        yield Finding(
            "d2t-invalid",
            f"it gives {len(ids.unique())} different tokens from {int(ids.min())} to "
            f"{int(ids.max())}; {size} below {whole} are needed",
            "d2t",
        )
    elif marked is not None and not _matches(ids, marked):
        yield Finding("t2d-inconsistent", _difference(ids, marked), "t2d")


def check_repeated(files: BlockFiles, target: Checkpoint) -> Iterator[Finding]:
    """Embedding and output matrix in the file against the target's, by sampled rows."""
    head, embedding = files.tensors.get(HEAD), files.tensors.get(EMBEDDING)
    own_embedding = _Matrix(target, weights.EMBEDDING)
    if embedding is not None and own_embedding.shape == tuple(embedding.shape):
        cosine = own_embedding.cosine(embedding, None)
        if cosine < SAME:
            yield Finding("embedding-differs", f"mean cosine of rows {cosine:.2f}", EMBEDDING)
    if head is None:
        return
    tied = target.spec.tied_head
    own_head = own_embedding if tied else _Matrix(target, weights.HEAD)
    ids = _draft_ids(files, len(head))
    if ids is None or head.shape[1] != own_head.shape[1]:
        return
    cosine = own_head.cosine(head, ids)
    if cosine >= SAME:
        return
    if not tied and own_embedding.cosine(head, ids) >= SAME:
        yield Finding("head-tied", f"mean cosine with the target's head {cosine:.2f}", HEAD)
    else:
        yield Finding("head-differs", f"mean cosine of rows {cosine:.2f}", HEAD)


def check_tokenizer(target: Checkpoint) -> Iterator[Finding]:
    """The target's own tokenizer against its number of rows."""
    ids, rows = target.tokenizer.vocab_size, target.spec.vocab_size
    if ids > rows:
        yield Finding("tokenizer-larger", f"{ids} ids for {rows} rows", "target")
    elif ids < rows:
        yield Finding("vocab-padding", f"{ids} ids, {rows} rows", "target")


def check_same_tokenizer(target: Checkpoint, drafter: Checkpoint) -> Iterator[Finding]:
    """Every id of two tokenizers."""
    try:
        require_same_vocabulary(target, drafter)
    except IncompatibleDraft as error:
        yield Finding("tokenizer-differs", str(error), "draft model")


def _names_tokens(ids: Tensor, size: int, whole: int) -> bool:
    inside = bool(((ids >= 0) & (ids < whole)).all())
    return inside and len(ids) == size and len(ids.unique()) == size


def _matches(ids: Tensor, marked: Tensor | None) -> bool:
    if marked is None or not bool(((ids >= 0) & (ids < len(marked))).all()):
        return False
    found = torch.zeros(len(marked), dtype=torch.bool)
    found[ids] = True
    return bool((found == marked.bool()).all())


def _difference(ids: Tensor, marked: Tensor) -> str:
    drafted = set(ids.tolist())
    both = set(torch.nonzero(marked.bool()).flatten().tolist())
    only = sorted(drafted ^ both)
    return f"{len(only)} tokens are in one of them alone, such as {only[0]}"


def _draft_ids(files: BlockFiles, rows: int) -> Tensor | None:
    """Target ids of the rows of the file's head; None where that cannot be told."""
    offsets = files.tensors.get("d2t")
    vocab = files.fields.get("vocab_size")
    if offsets is None:
        return torch.arange(rows) if rows == vocab else None
    if offsets.ndim != 1:
        return None
    ids = offsets.long() + torch.arange(len(offsets))
    is_fine = len(ids) == rows and isinstance(vocab, int) and _names_tokens(ids, rows, vocab)
    return ids if is_fine else None


class _Matrix:
    """A matrix of the target, of which some rows are compared."""

    def __init__(self, target: Checkpoint, name: str) -> None:
        self._source = target.gguf or SafetensorsSource(target.path)
        self._name = name
        self.shape = (target.spec.vocab_size, target.spec.hidden_size)
        self._values: Tensor | None = None

    def cosine(self, other: Tensor, ids: Tensor | None) -> float:
        """Mean cosine of sampled rows of `other`, whose row i is for token `ids[i]`."""
        if self._values is None:
            self._values = torch.empty(self.shape, dtype=torch.bfloat16)
            self._source.read_into(self._name, self._values)
        rows = torch.arange(0, len(other), max(1, len(other) // _SAMPLED_ROWS))
        ours = self._values[rows if ids is None else ids[rows]].float()
        return float(torch.cosine_similarity(ours, other[rows].float(), dim=-1).mean())
