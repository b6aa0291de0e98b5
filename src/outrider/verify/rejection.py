"""Rejection: keep a draft token with probability min(1, p/q), replace it from the residual.

Equal to plain sampling in distribution, not token for token. The length policy must not look at a
token before deciding to verify it (see docs/losslessness.md); the engine refuses policies that do.
"""

import torch

from outrider.core.outcome import Origin
from outrider.core.sequence import Sequence
from outrider.sampling.draw import draw
from outrider.sampling.noise import Purpose, uniform
from outrider.sampling.warp import probabilities
from outrider.tensor.window import RowProposal, RowVerdict
from outrider.verify.accept import point_mass, residual
from outrider.verify.matching import (
    EMPTY_MASK,
    NOT_NUMBERS,
    WarpedPositions,
    added_origin,
    failure,
)

TINY = 1e-300


def reject_rows(positions: WarpedPositions, draft: RowProposal, sequence: Sequence) -> RowVerdict:
    """Walk the drafts left to right until one is rejected.

    Noise is keyed by this request's round and the slot, so a position drafted again later does not
    meet it again.
    """
    seed, round_number = sequence.request.seed, sequence.num_rounds
    add_number = uniform(seed, Purpose.ADD, round_number)
    num_drafts = len(draft.tokens)
    for slot in range(num_drafts + 1):
        warped = positions[slot]
        if warped is None:
            return failure(NOT_NUMBERS, slot)
        if not bool((warped > -torch.inf).any()):
            return failure(EMPTY_MASK, slot)
        target = probabilities(warped, sequence.params)
        if slot == num_drafts:
            return RowVerdict(slot, draw(target, add_number), added_origin(slot, num_drafts))
        token = draft.tokens[slot]
        proposed = (
            point_mass(token, target) if draft.probs is None else draft.probs[slot].to(target)
        )
        # min(1, p/q) without dividing by zero.
        chance = float(target[token]) / max(float(proposed[token]), float(target[token]), TINY)
        if not uniform(seed, Purpose.ACCEPT, round_number, slot) < chance:
            recovered = draw(residual(target, proposed), add_number)
            return RowVerdict(slot, recovered, Origin.RECOVERED)
    raise AssertionError("the loop returns at the bonus position")
