"""Who runs: budgets, order, preemption and progress, over random requests and tight memory."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence, Status
from outrider.kvcache.blocks import BlockAllocator
from outrider.sampling.noise import mix
from outrider.schedule.admission import Admission, Limits
from outrider.tensor.batch import Batch

BLOCK = 2


@dataclass(frozen=True)
class Load:
    """Prompt length and output length of each request, and what there is to serve them."""

    requests: list[tuple[int, int]]
    num_blocks: int
    max_num_seqs: int
    spare_tokens: int
    draft_len: int
    seed: int


@st.composite
def loads(draw: st.DrawFn) -> Load:
    sizes = st.tuples(st.integers(1, 9), st.integers(1, 8))
    requests = draw(st.lists(sizes, min_size=1, max_size=7))
    largest = max(-(-(prompt + output) // BLOCK) for prompt, output in requests)
    return Load(
        requests=requests,
        num_blocks=largest + draw(st.integers(0, 6)),
        max_num_seqs=draw(st.integers(1, 5)),
        spare_tokens=draw(st.integers(0, 8)),
        draft_len=draw(st.integers(0, 4)),
        seed=draw(st.integers(0, 1 << 30)),
    )


@dataclass
class World:
    """Plays target and commit: some drafts of every judged row hold, one token is added."""

    load: Load
    draft_len: int
    allocator: BlockAllocator = field(init=False)
    admission: Admission = field(init=False)
    sequences: list[Sequence] = field(init=False)
    num_steps: int = 0

    def __post_init__(self) -> None:
        load = self.load
        self.allocator = BlockAllocator(load.num_blocks, BLOCK)
        self.limits = Limits(load.max_num_seqs, load.max_num_seqs + load.spare_tokens, 64)
        self.admission = Admission(self.allocator, self.limits, lambda sequence: self.draft_len)
        self.sequences = []
        for index, (num_prompt, num_output) in enumerate(load.requests):
            prompt = tuple(mix(index % 2, position) % 2 for position in range(num_prompt))
            params = SamplingParams(max_tokens=num_output)
            request = Request(RequestId(f"r{index}"), prompt, params, seed=index)
            self.sequences.append(Sequence.of(request))
            self.admission.add(self.sequences[-1])

    @property
    def running(self) -> list[Sequence]:
        return [each for each in self.sequences if each.status is Status.RUNNING]

    @property
    def has_work(self) -> bool:
        return not all(sequence.is_finished for sequence in self.sequences)

    def decide(self) -> Batch:
        self.num_steps += 1
        return self.admission.next_batch()

    def play(self, batch: Batch) -> None:
        for row in batch:
            sequence, view = row.sequence, self.admission.views[row.sequence.id]
            if row.is_judged:
                noise = mix(self.load.seed, self.num_steps, *sequence.tokens)
                accepted = noise % (row.max_draft_len + 1)
                sequence.tokens += [mix(noise, slot) % 2 for slot in range(accepted + 1)]
                view.advance(sequence.tokens, len(sequence) - 1)
                if sequence.num_remaining <= 0:
                    self.admission.remove(sequence)
            else:
                view.advance(sequence.tokens, row.kv_len + row.num_known)
        self.allocator.check_integrity()

    def finish(self) -> None:
        most = 20 + 40 * len(self.sequences)
        while self.has_work:
            self.play(self.decide())
            assert self.num_steps < most, "somebody starves"


@given(loads())
def test_a_step_keeps_to_its_bounds(load: Load) -> None:
    """Catches a step that computes more tokens or rows than it has budget or room for."""
    world = World(load, load.draft_len)
    while world.has_work:
        batch = world.decide()
        limits = world.limits
        assert len(batch) <= limits.max_num_seqs
        used = sum(row.num_known + row.max_draft_len for row in batch)
        assert used <= limits.max_num_batched_tokens
        for row in batch:
            end = row.kv_len + row.num_known
            assert row.num_known >= 1, "a row without a token"
            assert len(row.block_table) * BLOCK >= end + row.max_draft_len
            assert row.is_judged or row.max_draft_len == 0
            assert row.max_draft_len < max(row.sequence.num_remaining, 1)
        owned = [b for row in batch for b in row.block_table[row.kv_len // BLOCK :]]
        assert len(owned) == len(set(owned)), "two rows write into one block"
        assert {row.sequence.id for row in batch} == {each.id for each in world.running}
        world.play(batch)


@given(loads())
def test_everybody_finishes(load: Load) -> None:
    """Catches starvation, and two requests that preempt each other for ever."""
    world = World(load, load.draft_len)
    world.finish()
    assert world.allocator.num_free == load.num_blocks
    assert world.admission.num_waiting == world.admission.num_running == 0


@given(loads())
def test_rows_come_in_order_of_arrival_and_the_youngest_is_preempted(load: Load) -> None:
    """Catches a request that loses its place, or an old one pushed out by a young one."""
    world = World(load, load.draft_len)
    order = {sequence.id: index for index, sequence in enumerate(world.sequences)}
    while world.has_work:
        before = world.running
        batch = world.decide()
        rows = [order[row.sequence.id] for row in batch]
        assert rows == sorted(rows)
        out = [order[each.id] for each in before if each.status is Status.WAITING]
        stayed = [order[each.id] for each in before if each.status is Status.RUNNING]
        assert not out or not stayed or min(out) > max(stayed)
        world.play(batch)


@given(loads())
def test_drafts_never_push_anybody_out(load: Load) -> None:
    """Catches drafts of an old request that take the block a young one needs for its token."""
    world = World(load, load.draft_len)
    while world.has_work:
        views = world.admission.views
        needed = sum(
            views[each.id].kv_len == len(views[each.id].blocks) * BLOCK for each in world.running
        )
        is_enough = needed <= world.allocator.num_free
        before = world.admission.num_preemptions
        world.play(world.decide())
        assert not is_enough or world.admission.num_preemptions == before


@given(loads())
def test_a_preempted_request_keeps_its_tokens(load: Load) -> None:
    """Catches output that is lost or repeated when a request comes back."""
    world = World(load, load.draft_len)
    seen = {sequence.id: list(sequence.tokens) for sequence in world.sequences}
    while world.has_work:
        world.play(world.decide())
        for sequence in world.sequences:
            known = seen[sequence.id]
            assert sequence.tokens[: len(known)] == known
            seen[sequence.id] = list(sequence.tokens)
    for sequence, (_, num_output) in zip(world.sequences, load.requests, strict=True):
        assert num_output <= sequence.num_output < num_output + load.draft_len + 1
