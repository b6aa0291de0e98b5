"""Who runs in a step, with how many tokens and which blocks.

Rules: running requests first, in the order they arrived; every one of them gets its next token
before anyone gets drafts or prompt chunks; those take blocks only while there are any and never
push anybody out; when a request cannot get a block for its next token, the youngest running
request is preempted: its blocks go, its tokens stay, and it is read again when there is room.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider.core.ids import RequestId
from outrider.core.sequence import Sequence, Status
from outrider.kvcache.blocks import BlockAllocator
from outrider.kvcache.view import CacheView
from outrider.tensor.batch import Batch, BatchRow


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one step."""

    max_num_seqs: int
    """Most requests in a step."""
    max_num_batched_tokens: int
    """Most tokens in a window, drafts included; at least `max_num_seqs`."""
    max_context_len: int
    """Most tokens of a sequence, prompt and output together."""


class Admission:
    """Waiting and running requests, and their views of the KV cache."""

    def __init__(
        self,
        allocator: BlockAllocator,
        limits: Limits,
        draft_len_of: Callable[[Sequence], int],
    ) -> None:
        """Schedule over `allocator`; `draft_len_of` gives a request's longest draft."""
        self._allocator = allocator
        self._limits = limits
        self._draft_len_of = draft_len_of
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.views: dict[RequestId, CacheView] = {}
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Requests that hold no blocks yet, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is; its blocks become free."""
        if sequence.status is Status.RUNNING:
            self._running.remove(sequence)
            self.views.pop(sequence.id).release()
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        sequence.status = Status.FINISHED

    def preempt_all(self) -> list[RequestId]:
        """Take the blocks of every running request; they wait first again, in their order."""
        ids = [sequence.id for sequence in self._running]
        while self._running:
            self._preempt(self._running[-1])
        return ids

    def next_alone(self, request_id: RequestId) -> Batch:
        """Choose a step with a single request, while nothing else runs; no row if it is gone."""
        assert all(sequence.id == request_id for sequence in self._running)
        waiting = list(self._waiting)
        self._waiting = deque(sequence for sequence in waiting if sequence.id == request_id)
        batch = self.next_batch()
        still_waiting = set(map(id, self._waiting))
        self._waiting = deque(
            sequence
            for sequence in waiting
            if sequence.id != request_id or id(sequence) in still_waiting
        )
        return batch

    def next_batch(self) -> Batch:
        """Choose the rows of the next step and give them blocks."""
        rows: list[BatchRow] = []
        budget = self._limits.max_num_batched_tokens
        preempted_before = self.num_preemptions
        self._reserve_next_tokens()
        for index, sequence in enumerate(self._running):
            # One token is kept back for each request behind this one.
            behind = len(self._running) - index - 1
            rows.append(self._row(sequence, budget - behind))
            budget -= rows[-1].num_known + rows[-1].max_draft_len
        if self.num_preemptions == preempted_before:
            self._admit(rows, budget)
        return Batch(tuple(rows))

    def _reserve_next_tokens(self) -> None:
        """Give every running request a slot for one token, preempting younger ones if need be."""
        index = 0
        while index < len(self._running):
            if self.views[self._running[index].id].extend(1):
                index += 1
            else:
                self._preempt(self._running[-1])

    def _admit(self, rows: list[BatchRow], budget: int) -> None:
        """Move waiting requests into the step while tokens, blocks and places last."""
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting[0]
            view = CacheView(self._allocator)
            num_cached = view.attach_prefix(sequence.tokens)
            num_known = min(len(sequence) - view.kv_len, budget)
            if not view.extend(num_known):
                view.release()
                return
            self._waiting.popleft()
            if sequence.num_rounds == 0 and sequence.num_preemptions == 0:
                sequence.num_cached_prompt = num_cached
            sequence.status = Status.RUNNING
            self._running.append(sequence)
            self.views[sequence.id] = view
            row = self._with_drafts(sequence, view, num_known, budget)
            rows.append(row)
            budget -= row.num_known + row.max_draft_len

    def _row(self, sequence: Sequence, budget: int) -> BatchRow:
        """Give a running request its tokens; of a prompt, as many as there are blocks for."""
        view = self.views[sequence.id]
        num_known = view.extend_up_to(min(len(sequence) - view.kv_len, budget))
        return self._with_drafts(sequence, view, num_known, budget)

    def _with_drafts(
        self, sequence: Sequence, view: CacheView, num_known: int, budget: int
    ) -> BatchRow:
        draft_len = 0
        if view.kv_len + num_known == len(sequence):
            # A round delivers one token more than it accepts, so the last one needs no draft.
            room = min(sequence.num_remaining, self._limits.max_context_len - len(sequence)) - 1
            draft_len = max(0, min(self._draft_len_of(sequence), room, budget - num_known))
            draft_len = view.extend_up_to(num_known + draft_len) - num_known
        return BatchRow(sequence, view.kv_len, num_known, draft_len, tuple(view.blocks))

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.views.pop(sequence.id).release()
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.appendleft(sequence)
