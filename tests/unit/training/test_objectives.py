"""The loss against its formula: gradients by autograd over the whole vocabulary, in float64."""

import math

import pytest
import torch
from torch import Tensor

from outrider.native import availability
from outrider.training.objectives import (
    CE,
    L1,
    OVERLAP,
    SOFT_CE,
    HeadInputs,
    d_pace_weights,
    head_loss,
    slot_weights,
)
from tests.native.machines import require_native

ROWS, SIZE, HIDDEN, RANK, JUDGED = 37, 32, 12, 4, 9


def problem(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, HeadInputs]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    head, markov_w2, rows = draw(SIZE, HIDDEN), draw(SIZE, RANK), draw(ROWS, HIDDEN + RANK)
    # A fifth of the target's mass lies outside the draft vocabulary.
    teacher = 0.8 * (2 * draw(JUDGED, SIZE).double()).softmax(-1)
    labels = torch.randint(-1, SIZE, (ROWS,), generator=generator)
    inputs = HeadInputs(
        matrix=torch.cat((head, markov_w2), -1),
        teacher=teacher.to(dtype),
        teacher_rows=torch.randint(JUDGED, (ROWS,), generator=generator),
        labels=labels,
        weights=torch.rand(ROWS, 3, generator=generator),
    )
    return rows.requires_grad_(), markov_w2.requires_grad_(), inputs


def formula(rows: Tensor, markov_w2: Tensor, inputs: HeadInputs) -> tuple[Tensor, Tensor]:
    """The terms as the paper writes them; gradients are autograd's."""
    matrix = torch.cat((inputs.matrix[:, :HIDDEN].double(), markov_w2), -1)
    logits = rows @ matrix.T
    if inputs.offset is not None:
        logits = logits + inputs.offset
    log_drafted = logits.log_softmax(-1)
    teacher = inputs.teacher.double()[inputs.teacher_rows]
    has_label = inputs.labels >= 0
    ce = -log_drafted.gather(1, inputs.labels.clamp(min=0)[:, None])[:, 0] * has_label
    outside = 1 - teacher.sum(-1)
    l1 = (log_drafted.exp() - teacher).abs().sum(-1) + outside
    overlap = torch.minimum(log_drafted.exp(), teacher).sum(-1)
    soft_ce = -(teacher * log_drafted).sum(-1)
    loss = (torch.stack((ce, l1, soft_ce), 1) * inputs.weights).sum()
    return loss, torch.stack((ce, l1, overlap, soft_ce), 1)


@pytest.mark.parametrize("seed", range(4))
def test_terms_and_gradients_are_those_of_the_formula(seed: int) -> None:
    rows, markov_w2, inputs = problem(seed, torch.float64)
    loss, terms = head_loss(rows, markov_w2, inputs)
    loss.backward()
    expected_rows = rows.detach().clone().requires_grad_()
    expected_w2 = markov_w2.detach().clone().requires_grad_()
    expected, expected_terms = formula(expected_rows, expected_w2, inputs)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(terms.double(), expected_terms, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows.grad, expected_rows.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(markov_w2.grad, expected_w2.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", availability.instruction_sets() or ["auto"])
def test_the_native_loss_is_the_torch_loss(isa: str) -> None:
    require_native()
    from outrider.native import _native

    machine = _native.Machine(2, isa)
    found = []
    for used in (machine, None):
        rows, markov_w2, inputs = problem(7, torch.bfloat16)
        loss, terms = head_loss(rows, markov_w2, inputs, used)
        loss.backward()
        assert rows.grad is not None
        assert markov_w2.grad is not None
        found.append((loss, terms, rows.grad.float(), markov_w2.grad.float()))
    # Both round gradients to bfloat16 once per logit; the terms are float32 in both.
    for native, oracle in zip(found[0][:2], found[1][:2], strict=True):
        torch.testing.assert_close(native, oracle, rtol=1e-4, atol=1e-4)
    for native, oracle in zip(found[0][2:], found[1][2:], strict=True):
        torch.testing.assert_close(native, oracle, rtol=2e-2, atol=2e-2)


def test_the_native_loss_refuses_indices_out_of_range() -> None:
    require_native()
    from outrider.native import _native

    logits = torch.zeros(2, 16, dtype=torch.int16)
    for rows, labels in (([0, 1], [0, 0]), ([0, 0], [16, 0]), ([-1, 0], [0, 0])):
        with pytest.raises(ValueError, match="out of range"):
            _native.block_loss(
                _native.Machine(1),
                logits,
                logits[:1].clone(),
                torch.tensor(rows),
                torch.tensor(labels),
                torch.ones(2, 3),
                torch.empty(2, 4),
            )


def test_no_gap_means_no_distance_and_full_confidence() -> None:
    rows = torch.randn(ROWS, HIDDEN, dtype=torch.float64, generator=torch.Generator())
    matrix = torch.randn(SIZE, HIDDEN, dtype=torch.float64, generator=torch.Generator())
    teacher = (rows @ matrix.T).softmax(-1)
    inputs = HeadInputs(
        matrix,
        teacher,
        torch.arange(ROWS),
        torch.zeros(ROWS, dtype=torch.int64),
        torch.tensor([[0.0, 1.0, 0.0]]).repeat(ROWS, 1),
    )
    loss, terms = head_loss(rows.requires_grad_(), None, inputs)
    assert abs(float(loss.detach())) < 1e-4
    torch.testing.assert_close(terms[:, OVERLAP], torch.ones(ROWS))
    torch.testing.assert_close(terms[:, L1], torch.zeros(ROWS), rtol=0, atol=1e-5)


def test_terms_of_a_row_worked_by_hand() -> None:
    # Drafter (1/2, 1/4, 1/4), target (1/4, 1/4, 1/4) with a quarter outside.
    rows = torch.tensor([[math.log(2.0), 0.0, 0.0]])
    inputs = HeadInputs(
        torch.eye(3),
        torch.tensor([[0.25, 0.25, 0.25]]),
        torch.tensor([0]),
        torch.tensor([1]),
        torch.zeros(1, 3),
    )
    _, terms = head_loss(rows, None, inputs)
    expected = torch.empty(4)
    expected[CE], expected[L1], expected[OVERLAP] = math.log(4), 0.5, 0.75
    expected[SOFT_CE] = 0.25 * (math.log(2) + 2 * math.log(4))
    torch.testing.assert_close(terms[0], expected)


def test_slots_decay_from_the_first_draft() -> None:
    supervised = torch.tensor([[True, True, False]])
    weights = slot_weights(supervised, 4.0)
    torch.testing.assert_close(weights, torch.tensor([[1.0, math.exp(-0.25), 0.0]]))
    assert slot_weights(supervised, None).tolist() == [[1.0, 1.0, 0.0]]


def test_d_pace_sums_the_chances_to_get_further() -> None:
    ce = -torch.tensor([[0.5, 0.25, 1.0]]).log()
    weights = d_pace_weights(ce, torch.tensor([[True, True, False]]), 0.5)
    first, second = 0.75, 0.75 * 0.625
    torch.testing.assert_close(weights, torch.tensor([[first + second, second, 0.0]]))
