"""The native runner as a backend; importing this needs the compiled extension."""

from dataclasses import dataclass
from typing import ClassVar, Self

from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.native_runner import NativeBlockRunner, NativeHost
from outrider.drafters.block.runner import BlockRunner
from outrider.engine.backend import EXACT, LoadedModel, ScoringTarget
from outrider.models.checkpoint import Checkpoint
from outrider.native.runner import Machine
from outrider.target.native_target import NativeTarget
from outrider.target.native_weights import NativeModel, WeightFormat, load_native


@dataclass(frozen=True, slots=True)
class _NativeLoaded:
    model: NativeModel

    def new_target(self, num_blocks: int, block_size: int) -> ScoringTarget:
        return NativeTarget(self.model, num_blocks=num_blocks, block_size=block_size)

    def new_block_runner(
        self, drafter: BlockCheckpoint, num_blocks: int, block_size: int
    ) -> BlockRunner:
        model = self.model
        host = NativeHost(model.machine, model.weights, model.spec.stop_token_ids)
        return NativeBlockRunner(drafter, host, num_blocks=num_blocks, block_size=block_size)


@dataclass(frozen=True, slots=True)
class NativeBackend:
    """Target and draft models share one pool of threads."""

    name: ClassVar[str] = "native"
    precision: ClassVar[str] = EXACT

    machine: Machine
    weights: WeightFormat

    @classmethod
    def start(cls, threads: int, weights: WeightFormat) -> Self:
        """Start the threads."""
        return cls(Machine(threads), weights)

    def load(self, checkpoint: Checkpoint) -> LoadedModel:
        """Repack the weights; quantised GGUF tensors keep their numbers."""
        return _NativeLoaded(load_native(checkpoint, self.machine, self.weights))
