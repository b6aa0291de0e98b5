"""Native models of tiny specs, and the machines they run on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from outrider.core.ids import BlockId
from outrider.models.decoder import Decoder
from outrider.models.spec import ModelSpec
from outrider.models.weights import load_decoder
from outrider.native import availability
from outrider.tensor.span import Span
from outrider.testing.tiny import InMemoryTensors, tiny_tensors
from tests import harness

if TYPE_CHECKING:
    from outrider.native.runner import KvType, Machine
    from outrider.target.native_target import NativeTarget
    from outrider.target.native_weights import NativeModel, WeightFormat

QUANTISED = {"q8": "Q8_0", "q4": "Q4_1"}
BLOCK = 32


def require_native() -> None:
    """Skip, or fail in CI, where the extension is not built."""
    fault = availability.fault()
    if fault is not None:
        harness.missing(fault)


@cache
def machine(threads: int = 1, isa: str = "auto") -> "Machine":
    """One machine per kind for the whole session: each has threads of its own."""
    from outrider.native.runner import Machine

    return Machine(threads, isa)


@dataclass(frozen=True)
class TinyModel:
    """Random weights of a spec, as the native runner holds them."""

    spec: ModelSpec
    seed: int = 1
    weight_format: "WeightFormat" = "f32"

    def target(
        self,
        on: "Machine",
        num_blocks: int = 64,
        block_size: int = 16,
        kv_type: "KvType" = "int16",
    ) -> "NativeTarget":
        """A fresh target with a pool of its own."""
        from outrider.target.native_target import NativeTarget

        model = self.native_model(on)
        return NativeTarget(model, num_blocks=num_blocks, block_size=block_size, kv_type=kv_type)

    def native_model(self, on: "Machine") -> "NativeModel":
        """The weights alone."""
        from outrider.target.native_weights import load_native_tensors

        return load_native_tensors(self.spec, self._tensors(), on, self.weight_format)

    def reference(self) -> Decoder:
        """The torch decoder on the numbers that the native weights stand for."""
        tensors = {name: self._rounded(tensor) for name, tensor in self._tensors().tensors.items()}
        return load_decoder(self.spec, InMemoryTensors(tensors), torch.float32)

    def _tensors(self) -> "_Tensors":
        return _Tensors(
            {name: t.to(torch.float32) for name, t in tiny_tensors(self.spec, self.seed).items()}
        )

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        from outrider.native.runner import Matrix

        if tensor.dim() == 1:
            return tensor
        if self.weight_format == "bf16":
            return tensor.to(torch.bfloat16).to(torch.float32)
        kind = QUANTISED.get(self.weight_format)
        if kind is None or tensor.shape[1] % BLOCK:
            return tensor
        rows = tensor.contiguous().view(torch.uint8).numpy()
        return torch.from_numpy(Matrix.quantize(kind, "F32", rows, tensor.shape[1]).dequantised())


class _Tensors(InMemoryTensors):
    """A source that can be looked through."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.tensors = tensors


def span_of(tokens: Sequence[int], kv_len: int, table: Sequence[int], num_judged: int) -> Span:
    """A span whose blocks are plain integers."""
    return Span(tokens, kv_len, [BlockId(block) for block in table], num_judged)


def whole(tokens: Sequence[int], table: Sequence[int]) -> Span:
    """A sequence from its beginning, every row judged."""
    return span_of(tokens, 0, table, len(tokens))


def text(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(vocab_size, (length,), generator=generator).tolist()
    return tokens


def wide_spec(architecture: Any = "llama", **changes: Any) -> ModelSpec:
    """A tiny spec whose matrices have whole quantisation blocks and whose sizes are odd."""
    from outrider.testing.tiny import tiny_spec

    sizes: dict[str, Any] = {
        "vocab_size": 77,
        "hidden_size": 64,
        "head_dim": 32,
        "intermediate_size": 96,
    }
    return tiny_spec(architecture, **{**sizes, **changes})
