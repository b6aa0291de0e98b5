"""Drafts from a table of n-grams counted on the target's own text: no network, no warm-up."""

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import VerifyRule
from outrider.drafters.base import DrafterSetting
from outrider.drafters.ngram_table_file import NgramTable, open_table
from outrider.errors import ConfigError
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps

NAME = "ngram-table"
DEFAULT_DRAFT_LEN = 5


class NgramTableDrafter:
    """Needs no weights and no target features, and remembers nothing of a request."""

    taps: Taps = ()

    def __init__(self, table: NgramTable, max_draft_len: int, *, min_survival: float) -> None:
        """Stop a draft where its estimated survival falls below `min_survival`."""
        self.max_draft_len = max_draft_len
        self._table = table
        self._min_survival = min_survival

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:  # noqa: ARG002
        """Follow the table from each anchor; drafts are certain, so the rule does not matter."""
        return Proposal(
            tuple(self._row(row) if row.max_draft_len else NO_PROPOSAL for row in batch)
        )

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Learn nothing: the table is what it is."""

    def forget(self, request_id: RequestId) -> None:
        """Drop nothing: there is no state."""

    def _row(self, row: BatchRow) -> RowProposal:
        recent = row.sequence.tokens[-self._table.header.max_order :]
        guesses = self._table.draft(recent, row.max_draft_len, self._min_survival)
        return RowProposal(
            tuple(guess.token for guess in guesses),
            confidence=tuple(guess.chance for guess in guesses),
            sources=(NAME,) * len(guesses),
        )


def build(setting: DrafterSetting) -> NgramTableDrafter:
    """Build from the speculative config.

    Raises:
        ConfigError: No table is named.
        ModelError: The table cannot be used with this target.
    """
    options = setting.options
    if options.model is None:
        raise ConfigError(
            f'method {NAME!r} needs a table; add "model": a file made by '
            "outrider train --method ngram-table"
        )
    return NgramTableDrafter(
        open_table(options.model, setting.checkpoint),
        options.num_speculative_tokens or DEFAULT_DRAFT_LEN,
        min_survival=options.min_survival,
    )
