"""The Verifier protocol and the verifier the engine runs: one rule per request."""

from typing import Protocol

import torch

from outrider.core.request import VerifyRule
from outrider.core.sequence import Sequence
from outrider.errors import RequestFailed
from outrider.sampling.warp import Context, warp
from outrider.tensor.batch import BatchRow
from outrider.tensor.shapes import Logits
from outrider.tensor.window import RowProposal, RowVerdict, Scores, Verdict, VerifyWindow
from outrider.verify.matching import failure, match_ids, match_rows
from outrider.verify.rejection import reject_rows


class Verifier(Protocol):
    """Judges a scored window. Reads everything, changes nothing."""

    def judge(self, window: VerifyWindow, scores: Scores) -> Verdict:
        """Say per row how many drafts hold and which token the target adds."""
        ...


class RuleVerifier:
    """Judges each row by its request's rule, or by the engine's where the request names none."""

    def __init__(self, rule: VerifyRule, stop_tokens: frozenset[int]) -> None:
        """Judge by `rule`; `stop_tokens` are the model's own end-of-sequence tokens."""
        self.rule = rule
        self._stop_tokens = stop_tokens

    def judge(self, window: VerifyWindow, scores: Scores) -> Verdict:
        """Judge every row that reaches its anchor.

        Rows whose next token is the arg-max of raw logits are judged together from one arg-max.
        """
        ids = None
        verdicts: list[RowVerdict | None] = []
        for row, draft, first in zip(window.batch, window.drafts, scores.first_row, strict=True):
            if not row.is_judged:
                verdicts.append(None)
                continue
            last = first + len(draft.tokens) + 1
            if row.sequence.params.is_plain_argmax:
                if ids is None:
                    ids = scores.logits.argmax(-1)
                tops = ids[first:last]
                values = scores.logits[first:last].gather(1, tops[:, None])
                finite = torch.isfinite(values).squeeze(1).tolist()
                verdicts.append(match_ids(tops.tolist(), finite, draft.tokens))
            else:
                verdicts.append(self._judge_warped(row, draft, scores.logits[first:last]))
        return Verdict(tuple(verdicts))

    def _judge_warped(self, row: BatchRow, draft: RowProposal, logits: Logits) -> RowVerdict:
        sequence = row.sequence
        positions = _WarpedPositions(sequence, draft, logits, self._stop_tokens)
        rule = sequence.params.verify_rule or self.rule
        try:
            if rule == "matching":
                return match_rows(positions, draft.tokens, sequence)
            return reject_rows(positions, draft, sequence)
        except RequestFailed as error:
            return failure(str(error))


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

    def __getitem__(self, index: int) -> torch.Tensor | None:
        """Warp the logits of position `index`; None where they are not numbers."""
        logits = self._logits[index]
        if not bool(torch.isfinite(logits.max())):
            return None
        context = Context(self._prompt, (*self._output, *self._draft[:index]), self._stop_tokens)
        return warp(logits, self._params, context)
