"""Both backends on tiny random models, for tests of what stands above them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from outrider.core.ids import BlockId
from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.runner import BlockRunner
from outrider.drafters.block.torch_runner import TorchBlockRunner
from outrider.engine.backend import ScoringTarget
from outrider.models.decoder import Decoder
from outrider.models.spec import ModelSpec
from outrider.models.weights import load_decoder
from outrider.target.torch_target import TorchTarget
from outrider.tensor.span import Span
from outrider.testing.tiny import InMemoryTensors, tiny_tensors
from tests import oracle
from tests.native.machines import machine, require_native


@dataclass(frozen=True)
class Tiny:
    """Random weights of a spec; `noise` moves each by a part of its spread."""

    spec: ModelSpec
    seed: int = 1
    noise: float = 0.0

    def tensors(self) -> Mapping[str, Tensor]:
        """The weights in float64."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        moved = {}
        for name, tensor in tiny_tensors(self.spec, self.seed).items():
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            moved[name] = tensor + self.noise * tensor.std() * noise
        return moved


class Backend(Protocol):
    """A backend as tests see it. `block_size` is the smallest it can page with."""

    name: ClassVar[str]
    block_size: ClassVar[int]
    llm_options: ClassVar[dict[str, Any]]
    """For an `LLM`."""
    tolerance: ClassVar[float]
    """Of a probability against float64 arithmetic on the same logits."""

    def target(self, model: Tiny, num_blocks: int, block_size: int | None = None) -> ScoringTarget:
        """A target with a KV pool of its own."""
        ...

    def block_runner(
        self, model: Tiny, drafter: BlockCheckpoint, num_blocks: int, block_size: int
    ) -> BlockRunner:
        """What computes a block drafter for the target."""
        ...

    def next_logits(self, model: Tiny) -> oracle.NextLogits:
        """Logits behind a text, computed from nothing."""
        ...


class Torch:
    """In float64, so that nothing differs by rounding."""

    name: ClassVar[str] = "torch"
    block_size: ClassVar[int] = 4
    llm_options: ClassVar[dict[str, Any]] = {"dtype": "float64", "threads": 1}
    tolerance: ClassVar[float] = 1e-9

    def target(self, model: Tiny, num_blocks: int, block_size: int | None = None) -> TorchTarget:
        """See `Backend`."""
        return TorchTarget(
            _decoder(model), num_blocks=num_blocks, block_size=block_size or self.block_size
        )

    def block_runner(
        self, model: Tiny, drafter: BlockCheckpoint, num_blocks: int, block_size: int
    ) -> BlockRunner:
        """See `Backend`."""
        return TorchBlockRunner(
            drafter, _decoder(model), num_blocks=num_blocks, block_size=block_size
        )

    def next_logits(self, model: Tiny) -> oracle.NextLogits:
        """See `Backend`."""
        return oracle.of_decoder(_decoder(model))


class Native:
    """In its own precision, which needs no room for rounding either."""

    name: ClassVar[str] = "native"
    block_size: ClassVar[int] = 16
    llm_options: ClassVar[dict[str, Any]] = {"backend": "native", "threads": 1}
    tolerance: ClassVar[float] = 1e-5

    def target(self, model: Tiny, num_blocks: int, block_size: int | None = None) -> ScoringTarget:
        """See `Backend`."""
        from outrider.target.native_target import NativeTarget

        return NativeTarget(
            _native_model(model), num_blocks=num_blocks, block_size=block_size or self.block_size
        )

    def block_runner(
        self, model: Tiny, drafter: BlockCheckpoint, num_blocks: int, block_size: int
    ) -> BlockRunner:
        """See `Backend`."""
        from outrider.drafters.block.native_runner import NativeBlockRunner, NativeHost

        loaded = _native_model(model)
        host = NativeHost(loaded.machine, loaded.weights, model.spec.stop_token_ids)
        return NativeBlockRunner(drafter, host, num_blocks=num_blocks, block_size=block_size)

    def next_logits(self, model: Tiny) -> oracle.NextLogits:
        """See `Backend`."""
        num_blocks = -(-model.spec.max_context_len // self.block_size)
        target = self.target(model, num_blocks)
        blocks = [BlockId(i) for i in reversed(range(num_blocks))]

        def logits(tokens: tuple[int, ...]) -> Tensor:
            span = Span(tokens, kv_len=0, block_table=blocks, num_judged=1)
            return target.score_spans([span]).logits[0].clone()

        return logits


BACKENDS: Mapping[str, Backend] = {"torch": Torch(), "native": Native()}


def backend_of(name: str) -> Backend:
    """The backend, or a skipped test where it is not built."""
    if name == Native.name:
        require_native()
    return BACKENDS[name]


@cache
def _decoder(model: Tiny) -> Decoder:
    return load_decoder(model.spec, InMemoryTensors(model.tensors()), torch.float64)


@cache
def _native_model(model: Tiny) -> Any:
    from outrider.target.native_weights import load_native_tensors

    tensors = {name: tensor.to(torch.float32) for name, tensor in model.tensors().items()}
    return load_native_tensors(model.spec, InMemoryTensors(tensors), machine(1), "q4")
