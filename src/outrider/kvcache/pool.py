"""The memory behind the blocks: key and value tensors of all layers, addressed by slot.

Slot of position i of a sequence = block_table[i // block_size] * block_size + i % block_size.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Slots = Int[Tensor, "..."]


@dataclass(frozen=True, slots=True)
class KVPool:
    """Keys and values, `[layers, slots, kv_heads, head_dim]` each. Contents are mutable."""

    keys: Float[Tensor, "layers slots kv_heads head_dim"]
    values: Float[Tensor, "layers slots kv_heads head_dim"]
    block_size: int

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int, int],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "KVPool":
        """Reserve memory, all zeros; `shape` is (layers, kv_heads, head_dim)."""
        layers, kv_heads, head_dim = shape
        size = (layers, num_blocks * block_size, kv_heads, head_dim)
        keys = torch.zeros(size, dtype=dtype, device=device)
        return cls(keys, torch.zeros_like(keys), block_size)

    def write(
        self,
        layer: int,
        slots: Int[Tensor, " tokens"],
        keys: Float[Tensor, "tokens kv_heads head_dim"],
        values: Float[Tensor, "tokens kv_heads head_dim"],
    ) -> None:
        """Store one layer's keys and values at their slots."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)


def bytes_per_token(shape: tuple[int, int, int], dtype: torch.dtype) -> int:
    """Bytes one cached token takes over all layers, keys and values."""
    layers, kv_heads, head_dim = shape
    return 2 * layers * kv_heads * head_dim * dtype.itemsize
