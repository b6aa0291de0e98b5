"""Both update rules against their definitions."""

import math

import pytest
import torch
from torch import nn

from outrider.training.optim import (
    OptimConfig,
    Optimizer,
    orthogonal,
    orthogonal_pieces,
    schedule,
)


def test_the_schedule_rises_and_falls_to_zero() -> None:
    assert schedule(0.0, 0.04) == 0
    assert schedule(0.02, 0.04) == 0.5
    assert schedule(0.04, 0.04) == 1.0
    assert schedule(0.52, 0.04) == pytest.approx(0.5)
    assert schedule(1.0, 0.04) == pytest.approx(0, abs=1e-12)
    assert schedule(1.5, 0.04) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24), (8, 200)])
def test_muon_moves_singular_values_to_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 37
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonal(matrix)
    kept = values > 0.05 * values.max()
    projected = (left.T @ found @ right.T).diagonal()
    assert ((projected[kept] - 1).abs() < 0.15).all()
    off = left.T @ found @ right.T - torch.diag(projected)
    assert off.abs().max() < 0.1


@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (24, 24), (4, 60)])
def test_muon_in_pieces_treats_each_as_a_matrix_along_the_shorter_side(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    found = orthogonal_pieces(matrix, 8)
    assert torch.equal(orthogonal_pieces(matrix, None), orthogonal(matrix))
    if shape[0] > shape[1]:
        matrix, found = matrix.T, found.T
    for start in range(0, len(matrix), 8):
        assert torch.equal(found[start : start + 8], orthogonal(matrix[start : start + 8]))


def test_one_large_singular_value_does_not_explode() -> None:
    direction = torch.ones(32, 1) @ torch.ones(1, 48)
    assert orthogonal(direction).norm() < 1.3
    assert torch.equal(orthogonal(torch.zeros(4, 6)), torch.zeros(4, 6))


def test_vectors_follow_adamw() -> None:
    ours = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    theirs = nn.Parameter(ours.detach().clone())
    config = OptimConfig(lr=0.1, weight_decay=0.01)
    optimizer = Optimizer([("norm.weight", ours)], config)
    oracle = torch.optim.AdamW([theirs], lr=0.1, betas=config.betas, weight_decay=0.01)
    for step in range(5):
        gradient = torch.tensor([0.5, -1.0, 2.0]) * (step - 2)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step(1.0)
        oracle.step()
    torch.testing.assert_close(ours, theirs)


def test_embedding_rows_follow_adamw_in_the_steps_that_read_them() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    start = table.weight.detach().clone()
    optimizer = Optimizer(
        [("markov_head.markov_w1.weight", table.get_parameter("weight"))], OptimConfig(lr=0.1)
    )
    theirs = nn.Parameter(start[2].clone())
    oracle = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), weight_decay=0.0)
    for ids in ([2, 2], [1], [2]):
        (table(torch.tensor(ids)) ** 2).sum().backward()
        optimizer.step(1.0)
        if 2 in ids:
            (len(ids) * theirs**2).sum().backward()
            oracle.step()
            oracle.zero_grad()
    torch.testing.assert_close(table.weight[2], theirs)
    assert torch.equal(table.weight[[0, 3, 4]], start[[0, 3, 4]])


def test_gradients_are_scaled_to_the_clip_together() -> None:
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    optimizer = Optimizer([("a", first), ("b", second)], OptimConfig(clip=1.0))
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert optimizer.clip() == pytest.approx(5.0)
    assert first.grad.tolist() == pytest.approx([0.6, 0.0])
    assert second.grad.tolist() == pytest.approx([0.8])


def test_matrices_of_the_layers_follow_muon_unless_it_is_off() -> None:
    for rate, expected in ((0.5, 0.5 * 0.2 * math.sqrt(6)), (None, 0.1)):
        weight = nn.Parameter(torch.zeros(4, 6))
        optimizer = Optimizer([("layers.0.w", weight)], OptimConfig(lr=0.1, muon_lr=rate))
        weight.grad = torch.outer(torch.ones(4), torch.ones(6))
        optimizer.step(1.0)
        largest = float(torch.linalg.matrix_norm(weight.detach(), 2))
        if rate is None:
            assert weight.detach().abs().max() == pytest.approx(expected, rel=1e-3)
        else:
            assert largest == pytest.approx(expected, rel=0.15)
