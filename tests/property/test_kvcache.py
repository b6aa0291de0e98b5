"""The paged cache as a state machine, with a memory that remembers what was written where."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from outrider.core.ids import BlockId
from outrider.kvcache.blocks import BlockAllocator
from outrider.kvcache.view import CacheView

BLOCK, NUM_BLOCKS = 2, 7
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Owner:
    """A sequence and its view; `attached` tokens were found in the cache."""

    def __init__(self, view: CacheView, tokens: list[int]) -> None:
        self.view, self.tokens = view, tokens

    def slot(self, position: int) -> int:
        return self.view.blocks[position // BLOCK] * BLOCK + position % BLOCK


class PagedCache(RuleBasedStateMachine):
    """Sequences come, grow by windows with drafts, and go; the memory must always be theirs."""

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(NUM_BLOCKS, BLOCK)
        self.alive: list[Owner] = []
        # As keys and values do, a slot depends on its token and on everything before it.
        self.memory: dict[int, tuple[int, ...]] = {}

    @rule(target=owners, tokens=TOKENS)
    def start_anew(self, tokens: list[int]) -> Owner:
        return self.start(tokens)

    def start(self, tokens: list[int]) -> Owner:
        owner = Owner(CacheView(self.allocator), tokens)
        before = self.allocator.num_free
        num_cached = owner.view.attach_prefix(tokens)
        assert num_cached == owner.view.kv_len < len(tokens)
        assert num_cached % BLOCK == 0
        assert before - self.allocator.num_free <= num_cached // BLOCK
        self.alive.append(owner)
        return owner

    @rule(target=owners, owner=owners, more=TOKENS)
    def start_alike(self, owner: Owner, more: list[int]) -> Owner:
        """A request that begins with all another one has said."""
        return self.start([*owner.tokens, *more])

    @rule(owner=owners, drafts=st.lists(st.integers(0, 1), max_size=5), data=st.data())
    def compute(self, owner: Owner, drafts: list[int], data: st.DataObject) -> None:
        """A window: known tokens, then drafts as far as there is room; some hold, one is added."""
        view, known = owner.view, owner.tokens[owner.view.kv_len :]
        if not view.extend(len(known)):
            assert len(known) > len(view.blocks) * BLOCK - view.kv_len, "room was refused"
            return
        fits = view.extend_up_to(len(known) + len(drafts)) - len(known)
        assert 0 <= fits <= len(drafts)
        assert fits == len(drafts) or self.allocator.num_free == 0, "drafts cut with blocks left"
        text = [*owner.tokens, *drafts[:fits]]
        for position in range(view.kv_len, len(text)):
            self.memory[owner.slot(position)] = tuple(text[: position + 1])
        accepted = data.draw(st.integers(0, fits))
        owner.tokens += [*drafts[:accepted], data.draw(st.integers(0, 1))]
        view.advance(owner.tokens, len(owner.tokens) - 1)

    @rule(owner=owners, num_tokens=st.integers(0, 30))
    def try_to_extend(self, owner: Owner, num_tokens: int) -> None:
        """All or nothing, and the blocks come back."""
        before = list(owner.view.blocks)
        free = self.allocator.num_free
        if owner.view.extend(num_tokens):
            assert len(owner.view.blocks) * BLOCK >= owner.view.kv_len + num_tokens
        else:
            assert owner.view.blocks == before
            assert self.allocator.num_free == free
        owner.view.roll_back()
        assert len(owner.view.blocks) == -(-owner.view.kv_len // BLOCK)

    @rule(owner=owners)
    def preempt(self, owner: Owner) -> None:
        """The blocks go, the tokens stay, and what is still cached is found again."""
        owner.view.release()
        assert owner.view.blocks == []
        assert owner.view.kv_len == 0
        owner.view.attach_prefix(owner.tokens)

    @rule(owner=consumes(owners))
    def end(self, owner: Owner) -> None:
        owner.view.release()
        self.alive.remove(owner)

    @invariant()
    def books_are_right(self) -> None:
        self.allocator.check_integrity()
        counts = dict.fromkeys(range(NUM_BLOCKS), 0)
        for owner in self.alive:
            for block in owner.view.blocks:
                counts[block] += 1
        assert counts == {b: self.allocator.references(BlockId(b)) for b in range(NUM_BLOCKS)}
        assert self.allocator.num_free == list(counts.values()).count(0)

    @invariant()
    def memory_is_what_was_committed(self) -> None:
        """The promise of a view: position i < kv_len holds token i, shared blocks included."""
        for owner in self.alive:
            view = owner.view
            cached = [self.memory.get(owner.slot(i)) for i in range(view.kv_len)]
            assert cached == [tuple(owner.tokens[: i + 1]) for i in range(view.kv_len)]


TestPagedCache = PagedCache.TestCase
TestPagedCache.settings = settings(stateful_step_count=30)


def committed(allocator: BlockAllocator, tokens: list[int]) -> CacheView:
    """A view that has computed and committed all of `tokens` but the last."""
    view = CacheView(allocator)
    assert view.extend(len(tokens))
    view.advance(tokens, len(tokens) - 1)
    return view


def test_a_freed_prefix_is_found_and_the_longest_unused_is_overwritten_first() -> None:
    """Catches a cache that forgets on release, or evicts the most recent prefix first."""
    allocator = BlockAllocator(4, BLOCK)
    old, new = [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]
    for tokens in (old, new):
        committed(allocator, tokens).release()
    other = CacheView(allocator)
    assert other.extend(2 * BLOCK)
    assert CacheView(allocator).attach_prefix(old) == 0
    assert CacheView(allocator).attach_prefix(new) == 4


def test_the_tail_of_a_prefix_is_overwritten_before_its_head() -> None:
    """Catches eviction of a prefix's first block, which makes all its others unreachable."""
    allocator = BlockAllocator(4, BLOCK)
    tokens = [0, 1, 0, 1, 1, 1, 0]
    committed(allocator, tokens).release()
    assert CacheView(allocator).extend(2 * BLOCK)
    assert CacheView(allocator).attach_prefix(tokens) == 4


def test_equal_blocks_after_different_prefixes_are_different() -> None:
    """Catches a hash of the block alone: keys and values depend on everything before."""
    allocator = BlockAllocator(8, BLOCK)
    committed(allocator, [0, 0, 1, 1, 0]).release()
    assert CacheView(allocator).attach_prefix([1, 1, 1, 1, 0]) == 0
    assert CacheView(allocator).attach_prefix([0, 0, 1, 1, 0]) == 4


def test_without_prefix_caching_nothing_is_found() -> None:
    """Catches a switch that does nothing."""
    allocator = BlockAllocator(8, BLOCK, prefix_caching=False)
    committed(allocator, [0, 0, 1, 1, 0]).release()
    assert CacheView(allocator).attach_prefix([0, 0, 1, 1, 0]) == 0


def test_freeing_twice_is_noticed() -> None:
    """Catches a double free, after which two sequences would own one block."""
    allocator = BlockAllocator(2, BLOCK)
    block = allocator.allocate()
    assert block is not None
    allocator.free([block])
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free([block])
