"""Which slots have context: the counts per block against a mark per slot."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ids import BlockId
from outrider.drafters.block.context import ContextBook

SIZE, NUM_BLOCKS = 4, 6

tables = st.permutations(range(NUM_BLOCKS)).map(lambda blocks: blocks[:4])
writes = st.tuples(tables, st.integers(0, 15), st.integers(0, 9), st.booleans())


class Marks:
    """The plain way: a slot is good if it was last computed with context, behind good slots.

    Computing a slot makes what follows it in its block another sequence's.
    """

    def __init__(self) -> None:
        self.good = [[False] * SIZE for _ in range(NUM_BLOCKS)]

    def note(self, table: list[int], first: int, length: int, has_context: bool) -> None:
        for position in range(first, min(first + length, 4 * SIZE)):
            block, slot = self.good[table[position // SIZE]], position % SIZE
            block[slot:] = [has_context and all(block[:slot])] + [False] * (SIZE - slot - 1)

    def covers(self, table: list[int], length: int) -> bool:
        return all(self.good[table[i // SIZE]][i % SIZE] for i in range(length))


@given(st.lists(writes, max_size=12), tables)
def test_the_book_is_the_marks(
    listed: list[tuple[list[int], int, int, bool]], asked: list[int]
) -> None:
    """Catches a forgotten gap, or a block whose old owner's context counts for the new."""
    book, marks = ContextBook(NUM_BLOCKS, SIZE), Marks()
    for table, first, length, has_context in listed:
        length = min(length, 4 * SIZE - first)
        book.note([BlockId(b) for b in table], first, length, has_context=has_context)
        marks.note(table, first, length, has_context)
    for length in range(4 * SIZE + 1):
        blocks = [BlockId(block) for block in asked]
        assert book.covers(blocks, length) == marks.covers(asked, length), length
