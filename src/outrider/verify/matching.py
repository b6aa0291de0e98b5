"""Matching: a draft token is accepted iff it is the token the target would have taken anyway.

At each position the target's token is fixed by its logits and the shared noise of the position, so
acceptance is equality, and the output is the same token for token with any drafter, any length and
any batch, at temperature 0 and above.
"""

from collections.abc import Sequence as Tokens
from typing import Final, Protocol

from torch import Tensor

from outrider.core.outcome import Origin
from outrider.core.sequence import Sequence
from outrider.sampling import rows
from outrider.sampling.draw import coupled_token
from outrider.tensor.window import RowVerdict

NOT_NUMBERS = "the target gave NaN or infinite logits"
EMPTY_MASK = "the token mask and the other options leave no token to choose"
_REASONS: Final = {rows.NOT_NUMBERS: NOT_NUMBERS, rows.NONE_LEFT: EMPTY_MASK}


class WarpedPositions(Protocol):
    """Warped logits by window position; None where the logits are not numbers."""

    def __getitem__(self, index: int) -> Tensor | None:
        """Give the warped logits of one position."""
        ...


def added_origin(accepted: int, verified: int) -> Origin:
    """Name the target's own token by what happened before it."""
    if not verified:
        return Origin.TARGET
    return Origin.BONUS if accepted == verified else Origin.RECOVERED


def match_ids(targets: Tokens[int], drafts: Tokens[int]) -> RowVerdict:
    """Judge by what the target took at each position; `targets` has one more than `drafts`.

    What is no token (see `sampling.rows`) fails the request where it is reached.
    """
    accepted = 0
    for accepted, target in enumerate(targets):
        if target in _REASONS:
            return failure(_REASONS[target], accepted)
        if accepted == len(drafts) or target != drafts[accepted]:
            break
    return RowVerdict(accepted, targets[accepted], added_origin(accepted, len(drafts)))


def match_rows(positions: WarpedPositions, drafts: Tokens[int], sequence: Sequence) -> RowVerdict:
    """Judge by drawing the target's token with the shared noise until one differs."""
    accepted = 0
    while True:
        warped = positions[accepted]
        if warped is None:
            return failure(NOT_NUMBERS, accepted)
        token = coupled_token(
            warped,
            sequence.request.seed,
            sequence.num_output + accepted,
            is_greedy=sequence.params.is_greedy,
        )
        if float(warped[token]) == float("-inf"):
            return failure(EMPTY_MASK, accepted)
        if accepted == len(drafts) or token != drafts[accepted]:
            return RowVerdict(accepted, token, added_origin(accepted, len(drafts)))
        accepted += 1


def failure(sentence: str, accepted: int = 0) -> RowVerdict:
    """Say why nothing can come behind the drafts accepted so far."""
    return RowVerdict(accepted, -1, Origin.TARGET, failure=sentence)
