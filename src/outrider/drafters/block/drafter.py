"""Drafting with a trained block drafter (DFlash, DSpark): a whole block in one forward.

Between rounds the drafter holds nothing of a request but the context of its positions, in the
target's own blocks, and the features of the last rounds, which are turned into context by the next
draft. There is nothing to compute again when a request returns.

While nobody asks for drafts (`PATIENCE`), or more than twice as many requests run as when somebody
did, context would be computed for nothing: then features are kept as they are, and where they grow
too many, the oldest are given up. A request that lost some does not draft any more.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome, RowOutcome
from outrider.core.request import VerifyRule
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.context import ContextBook
from outrider.drafters.block.runner import BlockRow, BlockRunner, NewContext
from outrider.errors import ConfigError
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.shapes import Hidden
from outrider.tensor.window import NO_PROPOSAL, Proposal, Scores, Taps

MOST_UNWRITTEN = 64
"""Rows of features that wait for the next draft; a prompt's are turned into context at once."""
PATIENCE = 8
"""Rounds without a draft after which features wait for one, however many they are."""
MOST_KEPT = 2048
"""Rows of features that wait then."""


class _Unwritten(NamedTuple):
    """What a round kept of a request, whose features from row `first` on have no context yet."""

    kept: RowOutcome
    features: Hidden
    first: int

    def context(self) -> NewContext:
        """Cut the rows out."""
        row = self.kept
        features = self.features[self.first : self.first + row.num_cached]
        return NewContext(row.kv_len, row.block_table, features)


class BlockDrafter:
    """Drafts the same number of tokens for every request whose context is complete.

    A request does not draft where a position before its anchor has no context (its features were
    never shown) or where the block would outgrow the longest context of the drafter.
    """

    def __init__(
        self,
        runner: BlockRunner,
        config: BlockConfig,
        *,
        num_blocks: int,
        block_size: int,
        max_draft_len: int | None = None,
        name: str = "dspark",
    ) -> None:
        """Draft with `runner`, whose pool has the target's `num_blocks` of `block_size` tokens.

        Its tokens say that they come from `name`.

        Raises:
            ConfigError: `max_draft_len` is more than a block of this drafter holds.
        """
        if max_draft_len is not None and max_draft_len > config.num_drafts:
            raise ConfigError(
                f"num_speculative_tokens is {max_draft_len}, but this drafter was trained for "
                f"{config.num_drafts} tokens per round (block_size {config.block_size}, layout "
                f"{config.layout}); ask for {config.num_drafts} or fewer"
            )
        self.max_draft_len = max_draft_len or config.num_drafts
        self.taps: Taps = config.target_layer_ids
        self._config = config
        self._name = name
        self._runner = runner
        self._book = ContextBook(num_blocks, block_size)
        self._unwritten: deque[_Unwritten] = deque()
        self._num_unwritten = 0
        self._rounds_unasked = 0
        self._asked_among, self._num_requests = 1, 1

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """Draft one block for every request that can."""
        indices = [i for i, row in enumerate(batch) if self._can_draft(row)]
        if not indices:
            return Proposal.nothing(batch)
        self._rounds_unasked, self._asked_among = 0, len(batch)
        drafted = self._runner.draft(
            self._take_unwritten(), [self._block_row(batch.rows[i], rule) for i in indices]
        )
        proposals = [NO_PROPOSAL] * len(batch)
        for index, proposal in zip(indices, drafted, strict=True):
            proposals[index] = replace(proposal, sources=(self._name,) * len(proposal.tokens))
        return Proposal(tuple(proposals))

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Take the features of what was computed and kept."""
        features = scores.features
        for row, first in zip(outcome.rows, scores.first_token, strict=True):
            length = row.num_cached
            if not length or not self._book.knows(row.block_table):
                continue
            self._book.note(row.block_table, row.kv_len, length, has_context=features is not None)
            if features is not None:
                self._num_unwritten += length
                self._unwritten.append(_Unwritten(row, features, first))
        self._rounds_unasked += 1
        self._num_requests = len(outcome.rows)
        if self._is_unasked:
            while self._num_unwritten > MOST_KEPT:
                self._give_up(self._unwritten.popleft().kept)
        elif self._num_unwritten > MOST_UNWRITTEN:
            self._runner.draft(self._take_unwritten(), [])

    def forget(self, request_id: RequestId) -> None:
        """Leave a request's context with its blocks, for whoever shares them.

        Of unwritten features those that may never be asked for are given up.
        """
        if not self._is_unasked:
            return
        kept: deque[_Unwritten] = deque()
        for each in self._unwritten:
            if each.kept.request_id == request_id:
                self._give_up(each.kept)
            else:
                kept.append(each)
        self._unwritten = kept

    @property
    def _is_unasked(self) -> bool:
        is_busy = self._num_requests > 2 * self._asked_among
        return is_busy or self._rounds_unasked > PATIENCE

    def _take_unwritten(self) -> Sequence[NewContext]:
        taken = [each.context() for each in self._unwritten]
        self._unwritten.clear()
        self._num_unwritten = 0
        return taken

    def _give_up(self, lost: RowOutcome) -> None:
        """Note that these positions will have no context."""
        self._num_unwritten -= lost.num_cached
        self._book.note(lost.block_table, lost.kv_len, lost.num_cached, has_context=False)

    def _can_draft(self, row: BatchRow) -> bool:
        """Whether only the anchor is uncached and everything before it has context."""
        return (
            row.max_draft_len > 0
            and row.num_known == 1
            and row.kv_len + self._config.block_size <= self._config.max_context_len
            and self._book.knows(row.block_table)
            and self._book.covers(row.block_table, row.kv_len)
        )

    def _block_row(self, row: BatchRow, rule: VerifyRule) -> BlockRow:
        return BlockRow(
            row.sequence,
            row.kv_len,
            row.block_table,
            min(row.max_draft_len, self.max_draft_len),
            row.sequence.params.verify_rule or rule,
        )
