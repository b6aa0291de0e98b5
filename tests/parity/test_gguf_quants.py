"""Every quantisation of GGUF against a plain reading of its bits, one weight at a time."""

import struct
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
import torch

from outrider.models.gguf import SUPPORTED_KINDS, GgufTensor

Block = bytes
K_SCALES: Final = 12


def half(block: Block, at: int) -> float:
    (value,) = struct.unpack_from("<e", block, at)
    return float(value)


def nibbles(packed: Block) -> list[int]:
    """All low nibbles, then all high ones."""
    return [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]


def f32(block: Block) -> list[float]:
    return list(struct.unpack("<f", block))


def f16(block: Block) -> list[float]:
    return [half(block, 0)]


def bf16(block: Block) -> list[float]:
    return list(struct.unpack("<f", b"\0\0" + block))


def q8_0(block: Block) -> list[float]:
    return [half(block, 0) * value for value in struct.unpack_from("<32b", block, 2)]


def q4_0(block: Block) -> list[float]:
    return [half(block, 0) * (value - 8) for value in nibbles(block[2:])]


def q4_1(block: Block) -> list[float]:
    return [half(block, 0) * value + half(block, 2) for value in nibbles(block[4:])]


def fifth_bits(block: Block, at: int) -> list[int]:
    (bits,) = struct.unpack_from("<I", block, at)
    return [(bits >> index & 1) << 4 for index in range(32)]


def q5_0(block: Block) -> list[float]:
    low, high = nibbles(block[6:]), fifth_bits(block, 2)
    return [half(block, 0) * ((a | b) - 16) for a, b in zip(low, high, strict=True)]


def q5_1(block: Block) -> list[float]:
    low, high = nibbles(block[8:]), fifth_bits(block, 4)
    return [half(block, 0) * (a | b) + half(block, 2) for a, b in zip(low, high, strict=True)]


def k_scale_and_min(packed: Block, group: int) -> tuple[int, int]:
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
    return scale, packed[group + 4] >> 4 | packed[group] >> 6 << 4


def k_45(block: Block, fifth: Block, packed: Block) -> list[float]:
    """Eight groups of 32; two neighbouring groups share the 32 bytes of their nibbles."""
    values = []
    for group in range(8):
        scale, minimum = k_scale_and_min(block[4 : 4 + K_SCALES], group)
        for index in range(32):
            byte = packed[group // 2 * 32 + index]
            value = byte >> 4 if group % 2 else byte & 15
            if fifth:
                value |= (fifth[index] >> group & 1) << 4
            values.append(half(block, 0) * scale * value - half(block, 2) * minimum)
    return values


def q4_k(block: Block) -> list[float]:
    return k_45(block, b"", block[16:])


def q5_k(block: Block) -> list[float]:
    return k_45(block, block[16:48], block[48:])


def q6_k(block: Block) -> list[float]:
    low, high = block[:128], block[128:192]
    scales = struct.unpack_from("<16b", block, 192)
    values = []
    for index in range(256):
        part, within = divmod(index, 128)
        quarter, lane = divmod(within, 32)
        byte = low[part * 64 + quarter % 2 * 32 + lane]
        four = byte >> 4 if quarter >= 2 else byte & 15
        two = high[part * 32 + lane] >> 2 * quarter & 3
        value = (four | two << 4) - 32
        values.append(half(block, 208) * scales[index // 16] * value)
    return values


# Reference, bytes of a block, offsets of its half-precision scales.
REFERENCES: Final[dict[str, tuple[Callable[[Block], list[float]], int, tuple[int, ...]]]] = {
    "F32": (f32, 4, ()),
    "F16": (f16, 2, (0,)),
    "BF16": (bf16, 2, ()),
    "Q8_0": (q8_0, 34, (0,)),
    "Q4_0": (q4_0, 18, (0,)),
    "Q4_1": (q4_1, 20, (0, 2)),
    "Q5_0": (q5_0, 22, (0,)),
    "Q5_1": (q5_1, 24, (0, 2)),
    "Q4_K": (q4_k, 144, (0, 2)),
    "Q5_K": (q5_k, 176, (0, 2)),
    "Q6_K": (q6_k, 210, (208,)),
}


def random_blocks(rows: int, per_row: int, kind: str) -> np.ndarray:
    """Random bits with finite scales (and, for whole floats, finite values)."""
    _, num_bytes, scales = REFERENCES[kind]
    rng = np.random.default_rng(sum(map(ord, kind)))
    blocks = rng.integers(0, 256, (rows * per_row, num_bytes), dtype=np.uint8)
    for at in scales:
        halves = rng.normal(size=rows * per_row).astype("<f2")
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if kind in ("F32", "BF16"):
        blocks[:, -1] &= 0b10111111  # keeps the exponent below infinity
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("rows", [1, 48, 37])
@pytest.mark.parametrize("kind", REFERENCES)
def test_dequantisation_equals_reading_the_bits(kind: str, rows: int) -> None:
    """Catches a wrong bit layout and rows mixed up when they are merged for speed."""
    reference, num_bytes, _ = REFERENCES[kind]
    blocks = random_blocks(rows, 3, kind)
    expected = [
        value
        for row in blocks
        for start in range(0, len(row), num_bytes)
        for value in reference(row[start : start + num_bytes].tobytes())
    ]
    shape = (rows, len(expected) // rows)
    values = torch.full(shape, torch.nan)
    GgufTensor("weight", kind, shape, blocks).dequantise_into(values)
    torch.testing.assert_close(
        values.double(),
        torch.tensor(expected, dtype=torch.float64).view(shape),
        rtol=2e-6,
        atol=1e-4,
    )


def test_every_supported_kind_has_a_reference() -> None:
    """Catches a quantisation that is claimed but never checked."""
    assert set(REFERENCES) == SUPPORTED_KINDS


def test_large_tensors_are_read_piece_by_piece_without_a_seam() -> None:
    """Catches rows lost or written twice where one piece ends and the next begins."""
    rows, per_row = 2500, 24
    blocks = random_blocks(rows, per_row, "Q8_0")
    tensor = GgufTensor("weight", "Q8_0", (rows, per_row * 32), blocks)
    values = torch.full(tensor.shape, torch.nan, dtype=torch.float64)
    tensor.dequantise_into(values)
    scales = blocks.reshape(-1, 34)[:, :2].copy().view("<f2").astype(np.float64)
    expected = scales * blocks.reshape(-1, 34)[:, 2:].view(np.int8)
    torch.testing.assert_close(values, torch.from_numpy(expected).view(rows, -1), rtol=1e-6, atol=0)
