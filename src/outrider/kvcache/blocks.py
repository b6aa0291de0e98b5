"""Which block of KV memory belongs to whom. Knows no tensors.

A block holds `block_size` token slots. Blocks are reference-counted, so sequences with the same
beginning share them; a full block of committed tokens carries a hash of everything up to its end
and stays findable after its last owner let go, until its memory is needed (first freed first).
"""

from collections import OrderedDict
from collections.abc import Sequence

from outrider.core.ids import BlockId


class BlockAllocator:
    """Hands out blocks, counts references, finds blocks by prefix.

    Invariant (`check_integrity`): every block is either referenced or free; never both, never lost.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        """Own blocks 0 to `num_blocks` − 1."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._refs = [0] * num_blocks
        # Free blocks, the next one to hand out first: ordered by when they were freed.
        self._free: OrderedDict[BlockId, None] = OrderedDict(
            (BlockId(i), None) for i in range(num_blocks)
        )
        self._block_of: dict[bytes, BlockId] = {}
        self._hash_of: dict[BlockId, bytes] = {}
        self.num_cached = 0
        """Free blocks that can still be found by prefix."""

    @property
    def num_free(self) -> int:
        """Blocks nobody references, cached ones included."""
        return len(self._free)

    def allocate(self) -> BlockId | None:
        """Hand out a block, forgetting what it cached; None when all are in use."""
        if not self._free:
            return None
        block, _ = self._free.popitem(last=False)
        cached = self._hash_of.pop(block, None)
        if cached is not None:
            del self._block_of[cached]
            self.num_cached -= 1
        self._refs[block] = 1
        return block

    def share(self, block: BlockId) -> None:
        """Add a reference to a block found by prefix."""
        if self._refs[block] == 0:
            del self._free[block]
            self.num_cached -= block in self._hash_of
        self._refs[block] += 1

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Drop one reference of each. Give them in token order: a prefix's tail is reused first."""
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} freed twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                self.num_cached += block in self._hash_of
                if block not in self._hash_of:  # Nothing worth keeping: reuse it at once.
                    self._free.move_to_end(block, last=False)

    def publish(self, block: BlockId, prefix: bytes) -> None:
        """Make a full block findable under the hash of everything up to its end."""
        if self.prefix_caching and prefix not in self._block_of and block not in self._hash_of:
            self._block_of[prefix] = block
            self._hash_of[block] = prefix

    def find(self, prefix: bytes) -> BlockId | None:
        """Find the block that holds the end of this prefix."""
        return self._block_of.get(prefix)

    def references(self, block: BlockId) -> int:
        """Count the owners of a block."""
        return self._refs[block]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for exactly once."""
        for block, count in enumerate(self._refs):
            assert (count == 0) == (block in self._free), f"block {block}: {count} references"
        assert len(self._block_of) == len(self._hash_of)
        assert all(self._block_of[h] == block for block, h in self._hash_of.items())
        assert self.num_cached == sum(block in self._free for block in self._hash_of)
