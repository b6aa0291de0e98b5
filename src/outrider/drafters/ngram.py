"""Prompt lookup: copy what followed the last earlier occurrence of the current n-gram."""

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import VerifyRule
from outrider.core.sequence import Sequence
from outrider.drafters.base import DrafterSetting
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.ngram_index import NgramIndex
from outrider.tensor.batch import Batch
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps

NAME = "ngram"
DEFAULT_DRAFT_LEN = 5


class NgramDrafter:
    """Needs no weights and no target features; one index per request."""

    taps: Taps = ()

    def __init__(self, max_draft_len: int, *, min_len: int, max_len: int) -> None:
        """Match n-grams of `min_len` to `max_len` tokens."""
        self.max_draft_len = max_draft_len
        self._lens = (min_len, max_len)
        self._indices: dict[RequestId, NgramIndex] = {}

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:  # noqa: ARG002
        """Copy from each request's own text; drafts are certain, so the rule does not matter."""
        return Proposal(
            tuple(
                self._row(row.sequence, row.max_draft_len) if row.max_draft_len else NO_PROPOSAL
                for row in batch
            )
        )

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Learn nothing: the text is read when the next proposal is due."""

    def forget(self, request_id: RequestId) -> None:
        """Drop the request's index."""
        self._indices.pop(request_id, None)

    def _row(self, sequence: Sequence, max_tokens: int) -> RowProposal:
        index = self._indices.get(sequence.id)
        if index is None:
            index = self._indices[sequence.id] = NgramIndex(*self._lens)
        index.extend(sequence.tokens[len(index) :])
        tokens = index.continuation(max_tokens).tokens
        return RowProposal(tokens, sources=(NAME,) * len(tokens))


def build(setting: DrafterSetting) -> NgramDrafter:
    """Build from the speculative config."""
    return of_options(setting.options)


def of_options(options: SpeculativeConfig) -> NgramDrafter:
    """Build from the speculative config alone: there is nothing else to know."""
    return NgramDrafter(
        options.num_speculative_tokens or DEFAULT_DRAFT_LEN,
        min_len=options.prompt_lookup_min,
        max_len=options.prompt_lookup_max,
    )
