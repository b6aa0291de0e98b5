"""A few thousand candidates in place of the whole draft vocabulary, per batch.

Most tokens are plausible nowhere in a batch, and yet their logits are most of its cost. All tokens
that the target finds plausible somewhere are kept; of the others a random share stands for all:
each drawn one counts for the r tokens it represents, in the drafter's distribution (its logit is
raised by log r) as in the target's (its probability is multiplied by r). Sums over the vocabulary
are then right on average.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

_ROUND_TO = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateConfig:
    """Tokens with a probability of at least `threshold` somewhere are kept; `drawn` are drawn."""

    threshold: float = 2e-3
    drawn: int = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Draft ids that are scored, what to add to their logits, and their place by draft id.

    `place` is -1 for ids that are no candidates.
    """

    columns: Int[Tensor, " candidates"]
    offset: Float[Tensor, " candidates"]
    place: Int[Tensor, " draft_vocab"]

    def teacher(
        self, probabilities: Float[Tensor, "judged draft_vocab"]
    ) -> Float[Tensor, "judged candidates"]:
        """The target's probabilities of the candidates, each with those it stands for."""
        return probabilities[:, self.columns] * self.offset.exp().to(probabilities.dtype)


def choose_candidates(
    probabilities: Float[Tensor, "judged draft_vocab"],
    labels: Int[Tensor, " labels"],
    config: CandidateConfig,
    generator: torch.Generator,
) -> Candidates:
    """Keep plausible tokens and labels (draft ids), and draw among the others."""
    size = probabilities.shape[1]
    is_kept = probabilities.amax(0) >= config.threshold
    is_kept[labels] = True
    kept, others = torch.nonzero(is_kept).flatten(), torch.nonzero(~is_kept).flatten()
    count = min(len(others), config.drawn + -(len(kept) + config.drawn) % _ROUND_TO)
    drawn = others[torch.randperm(len(others), generator=generator)[:count]]
    columns = torch.cat((kept, drawn))
    offset = torch.zeros(len(columns))
    if count:
        offset[len(kept) :] = math.log(len(others) / count)
    place = torch.full((size,), -1)
    place[columns] = torch.arange(len(columns))
    return Candidates(columns, offset, place)
