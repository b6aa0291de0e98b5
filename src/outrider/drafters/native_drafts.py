"""Cheap drafts in C++: one call per step for the whole batch, equal to `cheap.PlainDrafts`.

About 130 bytes per token of text. The drafts keep the interpreter lock: giving it away for some
microseconds could cost a switch to another thread of milliseconds.
"""

from collections.abc import Sequence
from typing import Final

from outrider.drafters import blend
from outrider.drafters.cheap import LAST_SLOT, CheapDraft, DraftCall, MergedDraft, columns_of
from outrider.drafters.ngram_table_file import NgramTable
from outrider.drafters.suffix_automaton import DEFAULT_MAX_CONTEXT, DOUBT
from outrider.native.drafts import BlendRule, DraftMaker, DraftText
from outrider.tensor.window import RowProposal

_NAMES: Final = (blend.SUFFIX, blend.TABLE)
_RECORDS: Final = (CheapDraft, MergedDraft)


class NativeDrafts:
    """See `cheap.CheapDrafts`; importing this needs the compiled extension.

    Tokens are numbers below 2^31; other ones are refused with a ValueError.
    """

    def __init__(self, table: NgramTable | None) -> None:
        """Draft from texts and, if it is there, `table`, which is not copied."""
        self._rule = _rule()
        offsets, entries = (None, None) if table is None else table.memory
        max_order = 1 if table is None else table.header.max_order
        self._maker = DraftMaker(self._rule, _NAMES, _RECORDS, offsets, entries, max_order)

    def new_text(self) -> DraftText:
        """See `CheapDrafts`."""
        return DraftText(self._rule)

    def draft(
        self, calls: Sequence[DraftCall], *, least: float, row_tokens: float
    ) -> list[CheapDraft]:
        """See `CheapDrafts`."""
        return self._maker.draft(calls, least, row_tokens)

    def merge(self, said: Sequence[tuple[DraftText, RowProposal]]) -> list[MergedDraft]:
        """See `CheapDrafts`."""
        return self._maker.merge([(text, row.tokens, *columns_of(row)) for text, row in said])

    def learn(self, judged: Sequence[tuple[DraftText, int, int]]) -> list[float]:
        """See `CheapDrafts`."""
        return self._maker.learn(judged)


def _rule() -> BlendRule:
    rule = BlendRule()
    rule.max_context, rule.doubt = DEFAULT_MAX_CONTEXT, DOUBT
    rule.most_certain = blend.MOST_CERTAIN
    rule.agreed, rule.agreed_by_table = blend.AGREED, blend.AGREED_BY_TABLE
    rule.opposed, rule.opposed_by_len = blend.OPPOSED, blend.OPPOSED_BY_LEN
    rule.rate, rule.most_correction = blend.RATE, blend.MOST_CORRECTION
    rule.last_slot = LAST_SLOT
    return rule
