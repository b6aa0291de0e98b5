"""Tokenized documents as training reads them, and which of them are held out."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from outrider.errors import ConfigError, CorruptCheckpoint

HELD_OUT_SHARE = 0.02
_HASH_RANGE = 1 << 64


def is_held_out(document_id: str, share: float) -> bool:
    """Whether a hash of a document's id falls into the share that nothing may be learnt from."""
    digest = hashlib.sha256(document_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * _HASH_RANGE


@dataclass(frozen=True, slots=True)
class Document:
    """One prompt with the target's answer. Its id is its number in the set where it has none."""

    id: str
    tokens: NDArray[np.int32]
    """[len]"""
    loss_mask: NDArray[np.uint8]
    """[len], 1 where the target wrote the token."""

    @property
    def is_held_out(self) -> bool:
        """Whether this is one of about two in a hundred that nothing may be learnt from."""
        return is_held_out(self.id, HELD_OUT_SHARE)

    def split(self) -> tuple[list[int], list[int]]:
        """Prompt and answer: what precedes the target's first token, and the rest."""
        written = np.flatnonzero(self.loss_mask)
        first = int(written[0]) if len(written) else len(self.tokens)
        return self.tokens[:first].tolist(), self.tokens[first:].tolist()


def read_documents(path: Path) -> Iterator[Document]:
    """Read a data set: a directory of shards, one shard, or a JSONL file.

    A shard is a safetensors file with `tokens`, `loss_mask` and `doc_starts`; its features, if any,
    are not touched. Ids come from the `.jsonl` beside it, where there is one. A line of JSONL is an
    object with `tokens`, and may have an `id` and, unless the target wrote all tokens, `loss_mask`.

    Raises:
        ConfigError: There is nothing to read.
        CorruptCheckpoint: A file cannot be read.
    """
    files = sorted(path.glob("shard-*.safetensors")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise ConfigError(
            f"there is no training data at {path}; name a directory of shards, a shard or a "
            'JSONL file with {"tokens": […]} per line'
        )
    number = 0
    for file in files:
        read = _read_shard if file.suffix == ".safetensors" else _read_lines
        for own_id, tokens, loss_mask in read(file):
            yield Document(str(number) if own_id is None else own_id, tokens, loss_mask)
            number += 1


_Found = tuple[str | None, NDArray[np.int32], NDArray[np.uint8]]


def _read_shard(path: Path) -> Iterator[_Found]:
    try:
        with safe_open(path, framework="numpy") as file:
            tokens, mask, starts = (
                file.get_tensor(name) for name in ("tokens", "loss_mask", "doc_starts")
            )
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(f"{path} is not a training shard: {error}") from error
    if len(mask) != len(tokens) or not _are_starts(starts, len(tokens)):
        raise CorruptCheckpoint(
            f"{path} is damaged: {len(tokens)} tokens, {len(mask)} of the loss mask and document "
            "starts do not fit each other; make the shard again"
        )
    ids = _ids(path.with_suffix(".jsonl"), len(starts) - 1)
    for own_id, (first, last) in zip(ids, pairwise(starts), strict=True):
        yield own_id, tokens[first:last].astype(np.int32), mask[first:last].astype(np.uint8)


def _ids(path: Path, num_documents: int) -> Sequence[str | None]:
    """The ids that stand beside a shard; None for each document where nothing does."""
    if not path.is_file():
        return [None] * num_documents
    try:
        ids = [str(json.loads(line)["id"]) for line in path.read_text("utf-8").splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint(f"{path} does not name documents ({error})") from error
    if len(ids) != num_documents:
        raise CorruptCheckpoint(
            f"{path} names {len(ids)} documents, but the shard beside it has {num_documents}; "
            "make the shard again"
        )
    return ids


def _are_starts(starts: NDArray[Any], num_tokens: int) -> bool:
    if starts.ndim != 1 or not len(starts):
        return False
    return bool(starts[0] == 0 and starts[-1] == num_tokens and (np.diff(starts) > 0).all())


def _read_lines(path: Path) -> Iterator[_Found]:
    with path.open(encoding="utf-8") as file:
        for line_number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                tokens = np.array(record["tokens"], dtype=np.int32)
                mask = np.array(record.get("loss_mask", [1] * len(tokens)), dtype=np.uint8)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise CorruptCheckpoint(
                    f"line {line_number} of {path} is no document ({error}); it must be an object "
                    'like {"tokens": [1, 2]}'
                ) from error
            if tokens.ndim != 1 or mask.shape != tokens.shape:
                raise CorruptCheckpoint(
                    f"line {line_number} of {path} has tokens of shape {tokens.shape} and a loss "
                    f"mask of shape {mask.shape}; both must be lists of one length"
                )
            if len(tokens):
                own_id = record.get("id")
                yield None if own_id is None else str(own_id), tokens, mask
