"""Which documents make up which step: a fixed function of the seed, resumable at any step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from outrider.drafters.block.config import BlockConfig
from outrider.errors import ConfigError
from outrider.training.dataset import (
    DocumentInfo,
    DocumentReader,
    FeaturedDocument,
    FeaturesOf,
    list_documents,
    list_shards,
)
from outrider.training.packing import PackedBatch, draw_anchors, pack

_MIXING = 0x9E3779B97F4A7C15
_SEED_BITS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """How batches are made.

    A batch takes whole documents until it has `blocks_per_step` blocks, of each document a share
    `anchor_share` of its possible anchors. Documents with fewer than `min_anchors` are dropped.
    """

    blocks_per_step: int = 200
    anchor_share: float = 0.5
    min_anchors: int = 8
    held_out_share: float = 0.02
    seed: int = 0


@dataclass(slots=True)
class Cursor:
    """Place in the data: epoch, documents of it that are used up, and its number of shards."""

    epoch: int = 0
    position: int = 0
    num_shards: int = 0


class Sampler:
    """An endless stream of batches. Shards that appear while training join at the next epoch."""

    def __init__(
        self,
        directory: Path,
        config: SamplerConfig,
        cursor: Cursor,
        features_of: FeaturesOf | None = None,
    ) -> None:
        """Start at the cursor, which then moves; `features_of` where shards have no features.

        Raises:
            ConfigError: the directory has no finished shard, or fewer than the cursor names.
        """
        self.cursor = cursor
        self._directory = directory
        self._config = config
        self._reader = DocumentReader(features_of)
        shards = list_shards(directory)
        if not shards or len(shards) < cursor.num_shards:
            raise ConfigError(
                f"{directory} has {len(shards)} finished shards, but training needs at least "
                f"{max(1, cursor.num_shards)}; generate data there first"
            )
        if not cursor.num_shards:
            cursor.num_shards = len(shards)
        self._documents = self._training_documents(shards[: cursor.num_shards])
        self._order = self._shuffled()

    def held_out(self, limit: int) -> list[FeaturedDocument]:
        """Up to `limit` held-out documents that the target wrote greedily."""
        infos = [
            info
            for info in list_documents(list_shards(self._directory)[: self.cursor.num_shards])
            if info.temperature == 0 and info.is_held_out(self._config.held_out_share)
        ]
        return [self._reader.read(info) for info in infos[:limit]]

    def batches(self, block_config: BlockConfig) -> Iterator[tuple[list[int], PackedBatch]]:
        """Batches with the indices of their documents, from the cursor on, without an end."""
        while True:
            documents: list[FeaturedDocument] = []
            anchors: list[Int[Tensor, " anchors"]] = []
            indices: list[int] = []
            while sum(len(drawn) for drawn in anchors) < self._config.blocks_per_step:
                index = self._next()
                document = self._reader.read(self._documents[index])
                generator = self._generator(self.cursor.epoch, index + 1)
                drawn = draw_anchors(document, self._config.anchor_share, generator)
                documents.append(document)
                anchors.append(drawn)
                indices.append(index)
            yield indices, pack(documents, anchors, block_config)

    def _next(self) -> int:
        if self.cursor.position == len(self._order):
            self.cursor.epoch += 1
            self.cursor.position = 0
            shards = list_shards(self._directory)
            self.cursor.num_shards = len(shards)
            self._documents = self._training_documents(shards)
            self._order = self._shuffled()
        self.cursor.position += 1
        return self._order[self.cursor.position - 1]

    def _training_documents(self, shards: Sequence[Path]) -> list[DocumentInfo]:
        least = self._config.min_anchors + 1
        found = [
            info
            for info in list_documents(shards)
            if not info.is_held_out(self._config.held_out_share) and info.end - info.start > least
        ]
        if not found:
            raise ConfigError(f"{self._directory} has no document long enough to train on")
        return found

    def _shuffled(self) -> list[int]:
        generator = self._generator(self.cursor.epoch, 0)
        order: list[int] = torch.randperm(len(self._documents), generator=generator).tolist()
        return order

    def _generator(self, epoch: int, purpose: int) -> torch.Generator:
        mixed = (self._config.seed * 1_000_003 + epoch) * _MIXING + purpose * 0xD1B54A32D192ED03
        return torch.Generator().manual_seed((mixed ^ (mixed >> 31)) & _SEED_BITS)
