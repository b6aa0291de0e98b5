"""Decoders from GGUF against decoders from safetensors of the same weights."""

import math
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from outrider.models.attention import FullCausal
from outrider.models.checkpoint import open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.gguf import GgufFile
from outrider.models.gguf_header import read_header
from outrider.models.spec import Architecture, RopeSpec
from outrider.testing.tiny import tiny_decoder, tiny_spec, tiny_tensors
from tests.unit.models.gguf_files import write_gguf

ARCHITECTURES: Final[tuple[Architecture, ...]] = ("llama", "qwen2", "qwen3")


def logits(decoder: Decoder, length: int = 40) -> Tensor:
    ids = torch.arange(length) * 7 % decoder.spec.vocab_size
    with torch.inference_mode():
        return decoder.logits(decoder(ids, torch.arange(length), FullCausal([length]))[0])


@pytest.mark.parametrize("tied_head", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_unquantised_file_gives_the_same_decoder(
    architecture: Architecture, tied_head: bool, tmp_path: Path
) -> None:
    """Catches swapped names, lost biases or norms, and query rows left interleaved (llama only)."""
    spec = tiny_spec(architecture, tied_head=tied_head)
    path = write_gguf(tmp_path / "tiny.gguf", spec, tiny_tensors(spec, seed=2))
    checkpoint = open_checkpoint(path)
    assert checkpoint.spec == spec
    loaded = checkpoint.load_decoder(torch.float32)
    expected = tiny_decoder(spec, seed=2, dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(expected))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_file_gives_nearly_the_same_decoder(kind: str, tmp_path: Path) -> None:
    """Catches quantised query rows interleaved after instead of before dequantisation."""
    spec = tiny_spec(hidden_size=64, intermediate_size=128, num_heads=8)
    quantisation = GGMLQuantizationType[kind]
    tensors = tiny_tensors(spec, seed=2)
    path = write_gguf(tmp_path / "tiny.gguf", spec, tensors, kind=quantisation)
    file = GgufFile(path)
    for name, tensor in tensors.items():
        expected = tensor.float().numpy()
        if expected.ndim > 1:
            packed = gguf.quants.quantize(expected, quantisation)
            expected = gguf.quants.dequantize(packed, quantisation)
        assert torch.equal(file.read(name), torch.from_numpy(expected)), name


def llama3_divisors(rope: RopeSpec, head_dim: int) -> list[float]:
    """What a converter writes into rope_freqs.weight, from the rule of Llama 3.1."""
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * rope.theta ** (2 * pair / head_dim)
        low = rope.original_max_position / rope.low_freq_factor
        high = rope.original_max_position / rope.high_freq_factor
        if wavelength < high:
            divisors.append(1.0)
        elif wavelength > low:
            divisors.append(rope.factor)
        else:
            smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
                rope.high_freq_factor - rope.low_freq_factor
            )
            divisors.append(1 / ((1 - smooth) / rope.factor + smooth))
    return divisors


def test_llama3_divisors_equal_the_llama3_rule(tmp_path: Path) -> None:
    """Catches rope_freqs.weight being ignored, multiplied, or taken as an unknown tensor."""
    rope = RopeSpec(
        theta=500.0, max_position=512, scaling="llama3", factor=8.0, original_max_position=64
    )
    spec = tiny_spec(head_dim=16, rope=rope)
    divisors = llama3_divisors(rope, 16)
    assert len({1.0, 8.0} & set(divisors)) == 2
    assert len(set(divisors)) > 2
    path = write_gguf(
        tmp_path / "tiny.gguf",
        spec,
        tiny_tensors(spec, seed=4),
        extra={"rope_freqs.weight": np.array(divisors, np.float32)},
    )
    loaded = open_checkpoint(path).load_decoder(torch.float32)
    expected = logits(tiny_decoder(spec, 4, torch.float32), 120)
    torch.testing.assert_close(logits(loaded, 120), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
            RopeSpec(10000.0, 512, "linear", factor=4.0, original_max_position=512),
        ),
        (
            {"rope.scale_linear": 4.0},
            RopeSpec(10000.0, 512, "linear", factor=4.0, original_max_position=512),
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
            },
            RopeSpec(
                10000.0,
                512,
                "yarn",
                factor=4.0,
                original_max_position=128,
                attention_factor=1 + 0.1 * math.log(4.0),
            ),
        ),
    ],
    ids=["linear", "legacy linear", "yarn"],
)
def test_rope_scaling_is_read(metadata: dict[str, Any], rope: RopeSpec, tmp_path: Path) -> None:
    """Catches a scaled checkpoint run with unscaled positions."""
    spec = tiny_spec("qwen2", rope=rope)
    keys = {f"qwen2.{key}": value for key, value in metadata.items()}
    path = write_gguf(tmp_path / "t.gguf", spec, tiny_tensors(spec, seed=1), metadata=keys)
    assert open_checkpoint(path).spec.rope == rope


def test_header_equals_what_the_gguf_package_reads(tmp_path: Path) -> None:
    """Catches a misread type, an offset off by the alignment, or dimensions in the wrong order."""
    spec = tiny_spec("qwen3", tied_head=False)
    extra = {
        "a.text": "π",
        "a.flag": True,
        "a.texts": ["", "a", "日本"],
        "a.floats": [0.5, -1.5],
        "a.ints": [1, -2, 3],
    }
    path = write_gguf(tmp_path / "t.gguf", spec, tiny_tensors(spec, seed=1), metadata=extra)
    header, reader = read_header(path), gguf.GGUFReader(path)
    theirs = {
        key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }
    assert header.metadata == theirs
    assert [
        (entry.name, entry.shape, entry.kind, entry.offset, entry.num_bytes)
        for entry in header.tensors.values()
    ] == [
        (t.name, tuple(t.shape.tolist()[::-1]), t.tensor_type, t.data_offset, t.n_bytes)
        for t in reader.tensors
    ]
