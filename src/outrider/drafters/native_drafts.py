"""Cheap drafts in C++: one call per step for the whole batch, equal to `cheap.PlainDrafts`.

About 0.1 kB per token of text. The drafts keep the interpreter lock: giving it away for some
microseconds could cost a switch to another thread of milliseconds.
"""

from collections.abc import Sequence
from typing import Final

from outrider.core.ids import RequestId
from outrider.drafters import blend
from outrider.drafters.cheap import LAST_SLOT, CheapDraft, DraftCall, MergedDraft, columns_of
from outrider.drafters.ngram_table_file import NgramTable
from outrider.drafters.suffix_automaton import DEFAULT_MAX_CONTEXT, DOUBT
from outrider.native.drafts import BlendRule, DraftMaker, DraftText
from outrider.tensor.window import RowProposal

_NAMES: Final = (blend.SUFFIX, blend.TABLE)


class NativeDrafts:
    """See `cheap.CheapDrafts`; importing this needs the compiled extension.

    Tokens are numbers below 2^31; other ones are refused with a ValueError.
    """

    def __init__(self, table: NgramTable | None) -> None:
        """Draft from texts and, if it is there, `table`, which is not copied."""
        self._rule = _rule()
        if table is None:
            self._maker = DraftMaker(self._rule, _NAMES)
        else:
            offsets, entries = table.memory
            self._maker = DraftMaker(self._rule, _NAMES, offsets, entries, table.header.max_order)
        self._texts: dict[RequestId, DraftText] = {}

    def draft(
        self, calls: Sequence[DraftCall], *, least: float, row_tokens: float
    ) -> list[CheapDraft]:
        """See `CheapDrafts`."""
        texts = self._texts
        for call in calls:
            if call.request_id not in texts:
                texts[call.request_id] = DraftText(self._rule)
        drafted = self._maker.draft(
            [(texts[c.request_id], c.tokens, c.most, c.is_greedy, c.is_blind) for c in calls],
            least,
            row_tokens,
        )
        return [CheapDraft._make(draft) for draft in drafted]

    def merge(self, said: Sequence[tuple[RequestId, RowProposal]]) -> list[MergedDraft]:
        """See `CheapDrafts`."""
        merged = self._maker.merge(
            [(self._texts[name], row.tokens, *columns_of(row)) for name, row in said]
        )
        return [MergedDraft._make(draft) for draft in merged]

    def learn(self, judged: Sequence[tuple[RequestId, int, int]]) -> list[float]:
        """See `CheapDrafts`."""
        return self._maker.learn(
            [(self._texts[name], accepted, verified) for name, accepted, verified in judged]
        )

    def forget(self, request_id: RequestId) -> None:
        """See `CheapDrafts`."""
        self._texts.pop(request_id, None)


def _rule() -> BlendRule:
    rule = BlendRule()
    rule.max_context, rule.doubt = DEFAULT_MAX_CONTEXT, DOUBT
    rule.most_certain = blend.MOST_CERTAIN
    rule.agreed, rule.agreed_by_table = blend.AGREED, blend.AGREED_BY_TABLE
    rule.opposed, rule.opposed_by_len = blend.OPPOSED, blend.OPPOSED_BY_LEN
    rule.rate, rule.most_correction = blend.RATE, blend.MOST_CORRECTION
    rule.last_slot = LAST_SLOT
    return rule
