"""Verdict → committed tokens: append, stop rules, roll-back. See tensor/batch.py for the picture.

Inside an accepted run the order of events is token order: the first of stop token, stop string,
max_tokens and context limit wins, and nothing after it is delivered, counted or left cached.
"""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from outrider.core.ids import RequestId
from outrider.core.outcome import Finish, FinishReason, Origin, Outcome, RowOutcome
from outrider.core.sequence import Sequence
from outrider.engine.detokenize import TextStream
from outrider.kvcache.view import CacheView
from outrider.sampling.logprobs import token_logprobs
from outrider.tensor.batch import BatchRow
from outrider.tensor.window import RowVerdict, Scores, Verdict, VerifyWindow
from outrider.verify.matching import failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends every request of this engine."""

    stop_tokens: frozenset[int]
    max_context_len: int


def commit(
    window: VerifyWindow,
    scores: Scores,
    verdict: Verdict,
    views: Mapping[RequestId, CacheView],
    streams: Mapping[RequestId, TextStream],
    rules: StopRules,
) -> Outcome:
    """Append what held to every sequence and forget what did not."""
    outcomes = []
    for i, (row, verdict_row) in enumerate(zip(window.batch, verdict.rows, strict=True)):
        sequence, view = row.sequence, views[row.sequence.id]
        if verdict_row is None:
            view.advance(sequence.tokens, row.kv_len + row.num_known)
            outcomes.append(_unjudged(row))
            continue
        outcomes.append(_commit_safely(window, i, verdict_row, scores, streams, rules))
        if sequence.finish is None or sequence.finish.reason is not FinishReason.ERROR:
            # The anchor is never cached: everything before it is, whatever the stop rules cut.
            view.advance(sequence.tokens, len(sequence) - 1)
    return Outcome(tuple(outcomes))


def _commit_safely(
    window: VerifyWindow,
    index: int,
    verdict: RowVerdict,
    scores: Scores,
    streams: Mapping[RequestId, TextStream],
    rules: StopRules,
) -> RowOutcome:
    """Commit a row; what goes wrong with its text or its numbers ends this request alone."""
    sequence = window.batch.rows[index].sequence
    try:
        outcome = _commit_row(window, index, verdict, streams.get(sequence.id), rules)
        if sequence.params.logprobs is not None and outcome.committed:
            _record_logprobs(sequence, scores, scores.first_row[index], outcome.committed)
    except Exception as error:
        logger.exception("request %s failed while its tokens were committed", sequence.id)
        sequence.take_back()
        return _commit_row(window, index, failure(f"internal error: {error!r}"), None, rules)
    return outcome


def _commit_row(
    window: VerifyWindow,
    index: int,
    verdict: RowVerdict,
    stream: TextStream | None,
    rules: StopRules,
) -> RowOutcome:
    row: BatchRow = window.batch.rows[index]
    sequence = row.sequence
    drafts = window.drafts[index].tokens
    sources = window.drafts[index].sources or (None,) * len(drafts)
    before = len(sequence)
    if verdict.failure is not None:
        sequence.finish = Finish(FinishReason.ERROR, verdict.failure)
    else:
        kept = zip(drafts[: verdict.accepted], sources, strict=False)
        run = [(token, Origin.ACCEPTED, source) for token, source in kept]
        for token, origin, source in [*run, (verdict.added, verdict.origin, None)]:
            sequence.tokens.append(token)
            sequence.origins.append(origin)
            sequence.sources.append(source)
            sequence.finish = _finish_after(sequence, token, stream, rules)
            if sequence.finish is not None:
                break
        sequence.acceptance.record(
            drafted=window.drafted[index],
            verified=len(drafts),
            accepted=verdict.accepted,
            delivered=len(sequence) - before,
            sources=window.drafts[index].sources,
        )
        sequence.num_rounds += 1
    if stream is not None:
        sequence.text = stream.text
    return RowOutcome(
        request_id=sequence.id,
        num_cached=row.num_known + verdict.accepted,
        drafted=window.drafted[index],
        verified=len(drafts),
        accepted=verdict.accepted,
        committed=tuple(sequence.tokens[before:]),
        is_finished=sequence.finish is not None,
        kv_len=row.kv_len,
        block_table=row.block_table,
    )


def _unjudged(row: BatchRow) -> RowOutcome:
    return RowOutcome(
        request_id=row.sequence.id,
        num_cached=row.num_known,
        drafted=0,
        verified=0,
        accepted=0,
        committed=(),
        is_finished=False,
        kv_len=row.kv_len,
        block_table=row.block_table,
    )


def _finish_after(
    sequence: Sequence, token: int, stream: TextStream | None, rules: StopRules
) -> Finish | None:
    """Say whether the request ends with the token just appended."""
    params = sequence.params
    # A stop before min_tokens is no stop; the tokens themselves are masked by the warp.
    may_stop = sequence.num_output >= params.min_tokens
    is_stop = token in params.stop_token_ids or (
        token in rules.stop_tokens and not params.ignore_eos
    )
    if is_stop and may_stop:
        return Finish(FinishReason.STOP, token)
    stopped_by = stream.push(token, may_stop=may_stop) if stream is not None else None
    if stopped_by is not None:
        return Finish(FinishReason.STOP, stopped_by)
    if sequence.num_remaining <= 0 or len(sequence) >= rules.max_context_len:
        return Finish(FinishReason.LENGTH)
    return None


def _record_logprobs(
    sequence: Sequence, scores: Scores, first: int, committed: Tokens[int]
) -> None:
    rows = scores.logits[first : first + len(committed)]
    assert sequence.params.logprobs is not None
    sequence.logprobs.extend(token_logprobs(rows, committed, sequence.params.logprobs))
