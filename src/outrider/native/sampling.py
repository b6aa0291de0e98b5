"""The target's tokens of many rows in one C++ call, equal to `sampling.warp` and `.draw`."""

from collections import Counter
from collections.abc import Sequence

import torch

from outrider.core.request import SamplingParams
from outrider.native import _native
from outrider.native.runner import Machine
from outrider.sampling.rows import RowRun
from outrider.sampling.warp import Context
from outrider.tensor.shapes import Logits

WarpRule = _native.WarpRule

_SEED_BITS = (1 << 64) - 1
_NO_PAST = Context((), ())


def warp_rule(params: SamplingParams, context: Context) -> WarpRule:
    """Turn a request's options and one position's past into what the C++ side applies."""
    rule = WarpRule()
    rule.allowed = _allowed(params, context)
    if context.allowed is not None:
        rule.mask = context.allowed
    rule.bias = list(params.logit_bias.items())
    if len(context.output) < params.min_tokens:
        rule.held_back = list(context.stop_tokens)
    if params.repetition_penalty != 1.0:
        rule.repetition_penalty = params.repetition_penalty
        rule.seen = list(set(context.prompt) | set(context.output))
    if params.presence_penalty or params.frequency_penalty:
        rule.penalty = [
            (token, params.presence_penalty + params.frequency_penalty * count)
            for token, count in Counter(context.output).items()
        ]
    rule.temperature = 0.0 if params.is_greedy else params.temperature
    rule.top_k, rule.top_p = params.top_k, params.top_p
    if params.min_p > 0:
        # By torch, so that both sides round the logarithm alike.
        rule.log_min_p = float(torch.log(torch.tensor(params.min_p, dtype=torch.float32)))
    return rule


def matching_tokens(
    machine: Machine,
    logits: Logits,
    rows: Sequence[int],
    rules: Sequence[WarpRule],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> list[int]:
    """Give the token that matching defines for each of `rows`: see `sampling.draw.coupled_token`.

    `logits` are float32 on the CPU; `positions` are output positions. What stands in place of a
    token is in `sampling.rows`.

    Raises:
        ValueError: there is no such row, a rule names a token outside the vocabulary, or counts
            differ.
    """
    values = logits.to(torch.float32).contiguous().numpy()
    keys = [seed & _SEED_BITS for seed in seeds]
    return _native.sample(machine, values, rows, rules, keys, positions)


class NativeSampler:
    """See `sampling.rows.RowSampler`: everything but warps that look at the history."""

    def __init__(self, machine: Machine) -> None:
        """Draw with the threads of `machine`."""
        self._machine = machine

    def can_draw(self, params: SamplingParams) -> bool:
        """See `RowSampler`."""
        return not params.has_history_warps

    def draw(self, logits: Logits, runs: Sequence[RowRun]) -> list[int]:
        """See `RowSampler`."""
        rows: list[int] = []
        rules: list[WarpRule] = []
        seeds: list[int] = []
        positions: list[int] = []
        for run in runs:
            rows += range(run.first_row, run.first_row + run.num_rows)
            if run.masks is None:
                rules += [warp_rule(run.params, _NO_PAST)] * run.num_rows
            else:
                rules += [warp_rule(run.params, Context((), (), allowed=m)) for m in run.masks]
            seeds += [run.seed] * run.num_rows
            positions += range(run.position, run.position + run.num_rows)
        return matching_tokens(self._machine, logits, rows, rules, seeds, positions)


def _allowed(params: SamplingParams, context: Context) -> list[int] | None:
    allowed = params.allowed_token_ids
    if params.token_mask is not None:
        by_mask = params.token_mask(context.output)
        if by_mask is not None:
            allowed = frozenset(by_mask) if allowed is None else allowed & frozenset(by_mask)
    return None if allowed is None else list(allowed)
