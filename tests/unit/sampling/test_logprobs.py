"""Log-probabilities of tokens that were chosen."""

import math

import pytest
import torch

from outrider.sampling.logprobs import token_logprobs

LOGITS = torch.tensor([[2.0, 1.0, 2.0, -1.0], [0.0, 5.0, 1.0, 1.0]], dtype=torch.float64)


def test_values_ranks_and_top() -> None:
    """Catches a rank off by one, or tokens of one row read from another."""
    first, second = token_logprobs(LOGITS, [1, 1], num_top=2)
    normaliser = math.log(sum(math.exp(v) for v in (2.0, 1.0, 2.0, -1.0)))
    assert first.token == 1
    assert first.logprob == pytest.approx(1.0 - normaliser)
    assert first.rank == 3
    assert [token for token, _ in first.top] in ([0, 2], [2, 0])
    assert second.rank == 1
    assert second.top[0] == (1, second.logprob)


def test_no_top_and_more_top_than_tokens() -> None:
    """Catches a crash at either end of the range."""
    (none,) = token_logprobs(LOGITS[:1], [3], num_top=0)
    assert none.top == ()
    assert none.rank == 4
    (all_of_them,) = token_logprobs(LOGITS[:1], [3], num_top=99)
    assert len(all_of_them.top) == 4
    values = [value for _, value in all_of_them.top]
    assert values == sorted(values, reverse=True)


def test_half_precision_is_normalised_in_float32() -> None:
    """Catches probabilities that add up to 1.01."""
    row = torch.linspace(0, 3, 500).to(torch.bfloat16)[None]
    (entry,) = token_logprobs(row, [0], num_top=500)
    assert sum(math.exp(value) for _, value in entry.top) == pytest.approx(1.0, abs=1e-4)
