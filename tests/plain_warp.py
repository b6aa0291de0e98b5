"""The documented warps in their documented order, in plain Python: no torch, nothing shared."""

import math
from collections.abc import Sequence

from outrider.core.request import SamplingParams
from outrider.sampling.warp import Context

OUT = -math.inf


class Undecided(Exception):
    """The answer hangs on rounding."""


def plainly(row: Sequence[float], params: SamplingParams, context: Context) -> list[float]:
    """Warp one row; minus infinity marks tokens that cannot come."""
    row = list(row)
    for step in (_masked, _biased, _held_back, _repeated, _counted):
        row = step(row, params, context)
    if params.temperature == 0:
        return row
    row = [value / params.temperature for value in row]
    for cut in (_min_p, _top_k, top_p):
        row = cut(row, params)
    return row


def _masked(row: list[float], params: SamplingParams, context: Context) -> list[float]:
    allowed = set(range(len(row)))
    if params.allowed_token_ids is not None:
        allowed &= params.allowed_token_ids
    if params.token_mask is not None:
        by_mask = params.token_mask(context.output)
        allowed &= allowed if by_mask is None else set(by_mask)
    return [value if i in allowed else OUT for i, value in enumerate(row)]


def _biased(row: list[float], params: SamplingParams, context: Context) -> list[float]:
    return [value + params.logit_bias.get(i, 0.0) for i, value in enumerate(row)]


def _held_back(row: list[float], params: SamplingParams, context: Context) -> list[float]:
    if len(context.output) >= params.min_tokens:
        return row
    return [OUT if i in context.stop_tokens else value for i, value in enumerate(row)]


def _repeated(row: list[float], params: SamplingParams, context: Context) -> list[float]:
    scale = params.repetition_penalty
    seen = {*context.prompt, *context.output}
    return [
        (value / scale if value > 0 else value * scale) if i in seen else value
        for i, value in enumerate(row)
    ]


def _counted(row: list[float], params: SamplingParams, context: Context) -> list[float]:
    return [
        value
        - params.presence_penalty * (i in context.output)
        - params.frequency_penalty * list(context.output).count(i)
        for i, value in enumerate(row)
    ]


def _min_p(row: list[float], params: SamplingParams) -> list[float]:
    if params.min_p == 0:
        return row
    return [v if v >= max(row) + math.log(params.min_p) else OUT for v in row]


def _top_k(row: list[float], params: SamplingParams) -> list[float]:
    if not 0 < params.top_k < len(row):
        return row
    border = sorted(row, reverse=True)[params.top_k - 1]
    return [value if value >= border else OUT for value in row]


def top_p(row: list[float], params: SamplingParams) -> list[float]:
    if params.top_p == 1:
        return row
    weights = [math.exp(value - max(row)) for value in row]
    mass, border = 0.0, max(row)
    for value, weight in sorted(zip(row, weights, strict=True), reverse=True):
        # Whether a mass equals top_p exactly is a matter of rounding and no test can tell.
        if abs(mass - params.top_p) < 1e-9:
            raise Undecided
        if mass > params.top_p:
            break
        border = value
        mass += weight / sum(weights)
    return [value if value >= border else OUT for value in row]
