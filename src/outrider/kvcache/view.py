"""One sequence's part of a paged cache: extend, advance, roll back, release.

The owner of a view keeps the promise that a key/value at position i < kv_len belongs to token i of
its sequence. Slots from `kv_len` on may hold anything: drafts are written there and forgotten.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from outrider.core.ids import BlockId
from outrider.kvcache.blocks import BlockAllocator


@dataclass(slots=True)
class CacheView:
    """Block table of one sequence and how many of its tokens are cached."""

    can_roll_back: ClassVar[bool] = True

    allocator: BlockAllocator
    blocks: list[BlockId] = field(default_factory=list)
    kv_len: int = 0
    _hashes: list[bytes] = field(default_factory=list)

    def attach_prefix(self, tokens: Sequence[int]) -> int:
        """Share cached blocks that hold the beginning of `tokens`; return their number of tokens.

        At least one token is left to compute: its logits are needed.
        """
        assert not self.blocks, "a prefix is attached to an empty view"
        size = self.allocator.block_size
        for start in range(0, len(tokens) - 1 - size + 1, size):
            prefix = self._hash_after(tokens, start)
            block = self.allocator.find(prefix)
            if block is None:
                break
            self.allocator.share(block)
            self.blocks.append(block)
            self._hashes.append(prefix)
        self.kv_len = len(self.blocks) * size
        return self.kv_len

    def extend(self, num_tokens: int) -> bool:
        """Make room for `num_tokens` after `kv_len`; take nothing when there is not enough."""
        missing = self._blocks_for(num_tokens) - len(self.blocks)
        if missing > self.allocator.num_free:
            return False
        for _ in range(missing):
            block = self.allocator.allocate()
            assert block is not None
            self.blocks.append(block)
        return True

    def extend_up_to(self, num_tokens: int) -> int:
        """Make room for as many of `num_tokens` as there is; return how many fit."""
        size = self.allocator.block_size
        most = (len(self.blocks) + self.allocator.num_free) * size - self.kv_len
        fits = max(min(num_tokens, most), 0)
        taken = self.extend(fits)
        assert taken
        return fits

    def advance(self, tokens: Sequence[int], kv_len: int) -> None:
        """Note that `tokens[:kv_len]` are committed and cached; full blocks become findable.

        Blocks that only held rejected drafts go back.
        """
        assert kv_len >= self.kv_len, "committed tokens are never taken back"
        size = self.allocator.block_size
        self.kv_len = kv_len
        if self.allocator.prefix_caching:
            for index in range(len(self._hashes), kv_len // size):
                prefix = self._hash_after(tokens, index * size)
                self._hashes.append(prefix)
                self.allocator.publish(self.blocks[index], prefix)
        self.roll_back()

    def roll_back(self) -> None:
        """Give back the blocks past `kv_len`."""
        keep = self._blocks_for(0)
        surplus = self.blocks[keep:]
        if surplus:
            del self.blocks[keep:]
            self.allocator.free(surplus)

    def release(self) -> None:
        """Give back everything; the sequence starts over from its first token."""
        self.allocator.free(self.blocks)
        self.blocks.clear()
        self._hashes.clear()
        self.kv_len = 0

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-(self.kv_len + num_tokens) // self.allocator.block_size)

    def _hash_after(self, tokens: Sequence[int], start: int) -> bytes:
        """Hash the block of tokens at `start`, chained to everything before it.

        Cryptographic, since a collision would serve one user's context to another.
        """
        size = self.allocator.block_size
        before = self._hashes[start // size - 1] if start else b""
        chunk = struct.pack(f"<{size}q", *tokens[start : start + size])
        return hashlib.blake2b(before + chunk, digest_size=16).digest()
