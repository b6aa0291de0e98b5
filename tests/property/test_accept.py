"""The theorem: whatever the drafter believes, the accept rule gives out the target's law."""

import pytest
import torch
from hypothesis import example, given
from torch import Tensor

from outrider.verify.accept import acceptance_prob, emitted, point_mass, residual
from tests.strategies import normalised, pairs

UNEVEN = normalised([0.7, 0.3, 0.0])
OTHER = normalised([0.0, 0.5, 0.5])


@given(pairs())
@example((UNEVEN, OTHER))
@example((OTHER, UNEVEN))
@example((UNEVEN, UNEVEN))
@example((normalised([1.0, 0.0]), normalised([0.0, 1.0])))
@example((normalised([1.0]), normalised([1.0])))
def test_emitted_is_the_target(pair: tuple[Tensor, Tensor]) -> None:
    """Catches swapped arguments, a residual left out or not renormalised, a division by zero."""
    target, draft = pair
    torch.testing.assert_close(emitted(target, draft), target, rtol=0, atol=1e-12)


@given(pairs())
def test_acceptance_is_a_probability_and_its_mass_is_the_overlap(
    pair: tuple[Tensor, Tensor],
) -> None:
    """Catches a rule that is lossless but accepts less often than 1 − TV(target, draft)."""
    target, draft = pair
    chance = acceptance_prob(target, draft)
    assert bool(((chance >= 0) & (chance <= 1)).all())
    overlap = torch.minimum(target, draft).sum()
    torch.testing.assert_close((draft * chance).sum(), overlap, rtol=0, atol=1e-12)


@given(pairs())
def test_residual_is_a_distribution_without_over_proposed_tokens(
    pair: tuple[Tensor, Tensor],
) -> None:
    """Catches a recovered token that the drafter had proposed too often already."""
    target, draft = pair
    law = residual(target, draft)
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=law.dtype), rtol=0, atol=1e-9)
    assert bool((law >= 0).all())
    if not torch.equal(target, draft):
        over = draft >= target
        if bool((target > draft).any()):
            assert bool((law[over] == 0).all())


def test_edges_of_the_rule() -> None:
    """Catches NaN where the drafter has no mass, and an accepted token that cannot come."""
    target, draft = normalised([0.5, 0.5, 0.0]), normalised([1.0, 0.0, 1.0])
    assert acceptance_prob(target, draft).tolist() == [1.0, 1.0, 0.0]
    assert residual(target, draft).tolist() == [0.0, 1.0, 0.0]
    assert residual(target, target).tolist() == target.tolist()


@given(pairs())
def test_batches_of_rows_are_judged_row_by_row(pair: tuple[Tensor, Tensor]) -> None:
    """Catches a sum over the wrong axis."""
    target, draft = pair
    both = emitted(torch.stack((target, draft)), torch.stack((draft, target)))
    torch.testing.assert_close(both, torch.stack((target, draft)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("token", [0, 2])
def test_point_mass(token: int) -> None:
    """Catches a certain drafter described by the wrong token."""
    law = point_mass(token, UNEVEN)
    assert law.tolist() == [float(i == token) for i in range(3)]
    assert law.dtype == UNEVEN.dtype
