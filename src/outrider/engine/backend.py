"""What computes the forwards: the protocol, and torch, which runs on any device."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from outrider.drafters.base import SpanScorer
from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.runner import BlockRunner
from outrider.drafters.block.torch_runner import TorchBlockRunner
from outrider.models.checkpoint import Checkpoint
from outrider.models.decoder import Decoder
from outrider.target.base import Target
from outrider.target.torch_target import TorchTarget

EXACT = "exact"


class ScoringTarget(Target, SpanScorer, Protocol):
    """A target that also computes bare spans, for draft models and comparisons."""


class LoadedModel(Protocol):
    """Weights in memory. Several targets with KV pools of their own can share them."""

    def new_target(self, num_blocks: int, block_size: int) -> ScoringTarget:
        """Put a KV pool beside the weights."""
        ...

    def new_block_runner(
        self, drafter: BlockCheckpoint, num_blocks: int, block_size: int
    ) -> BlockRunner:
        """Put a block drafter beside the weights, whose embedding and head it shares."""
        ...


class Backend(Protocol):
    """Loads checkpoints.

    `precision` names the dtype whose rounding explains a numeric tie between two runs, or is EXACT
    where the bits of a row do not depend on the batch and nothing explains a difference.
    """

    @property
    def name(self) -> str:
        """`torch` or `native`."""
        ...

    @property
    def precision(self) -> str:
        """Name of a dtype, or EXACT."""
        ...

    def load(self, checkpoint: Checkpoint) -> LoadedModel:
        """Read the weights of a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class _TorchModel:
    decoder: Decoder
    device: str

    def new_target(self, num_blocks: int, block_size: int) -> ScoringTarget:
        return TorchTarget(
            self.decoder, num_blocks=num_blocks, block_size=block_size, device=self.device
        )

    def new_block_runner(
        self, drafter: BlockCheckpoint, num_blocks: int, block_size: int
    ) -> BlockRunner:
        return TorchBlockRunner(
            drafter,
            self.decoder.to(self.device),
            num_blocks=num_blocks,
            block_size=block_size,
        )


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Reference, and the path for GPUs."""

    name: ClassVar[str] = "torch"

    precision: str
    device: str
    threads: int | None

    def load(self, checkpoint: Checkpoint) -> LoadedModel:
        """Read the weights in this backend's dtype."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return _TorchModel(checkpoint.load_decoder(getattr(torch, self.precision)), self.device)
