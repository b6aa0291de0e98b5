"""Two outputs of one prompt that differ: a numeric tie, or an error?

At the first difference the tokens before it are common to both, so the target is asked once more:
one forward over prompt and common tokens, sharing no cache with either run. Both candidates get the
score by which matching chooses a token: the warped logit, plus at temperature above 0 the shared
noise of that position (see sampling/draw.py). The *margin* is how far the worse of the two lies
below the best token of the vocabulary.

Plain and speculative decoding compute the same logits in matrix products of different shapes, and
floating-point sums depend on the shape. Each run takes the arg-max of its own rounding of the exact
logits, so a lawful difference needs a margin below what rounding can move two logits apart; that is
the *tolerance*, a number of ulps (units in the last place) of the row's largest logit, divided by
the temperature as the warp does. Between one-token steps and one forward over everything, the gap
of two likely tokens of SmolLM2-135M moved by up to 3 ulps in bfloat16 and 15 in float32; the
tolerance is twice and four times that.

bfloat16 rounds the logits themselves to 0.125 between 16 and 32: exact ties are common there and
the tolerance is wide, so a divergence says little and the counts say more. float32 certifies
sharply. The native backend gives a row the same bits in any batch (`exact`): there every difference
is an error. On torch, a margin above the tolerance is an error, and so is a length, an ending or a
text that differs after equal tokens: those follow from the tokens alone. A score at the border of
top-k, top-p or min-p may be masked in one run only; its margin is infinite and it counts as an
error, so certification samples without truncation.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from outrider.analysis.closed_loop import Completed, Job
from outrider.analysis.numbers import finite
from outrider.engine.backend import EXACT
from outrider.engine.continuation import continuation_seed
from outrider.engine.llm import LLM
from outrider.sampling.noise import Purpose, gumbel
from outrider.sampling.warp import Context, warp
from outrider.tensor.shapes import LogitRow

TOLERANCE_ULPS = {
    "bfloat16": 6.0,
    "float16": 16.0,
    "float32": 64.0,
    "float64": 64.0,
    EXACT: 0.0,
}
SMALLEST_TOLERANCE = 1e-9

Kind = Literal["tie", "error"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two outputs of one prompt part.

    The tokens are None where that output had already ended. `margin` and `tolerance` are None where
    there are no two tokens to compare.
    """

    prompt_id: str
    position: int
    plain_token: int | None
    speculative_token: int | None
    plain_text: str
    speculative_text: str
    margin: float | None
    tolerance: float | None
    kind: Kind
    reason: str

    def record(self) -> dict[str, Any]:
        """Give it for JSON, which knows no infinite margin."""
        return asdict(self) | {"margin": finite(self.margin)}

    def describe(self) -> str:
        """Say it in one line."""
        both = f"plain {self.plain_text!r}, speculative {self.speculative_text!r}"
        line = f"{self.prompt_id}, token {self.position}: {both}: {self.reason}"
        if self.margin is None or self.tolerance is None:
            return line
        return f"{line}, margin {self.margin:.3g} (tolerance {self.tolerance:.3g})"


def find_divergence(llm: LLM, plain: Completed, speculative: Completed) -> Divergence | None:
    """Compare two runs of the same job; None where they are the same in tokens, text and ending.

    `llm` is any engine over the weights both ran on; it re-scores the common tokens.
    """
    ours, theirs = plain.tokens, speculative.tokens
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    if common == min(len(ours), len(theirs)):
        return _after_equal_tokens(llm, plain, speculative, common)
    job = plain.job
    tokens = ours[common], theirs[common]
    logits = llm.score_tokens(job.prompt, ours[: common + 1])[-1]
    scores = matching_scores(llm, job, logits, ours[:common], plain.sequence.request.seed)
    margin = token_margin(scores, tokens)
    tolerance = tie_tolerance(logits, llm.precision, job.params.temperature)
    is_tie = llm.precision != EXACT and margin <= tolerance
    return Divergence(
        prompt_id=job.id,
        position=common,
        plain_token=tokens[0],
        speculative_token=tokens[1],
        plain_text=llm.tokenizer.decode([tokens[0]], skip_special_tokens=False),
        speculative_text=llm.tokenizer.decode([tokens[1]], skip_special_tokens=False),
        margin=margin,
        tolerance=tolerance,
        kind="tie" if is_tie else "error",
        reason="numeric tie" if is_tie else "error: not explained by rounding",
    )


def tie_tolerance(logits: LogitRow, dtype: str, temperature: float) -> float:
    """How far rounding in `dtype` can move two scores apart; see the module's docstring."""
    if dtype == EXACT:
        return 0.0
    largest = float(logits.abs().max())
    if not math.isfinite(largest) or largest == 0:
        return SMALLEST_TOLERANCE
    precision: torch.dtype = getattr(torch, dtype)
    ulp = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(precision).eps
    return max(TOLERANCE_ULPS[dtype] * ulp / (temperature or 1.0), SMALLEST_TOLERANCE)


def token_margin(scores: LogitRow, tokens: tuple[int, int]) -> float:
    """Give the distance from the best score to the worse of two; infinite if that is masked."""
    return float(scores.max() - torch.minimum(scores[tokens[0]], scores[tokens[1]]))


def matching_scores(
    llm: LLM, job: Job, logits: LogitRow, output: list[int], seed: int | None = None
) -> LogitRow:
    """Give the scores whose arg-max matching defines as the next token.

    `seed` is the request's own, which only continuations after the first need to say.
    """
    params = job.params
    own_stops = frozenset() if params.ignore_eos else llm.spec.stop_token_ids
    matcher = llm.engine.matcher_of(params)
    allowed = None if matcher is None else matcher.masks(output, [])[0]
    context = Context(job.prompt, output, params.stop_token_ids | own_stops, allowed)
    warped: Tensor = warp(logits, params, context).to(torch.float64)
    if params.is_greedy:
        return warped
    seed = continuation_seed(params.seed or 0) if seed is None else seed
    return warped + gumbel(seed, Purpose.MATCH, len(output), torch.arange(len(warped)))


def _after_equal_tokens(
    llm: LLM, plain: Completed, speculative: Completed, common: int
) -> Divergence | None:
    """Everything that follows from equal tokens must be equal: length, ending and text."""
    ours, theirs = plain.tokens, speculative.tokens
    if len(ours) != len(theirs):
        reason = "error: one output ended where the other went on"
    elif plain.ending != speculative.ending:
        reason = f"error: equal tokens ended as {plain.ending} and {speculative.ending}"
    elif plain.sequence.text != speculative.sequence.text:
        reason = "error: equal tokens gave different texts"
    else:
        return None
    tokens = [each[common] if common < len(each) else None for each in (ours, theirs)]
    texts = [
        "" if token is None else llm.tokenizer.decode([token], skip_special_tokens=False)
        for token in tokens
    ]
    return Divergence(
        prompt_id=plain.job.id,
        position=common,
        plain_token=tokens[0],
        speculative_token=tokens[1],
        plain_text=texts[0],
        speculative_text=texts[1],
        margin=None,
        tolerance=None,
        kind="error",
        reason=reason,
    )
