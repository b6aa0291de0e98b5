"""What a checkpoint says about its network, as one frozen record.

The record is filled by `hf_config` from a `config.json` and by `gguf_spec` from GGUF metadata; a
setting that this family does not implement is refused there and nowhere else.
"""

import math
from dataclasses import dataclass
from typing import Literal

from outrider.errors import CorruptCheckpoint, UnsupportedModel

Architecture = Literal["llama", "qwen2", "qwen3"]
RopeScaling = Literal["none", "linear", "llama3", "yarn"]

# Above these, a number is damage and would be found out by running out of memory.
_LARGEST_SIZE = 1 << 31
_MOST_LAYERS = 10_000
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "max_context_len",
)

SUPPORTED_ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions become rotation angles.

    `theta` is the base of the geometric series of frequencies; `max_position` is the longest
    position the checkpoint names. The other fields are read only by the scaling that needs them:

    - `linear`: every frequency divided by `factor`.
    - `llama3`: frequencies below a wavelength threshold kept, above one divided by `factor`, in
      between blended (Llama 3.1). With `frequency_divisors`, one per pair of dimensions, those are
      used as they are: GGUF files store the result, not the rule.
    - `yarn`: Peng et al. 2023 (arXiv 2309.00071); `attention_factor` multiplies cosine and sine.
    """

    theta: float
    max_position: int
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    frequency_divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parameters that give no frequencies.

        Raises:
            CorruptCheckpoint: a parameter is out of range.
        """
        positive = (self.factor, self.beta_slow, self.beta_fast, self.attention_factor)
        fine = (
            self.theta > 1.0
            and self.max_position > 0
            and self.original_max_position >= (0 if self.scaling in ("none", "linear") else 1)
            and all(0.0 < value < _LARGEST_SIZE for value in (*positive, *self.frequency_divisors))
            and self.low_freq_factor < self.high_freq_factor
        )
        if not fine:
            raise CorruptCheckpoint(f"rotary settings are out of range: {self}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape of one decoder-only transformer and the token ids that end its text.

    Lengths are in tokens. `max_context_len` is the longest prompt plus output the checkpoint
    claims to handle, rope scaling included.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeSpec
    qkv_bias: bool
    qk_norm: bool
    tied_head: bool
    max_context_len: int
    stop_token_ids: frozenset[int]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        """Refuse sizes that no decoder can have.

        Raises:
            CorruptCheckpoint: a size is not positive, the heads do not divide into groups, or the
                head dimension is odd.
        """
        for name in _SIZES:
            if not 1 <= getattr(self, name) <= _LARGEST_SIZE:
                raise CorruptCheckpoint(
                    f"{name} is {getattr(self, name)}, outside 1 to {_LARGEST_SIZE}"
                )
        if not 0 < self.norm_eps < 1:
            raise CorruptCheckpoint(f"norm_eps is {self.norm_eps}, outside 0 to 1")
        if self.num_layers > _MOST_LAYERS:
            raise CorruptCheckpoint(f"num_layers is {self.num_layers}, above {_MOST_LAYERS}")
        if self.num_heads % self.num_kv_heads:
            raise CorruptCheckpoint(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key heads; "
                "the first must be a multiple of the second"
            )
        if self.head_dim % 2:
            raise CorruptCheckpoint(f"head_dim is {self.head_dim} but rotary pairs need it even")
        divisors = self.rope.frequency_divisors
        if divisors and len(divisors) != self.head_dim // 2:
            raise CorruptCheckpoint(
                f"{len(divisors)} rope divisors do not fit {self.head_dim // 2} rotary pairs"
            )


def unsupported_architecture(found: object) -> UnsupportedModel:
    """The error for an architecture outside this family."""
    return UnsupportedModel(
        f"architecture {str(found)!r} is not implemented; supported: "
        f"{', '.join(SUPPORTED_ARCHITECTURES)} (dense decoder-only checkpoints)"
    )


def yarn_temperature(factor: float, weight: float = 1.0) -> float:
    """`0.1 * weight * ln(factor) + 1`, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def extended_len(rope: RopeSpec) -> int:
    """The longest context, in tokens, that a checkpoint with this rope handles."""
    # A YaRN checkpoint may keep the trained length in max_position and only name the factor.
    if rope.scaling == "yarn":
        return max(rope.max_position, int(rope.factor * rope.original_max_position))
    return rope.max_position
