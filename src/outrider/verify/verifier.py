"""The Verifier protocol and the verifier the engine runs: one rule per request."""

from dataclasses import replace
from itertools import islice
from typing import Protocol

import torch

from outrider.core.matcher import TokenMatcher
from outrider.core.outcome import Origin
from outrider.core.request import SamplingParams, VerifyRule
from outrider.core.sequence import Sequence
from outrider.errors import RequestFailed
from outrider.sampling.rows import ArgmaxSampler, RowRun, RowSampler
from outrider.sampling.warp import Context, warp
from outrider.tensor.batch import BatchRow
from outrider.tensor.shapes import Logits
from outrider.tensor.window import RowProposal, RowVerdict, Scores, Verdict, VerifyWindow
from outrider.verify.matching import EMPTY_MASK, failure, match_ids, match_rows
from outrider.verify.rejection import reject_rows


class Verifier(Protocol):
    """Judges a scored window. Reads everything, changes nothing."""

    def judge(self, window: VerifyWindow, scores: Scores) -> Verdict:
        """Say per row how many drafts hold and which token the target adds."""
        ...


class RuleVerifier:
    """Judges each row by its request's rule, or by the engine's where the request names none."""

    def __init__(
        self,
        rule: VerifyRule,
        stop_tokens: frozenset[int],
        sampler: RowSampler | None = None,
    ) -> None:
        """Judge by `rule`; `stop_tokens` are the model's own end-of-sequence tokens.

        `sampler` draws what it can for the whole batch at once; None draws plain arg-maxima so.
        """
        self.rule = rule
        self._stop_tokens = stop_tokens
        self._sampler = sampler or ArgmaxSampler()

    def judge(self, window: VerifyWindow, scores: Scores) -> Verdict:
        """Judge every row that reaches its anchor."""
        targets = self._draw_at_once(window, scores)
        verdicts: list[RowVerdict | None] = []
        for index, (row, draft) in enumerate(zip(window.batch, window.drafts, strict=True)):
            first = scores.first_row[index]
            if not row.is_judged:
                verdicts.append(None)
            elif index in targets:
                verdicts.append(match_ids(targets[index], draft.tokens))
            else:
                logits = scores.logits[first : first + len(draft.tokens) + 1]
                verdicts.append(self._judge_warped(row, draft, logits))
        return Verdict(
            tuple(
                verdict and _settled(verdict, draft, row.sequence.matcher)
                for verdict, draft, row in zip(verdicts, window.drafts, window.batch, strict=True)
            )
        )

    def _draw_at_once(self, window: VerifyWindow, scores: Scores) -> dict[int, list[int]]:
        """Give the target's tokens at every position of the rows the sampler can draw."""
        runs = {
            index: RowRun(
                first,
                len(draft.tokens) + 1,
                row.sequence.params,
                row.sequence.request.seed,
                row.sequence.num_output,
                _masks(row.sequence, draft.tokens),
            )
            for index, (row, draft, first) in enumerate(
                zip(window.batch, window.drafts, scores.first_row, strict=True)
            )
            if row.is_judged and self._can_draw(row.sequence.params)
        }
        if not runs:
            return {}
        tokens = iter(self._sampler.draw(scores.logits, list(runs.values())))
        return {index: list(islice(tokens, run.num_rows)) for index, run in runs.items()}

    def _can_draw(self, params: SamplingParams) -> bool:
        """Under rejection only an arg-max is free of chance."""
        is_matching = (params.verify_rule or self.rule) == "matching"
        return (is_matching or params.is_plain_argmax) and self._sampler.can_draw(params)

    def _judge_warped(self, row: BatchRow, draft: RowProposal, logits: Logits) -> RowVerdict:
        sequence = row.sequence
        positions = _WarpedPositions(sequence, draft, logits, self._stop_tokens)
        rule = sequence.params.verify_rule or self.rule
        try:
            if rule == "matching":
                return match_rows(positions, draft.tokens, sequence)
            return reject_rows(positions, draft, sequence)
        except RequestFailed as error:
            return failure(str(error), positions.asked)


def _masks(sequence: Sequence, drafts: tuple[int, ...]) -> list[bytes] | None:
    """What the request's grammar allows at each position; None without one."""
    if sequence.matcher is None:
        return None
    return sequence.matcher.masks(sequence.output, drafts)


def _settled(verdict: RowVerdict, draft: RowProposal, matcher: TokenMatcher | None) -> RowVerdict:
    """Put a failure where plain decoding would meet it, and in the grammar's own words.

    A failure behind accepted drafts waits for the next round, because a stop rule may end the
    request at one of them; the last of them stands in as the target's own token, which it equals.
    """
    if verdict.failure is None:
        return verdict
    if verdict.accepted:
        kept = verdict.accepted - 1
        return RowVerdict(kept, draft.tokens[kept], Origin.RECOVERED)
    if matcher is not None and matcher.fault and verdict.failure == EMPTY_MASK:
        return replace(verdict, failure=f"the grammar cannot go on: {matcher.fault}")
    return verdict


class _WarpedPositions:
    """The warped logits of each verified position, computed when asked for.

    Position i sees the history it would really have: the committed output plus the first i drafts.
    """

    def __init__(
        self,
        sequence: Sequence,
        draft: RowProposal,
        logits: Logits,
        stop_tokens: frozenset[int],
    ) -> None:
        params = sequence.params
        self._params = params
        self._prompt = sequence.prompt
        self._output = tuple(sequence.output) if params.has_history_warps else ()
        self._draft = draft.tokens if params.has_history_warps else ()
        self._stop_tokens = params.stop_token_ids | (
            frozenset() if params.ignore_eos else stop_tokens
        )
        self._logits = logits
        self._masks = _masks(sequence, draft.tokens)
        self.asked = 0

    def __getitem__(self, index: int) -> torch.Tensor | None:
        """Warp the logits of position `index`; None where they are not numbers."""
        self.asked = index
        logits = self._logits[index]
        if not bool(torch.isfinite(logits.max())):
            return None
        context = Context(
            self._prompt,
            (*self._output, *self._draft[:index]),
            self._stop_tokens,
            None if self._masks is None else self._masks[index],
        )
        return warp(logits, self._params, context)
