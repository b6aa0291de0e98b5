"""The parts every layer is made of: norm, rotary tables, gated MLP."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from outrider.models.spec import RopeSpec
from outrider.tensor.shapes import Hidden, Positions

RotaryTable = Float[Tensor, "tokens 1 head_dim"]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        """Create a norm over `size` features with an uninitialised weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, inputs: Float[Tensor, "*rows size"]) -> Float[Tensor, "*rows size"]:
        """Normalise and scale; the dtype of the input is kept."""
        return functional.rms_norm(inputs, self.weight.shape, self.weight, self.eps)


class Linear(nn.Linear):
    """A linear layer that leaves its weights uninitialised, because a checkpoint fills them."""

    def reset_parameters(self) -> None:
        """Draw nothing: it costs a second of imports on the meta device, and the global RNG."""


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, gate and up in one product, gate rows first."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        """Create the projections."""
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down = Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, hidden: Hidden) -> Hidden:
        """Apply the gated MLP to every row."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        projected: Hidden = self.down(functional.silu(gate) * up)
        return projected


class Rotary:
    """Cosine and sine of every position, in the rotate-half layout.

    Not a module: a buffer would follow the decoder's dtype, and frequencies in bfloat16 are wrong.
    """

    def __init__(self, rope: RopeSpec, head_dim: int) -> None:
        """Prepare tables for heads of `head_dim` dimensions."""
        self._rope = rope
        self._head_dim = head_dim
        self._frequencies: dict[tuple[torch.device, torch.dtype], Float[Tensor, " pairs"]] = {}

    def tables(self, positions: Positions, dtype: torch.dtype) -> tuple[RotaryTable, RotaryTable]:
        """Return cosine and signed sine, for `rotate`.

        Angles are computed in float32 (float64 when `dtype` is float64) and then rounded. The first
        half of the sine is negated, which saves `rotate` an operation.
        """
        wide = torch.promote_types(dtype, torch.float32)
        key = (positions.device, wide)
        if key not in self._frequencies:
            frequencies = inverse_frequencies(self._rope, self._head_dim, wide)
            self._frequencies[key] = frequencies.to(positions.device)
        angles = positions.to(wide)[:, None, None] * self._frequencies[key]
        cos = angles.cos() * self._rope.attention_factor
        sin = angles.sin() * self._rope.attention_factor
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(
    rows: Float[Tensor, "tokens any_heads head_dim"], cos: RotaryTable, signed_sin: RotaryTable
) -> Float[Tensor, "tokens any_heads head_dim"]:
    """Turn pairs `(i, i + head_dim / 2)` by the angle of their position."""
    swapped = rows.roll(rows.shape[-1] // 2, -1)
    return torch.addcmul(rows * cos, swapped, signed_sin)


def inverse_frequencies(
    rope: RopeSpec, head_dim: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " pairs"]:
    """Angle per position of every pair of dimensions, after the scaling of `rope`.

    The arithmetic is done in `dtype`, in the order of the reference implementation, so that float32
    frequencies agree with it to the bit or nearly so.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=dtype) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.frequency_divisors:
        return frequencies / torch.tensor(rope.frequency_divisors, dtype=dtype)
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "llama3":
        return _llama3(frequencies, rope)
    if rope.scaling == "yarn":
        return _yarn(frequencies, rope, head_dim)
    return frequencies


def _llama3(frequencies: Float[Tensor, " pairs"], rope: RopeSpec) -> Float[Tensor, " pairs"]:
    turns = rope.original_max_position * frequencies / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = ((turns - rope.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn(
    frequencies: Float[Tensor, " pairs"], rope: RopeSpec, head_dim: int
) -> Float[Tensor, " pairs"]:
    def dimension_turning(times: float) -> float:
        """Pair index whose wavelength fits `times` into the original context."""
        wavelength = rope.original_max_position / (times * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension_turning(rope.beta_fast), dimension_turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    pair = torch.arange(head_dim // 2, dtype=frequencies.dtype)
    stretched = ((pair - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / rope.factor * stretched + frequencies * (1 - stretched)
