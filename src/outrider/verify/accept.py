"""The theorem as code: speculative sampling leaves the target's distribution unchanged.

Leviathan et al. 2023 (arXiv 2211.17192, §2.3) and Chen et al. 2023 (arXiv 2302.01318): a token x
drawn from the draft distribution q is kept with probability min(1, p(x)/q(x)); otherwise a token of
the residual norm(max(p − q, 0)) replaces it. `emitted` adds both up and equals p.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Distributions = Float[Tensor, "*batch vocab"]


def acceptance_prob(target: Distributions, draft: Distributions) -> Distributions:
    """Chance that token x survives, had the drafter proposed x; 1 where the drafter never would."""
    drawn = draft > 0
    ratio = torch.where(drawn, target / torch.where(drawn, draft, 1.0), 1.0)
    return ratio.clamp(max=1.0)


def residual(target: Distributions, draft: Distributions) -> Distributions:
    """Law of the recovered token after a rejection; the target's own where the two agree."""
    excess = (target - draft).clamp_min(0.0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > 0, excess / torch.where(mass > 0, mass, 1.0), target)


def emitted(target: Distributions, draft: Distributions) -> Distributions:
    """Law of the token that leaves the accept rule; the losslessness theorem says: the target's."""
    kept = draft * acceptance_prob(target, draft)
    rejected = 1.0 - kept.sum(-1, keepdim=True)
    return kept + rejected * residual(target, draft)


def point_mass(token: int, like: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """Distribution of a drafter that proposes `token` with certainty."""
    return torch.zeros_like(like).index_fill_(0, torch.tensor([token], device=like.device), 1.0)
