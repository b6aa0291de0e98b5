"""The native decoder against the torch decoder in float32 on the same numbers.

With unquantised weights and float32 keys only the order of additions differs. Quantised weights
round the activations of every linear layer to int8, 16-bit codes round keys and values; what
that may cost is bounded here and measured on a real model beside it.
"""

import dataclasses
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from outrider.models.attention import FullCausal
from outrider.models.checkpoint import open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.spec import Architecture, ModelSpec, RopeSpec
from outrider.testing.tiny import tiny_spec, tiny_tensors
from tests.native.machines import TinyModel, machine, require_native, text, whole, wide_spec
from tests.unit.models.gguf_files import write_gguf

TIGHT: Final = 1e-4
CODES: Final = 0.05
ARCHITECTURES: Final[tuple[Architecture, ...]] = ("llama", "qwen2", "qwen3")
TABLE: Final = tuple(range(24))
TAPS: Final = (1, -1, 0)


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


def by_torch(decoder: Decoder, tokens: list[int]) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        positions = torch.arange(len(tokens))
        hidden, features = decoder(torch.tensor(tokens), positions, FullCausal([len(tokens)]), TAPS)
        assert features is not None
        return decoder.logits(hidden), features


def assert_close(model: TinyModel, tolerance: float, kv_type: Any = "float32", length: int = 300):
    tokens = text(length, model.spec.vocab_size)
    expected, expected_features = by_torch(model.reference(), tokens)
    target = model.target(machine(2), kv_type=kv_type)
    scored = target.score_spans([whole(tokens, TABLE)], TAPS)
    torch.testing.assert_close(scored.logits, expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(scored.features, expected_features, atol=4 * tolerance, rtol=0)


@pytest.mark.parametrize("kv_type", ["float32", "int16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_unquantised_weights(architecture: Architecture, kv_type: str) -> None:
    """Catches a missing bias or head norm, a wrong scale, rotation, residual or tap order."""
    tolerance = TIGHT if kv_type == "float32" else CODES
    assert_close(TinyModel(tiny_spec(architecture)), tolerance, kv_type)


ODD: Final[dict[str, dict[str, Any]]] = {
    "one head": {"num_heads": 1, "num_kv_heads": 1},
    "seven to one": {"num_heads": 7, "num_kv_heads": 1, "head_dim": 10},
    "a head per kv head": {"num_heads": 5, "num_kv_heads": 5, "head_dim": 2},
    "thirty-two to one": {"num_heads": 32, "num_kv_heads": 1, "head_dim": 18},
    "wide heads": {"head_dim": 136, "hidden_size": 20},
    "narrow": {"hidden_size": 3, "intermediate_size": 5, "vocab_size": 17},
    "untied": {"tied_head": False, "vocab_size": 33, "hidden_size": 47, "intermediate_size": 65},
}


@pytest.mark.parametrize("sizes", ODD.values(), ids=ODD.keys())
def test_odd_sizes(sizes: dict[str, Any]) -> None:
    """Catches the tail of a vector loop, and heads grouped wrongly."""
    assert_close(TinyModel(tiny_spec("qwen3", **sizes)), TIGHT)


ROPES: Final = {
    "linear": RopeSpec(10000.0, 512, scaling="linear", factor=4.0),
    "llama3": RopeSpec(10000.0, 512, scaling="llama3", factor=8.0, original_max_position=64),
    "yarn": RopeSpec(
        10000.0, 512, scaling="yarn", factor=4.0, original_max_position=128, attention_factor=1.2
    ),
}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_rotary_scalings(rope: RopeSpec) -> None:
    """Catches a scaling that is not taken from the spec, or its factor applied on one side only."""
    assert_close(TinyModel(tiny_spec("llama", rope=rope)), TIGHT)


@pytest.mark.parametrize("weight_format", ["bf16", "q8", "q4"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_weight_formats(architecture: Architecture, weight_format: Any) -> None:
    """Catches scales or minima of the wrong block; the reference has the very same weights."""
    model = TinyModel(wide_spec(architecture), weight_format=weight_format)
    if weight_format == "bf16":
        assert_close(model, TIGHT)
        return
    tokens = text(300, model.spec.vocab_size)
    expected, _ = by_torch(model.reference(), tokens)
    found = model.target(machine(1)).score_spans([whole(tokens, TABLE)]).logits
    assert divergence(expected, found) < 0.01


def divergence(expected: Tensor, found: Tensor) -> float:
    """Mean Kullback-Leibler divergence of the rows, in nats."""
    ours, theirs = found.log_softmax(-1), expected.log_softmax(-1)
    return float((theirs.exp() * (theirs - ours)).sum(-1).mean())


def gguf_spec(architecture: Architecture) -> ModelSpec:
    spec = wide_spec(architecture, tied_head=False)
    return dataclasses.replace(spec, vocab_size=96)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gguf_files(architecture: Architecture, kind: str, tmp_path: Path) -> None:
    """Catches query rows left interleaved, and a format read as another one."""
    from outrider.target.native_target import NativeTarget
    from outrider.target.native_weights import load_native

    spec = gguf_spec(architecture)
    path = write_gguf(
        tmp_path / "tiny.gguf", spec, tiny_tensors(spec, 2), kind=GGMLQuantizationType[kind]
    )
    checkpoint = open_checkpoint(path)
    tokens = text(60, spec.vocab_size)
    expected, _ = by_torch(checkpoint.load_decoder(torch.float32), tokens)
    model = load_native(checkpoint, machine(1), "f32")
    target = NativeTarget(model, num_blocks=24, block_size=16)
    assert divergence(expected, target.score_spans([whole(tokens, TABLE)]).logits) < 0.01
