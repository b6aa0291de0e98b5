"""What the scheduler is told of a step, and what the report tells of a round."""

from dataclasses import replace
from typing import Final

from outrider.core.outcome import RowOutcome
from outrider.core.request import VERIFY_RULES, VerifyRule
from outrider.core.rounds import Round
from outrider.core.sequence import Sequence
from outrider.engine.reader import TextReader
from outrider.schedule.confidence import Said
from outrider.schedule.lengths import BatchShape
from outrider.schedule.planner import DraftedRow, DraftedStep
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import Proposal, RowProposal

_SILENT: Final = {kind: Said(0, None, kind) for kind in ("greedy", *VERIFY_RULES)}
"""Of a row without a draft."""


def described(
    batch: Batch,
    proposal: Proposal,
    rule: VerifyRule,
    draft_seconds: float,
    reader: TextReader | None,
) -> DraftedStep:
    """Describe a step between its drafts and its forward; `rule` is the engine's verify rule."""
    rows, strict = [], []
    for index, (row, draft) in enumerate(zip(batch, proposal.rows, strict=True)):
        kind = _kind(row, rule)
        said = _SILENT[kind] if not draft.tokens else _said(row, draft, kind, reader)
        rows.append(DraftedRow(row.sequence.id, said, row.max_draft_len > 0))
        # A draft that was not drawn is a function of the text: looking at it tells nothing new.
        if kind == "rejection" and draft.probs is not None:
            strict.append(index)
    shape = replace(bare_shape(batch), draft_seconds=draft_seconds, strict=frozenset(strict))
    return DraftedStep(tuple(rows), shape)


def bare_shape(batch: Batch) -> BatchShape:
    """Describe a step before anything is drafted for it."""
    num_known = sum(row.num_known for row in batch)
    seen = sum(row.num_known * (row.kv_len + row.num_known / 2) for row in batch)
    return BatchShape(
        num_known=num_known,
        num_judged=sum(row.is_judged for row in batch),
        context_len=seen / num_known,
    )


def _kind(row: BatchRow, rule: VerifyRule) -> str:
    params = row.sequence.params
    return "greedy" if params.is_greedy else params.verify_rule or rule


def _said(row: BatchRow, draft: RowProposal, kind: str, reader: TextReader | None) -> Said:
    return Said(
        len(draft.tokens),
        draft.confidence,
        kind,
        draft.sources,
        None if reader is None else reader.read(row.sequence, draft.tokens),
        row.sequence.num_output,
    )


def round_of(
    sequence: Sequence,
    draft: RowProposal,
    said: Said,
    survival: list[float],
    done: RowOutcome,
) -> Round:
    """Record what became of a request's draft."""
    return Round(
        request_id=sequence.id,
        num_output=sequence.num_output - len(done.committed),
        drafted=done.drafted,
        verified=done.verified,
        accepted=done.accepted,
        delivered=len(done.committed),
        confidence=draft.confidence,
        sources=draft.sources,
        survival=tuple(survival[: done.verified]),
        reading=said.reading and said.reading.of_first(done.verified),
    )
