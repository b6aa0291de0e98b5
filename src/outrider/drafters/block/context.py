"""Which slots of the target's blocks hold a drafter's context of the tokens cached there."""

from collections.abc import Sequence

from outrider.core.ids import BlockId


class ContextBook:
    """Counts, for each block, the leading slots whose context belongs to the target's own content.

    The drafter's pool mirrors the target's: whatever the target computes and keeps at a slot, the
    drafter caches the context of at the same slot, whoever owns the block. So a request that comes
    back, or begins like an earlier one, finds the context in the blocks it shares. Only a round
    whose features the drafter was not shown leaves a gap, which this book knows.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Begin with nothing cached."""
        self._block_size = block_size
        self._filled = [0] * num_blocks

    def knows(self, table: Sequence[BlockId]) -> bool:
        """Whether the drafter's pool has all these blocks; a trial engine may have more."""
        return max(table, default=0) < len(self._filled)

    def note(self, table: Sequence[BlockId], first: int, length: int, *, has_context: bool) -> None:
        """Positions `first` to `first + length - 1` were computed anew, with or without context."""
        size = self._block_size
        if length == 1:  # nearly every row of every step
            block, slot = table[first // size], first % size
            if self._filled[block] >= slot:
                self._filled[block] = slot + has_context
            return
        position, end = first, first + length
        while position < end:
            block, slot = table[position // size], position % size
            stop = min(slot + end - position, size)
            if self._filled[block] >= slot:
                self._filled[block] = stop if has_context else slot
            position += stop - slot

    def covers(self, table: Sequence[BlockId], length: int) -> bool:
        """Whether positions 0 to `length - 1` all have context."""
        size = self._block_size
        full, rest = divmod(length, size)
        if any(self._filled[block] < size for block in table[:full]):
            return False
        return not rest or self._filled[table[full]] >= rest
