"""Draws: a distribution and noise → a token. Which noise belongs to which rule is decided here."""

import torch

from outrider.core.sequence import Sequence
from outrider.sampling.noise import Purpose, gumbel_argmax, uniform
from outrider.sampling.warp import probabilities
from outrider.tensor.shapes import LogitRow, Probs


def coupled_token(warped: LogitRow, seed: int, position: int, *, is_greedy: bool) -> int:
    """Give the token that matching defines for an output position.

    argmax(warped + gumbel(seed, position)), at temperature 0 the arg-max; ties go to the lowest id.
    Drafter and target that call this with the same seed and position agree with probability at
    least (1 − TV)/(1 + TV).
    """
    if is_greedy:
        return int(warped.argmax())
    if bool(warped.min() > -torch.inf):
        tokens, scores = torch.arange(warped.numel(), device=warped.device), warped
    else:
        tokens = torch.nonzero(warped > -torch.inf).squeeze(1)
        if tokens.numel() == 0:  # All NaN or masked: the caller's check names it.
            return int(warped.argmax())
        scores = warped[tokens]
    best = gumbel_argmax(scores.to(torch.float64), seed, Purpose.MATCH, position, tokens)
    return int(tokens[best])


def draw(probs: Probs, uniform_number: float) -> int:
    """Draw by inverse transform: the first token whose cumulated probability exceeds the number."""
    cumulated = probs.cumsum(0)
    threshold = uniform_number * float(cumulated[-1])
    token = int(torch.searchsorted(cumulated, threshold, right=True))
    # Rounding can leave the number at the very end; step back to a token that has probability.
    return token if token < probs.numel() else int(torch.nonzero(probs)[-1])


def draft_token(
    warped: LogitRow, sequence: Sequence, slot: int, rule: str
) -> tuple[int, Probs | None]:
    """Let a drafter draw its token for `slot` in the way the request's verify rule can use best.

    Matching: the shared noise of the position, no distribution needed. Rejection: noise of this
    round alone, and the exact distribution that was drawn from.
    """
    greedy = sequence.params.is_greedy
    if greedy or rule == "matching":
        position = sequence.num_output + slot
        return coupled_token(warped, sequence.request.seed, position, is_greedy=greedy), None
    probs = probabilities(warped, sequence.params)
    number = uniform(sequence.request.seed, Purpose.DRAFT, sequence.num_rounds, slot)
    return draw(probs, number), probs
