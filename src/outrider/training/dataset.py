"""Documents with the target's features, on disk, as training reads them.

A data set is a directory of `shard-*.safetensors`, each with `tokens`, `loss_mask` (1 where the
target wrote the token), `doc_starts` and `features` (outputs of the tapped layers, concatenated in
tap order, the last of them the target's last layer before its final norm), beside a
`shard-*.jsonl` with a line per document and a `manifest.json` for all.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.errors import ConfigError, CorruptCheckpoint, ModelNotFound
from outrider.models.fields import read_json
from outrider.training.documents import is_held_out

MANIFEST_FILE = "manifest.json"

_SHARD_PATTERN = "shard-*.safetensors"

FeaturesOf = Callable[[Int[Tensor, " tokens"]], Float[Tensor, "tokens taps_hidden"]]
"""Reads a document with the target, for data sets that name layers but keep no features."""


@dataclass(frozen=True, slots=True, eq=False)
class FeaturedDocument:
    """One conversation: tokens, which of them the target wrote, and features per token."""

    tokens: Int[Tensor, " tokens"]
    loss_mask: Bool[Tensor, " tokens"]
    features: Float[Tensor, "tokens taps_hidden"]


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """Where a document lies and what is known of it."""

    shard: Path
    start: int
    end: int
    id: str
    domain: str
    temperature: float

    def is_held_out(self, share: float) -> bool:
        """Whether a hash of the document's id falls into the held-out share."""
        return is_held_out(self.id, share)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a data set says of itself. `hash` is of the manifest file's bytes.

    `features` says whether they were kept; otherwise they are computed from the tokens.
    """

    target: str
    target_hash: str
    tap_layers: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    features: bool
    hash: str


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`.

    Raises:
        ModelNotFound: there is none.
        ConfigError: it is of another kind.
    """
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise ModelNotFound(f"{directory} has no {MANIFEST_FILE}, so it is not a training data set")
    content: dict[str, Any] = read_json(path)
    try:
        if content["version"] != 1:
            raise ConfigError(
                f"{path} has version {content['version']}, but training reads version 1: generate "
                "the data again"
            )
        return Manifest(
            target=content["target"],
            target_hash=content["target_hash"],
            tap_layers=tuple(content["tap_layers"]),
            hidden_size=content["hidden_size"],
            vocab_size=content["vocab_size"],
            features=content["features"],
            hash=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
    except KeyError as error:
        raise ConfigError(f"{path} has no {error}, which training needs") from error


def list_shards(directory: Path) -> list[Path]:
    """Shards in order of their numbers, without those still being written."""
    return sorted(path for path in directory.glob(_SHARD_PATTERN) if _sidecar(path).is_file())


def list_documents(shards: Sequence[Path]) -> list[DocumentInfo]:
    """Every document of the shards, in order.

    Raises:
        CorruptCheckpoint: a shard and its list of documents do not fit.
    """
    found: list[DocumentInfo] = []
    for shard in shards:
        with open_shard(shard) as file:
            starts = file.get_tensor("doc_starts").tolist()
        lines = _sidecar(shard).read_text(encoding="utf-8").splitlines()
        if len(lines) != len(starts) - 1:
            raise CorruptCheckpoint(
                f"{shard.name} has {len(starts) - 1} documents, but {_sidecar(shard).name} lists "
                f"{len(lines)}"
            )
        for index, line in enumerate(lines):
            fields = json.loads(line)
            found.append(
                DocumentInfo(
                    shard=shard,
                    start=starts[index],
                    end=starts[index + 1],
                    id=str(fields["id"]),
                    domain=str(fields["domain"]),
                    temperature=float(fields["temperature"]),
                )
            )
    return found


def open_shard(path: Path) -> Any:
    """An open safetensors file; use it in a `with` statement.

    Raises:
        CorruptCheckpoint: it cannot be read.
    """
    try:
        return safe_open(path, "pt")
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error


class DocumentReader:
    """Reads documents; shards stay open, and only the asked rows are read from them."""

    def __init__(self, features_of: FeaturesOf | None = None) -> None:
        """Open nothing yet; features come from the shards, or else from `features_of`."""
        self._features_of = features_of
        self._shards: dict[Path, Any] = {}

    def read(self, info: DocumentInfo) -> FeaturedDocument:
        """Read one document."""
        if info.shard not in self._shards:
            self._shards[info.shard] = open_shard(info.shard)
        file = self._shards[info.shard]

        def rows(name: str) -> Tensor:
            part: Tensor = file.get_slice(name)[info.start : info.end]
            return part

        tokens = rows("tokens").to(torch.int64)
        features = self._features_of(tokens) if self._features_of else rows("features")
        return FeaturedDocument(tokens, rows("loss_mask").to(torch.bool), features)


def token_counts(shards: Sequence[Path], vocab_size: int) -> Int[Tensor, " vocab"]:
    """How often the target wrote every token."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for shard in shards:
        with open_shard(shard) as file:
            tokens, mask = file.get_tensor("tokens"), file.get_tensor("loss_mask")
        counts += torch.bincount(tokens[mask.bool()].to(torch.int64), minlength=vocab_size)
    return counts


def frequent_tokens(counts: Int[Tensor, " vocab"], size: int) -> Int[Tensor, " draft_vocab"]:
    """A draft vocabulary: tokens by falling frequency, unseen ones by rising id; sorted by id."""
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[:size].sort().values


def _sidecar(shard: Path) -> Path:
    return shard.with_suffix(".jsonl")
