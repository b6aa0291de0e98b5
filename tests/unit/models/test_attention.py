"""The reference attention and the rotation in front of it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.models.attention import FullCausal
from outrider.models.layers import RMSNorm, Rotary, rotate
from outrider.models.spec import RopeSpec
from outrider.testing.tiny import tiny_decoder, tiny_spec


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_query(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of one head of one row, written out."""
    scores = [float(query @ key) / math.sqrt(len(query)) for key in keys]
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = sum(weights)
    return torch.stack([w / total * v for w, v in zip(weights, values, strict=True)]).sum(0)


def test_attention_equals_the_formula() -> None:
    """Catches a wrong scale, a mask off by one, heads grouped with a stride, segments that mix."""
    lengths, heads, kv_heads = [3, 1, 4], 6, 2
    queries, keys = drawn(8, heads, 5, seed=1), drawn(8, kv_heads, 5, seed=2)
    values = drawn(8, kv_heads, 5, seed=3)
    attended = FullCausal(lengths).attend(0, queries, keys, values)
    start = 0
    for length in lengths:
        for row in range(start, start + length):
            for head in range(heads):
                group, seen = head // (heads // kv_heads), slice(start, row + 1)
                expected = one_query(queries[row, head], keys[seen, group], values[seen, group])
                torch.testing.assert_close(attended[row, head], expected)
        start += length


def test_lengths_must_cover_the_rows() -> None:
    """Catches rows that silently attend to nothing."""
    rows = drawn(4, 2, 4)
    with pytest.raises(AssertionError):
        FullCausal([3]).attend(0, rows, rows, rows)


@given(st.integers(0, 4000), st.integers(0, 4000), st.integers(0, 50))
def test_scores_depend_on_distance_alone(first: int, second: int, seed: int) -> None:
    """Catches pairs turned in different directions, or by different frequencies."""
    query, key = drawn(1, 1, 16, seed=seed), drawn(1, 1, 16, seed=seed + 1)
    rotary = Rotary(RopeSpec(theta=10000.0, max_position=10_000), 16)

    def score(at: int, of: int) -> Tensor:
        tables = [rotary.tables(torch.tensor([place]), torch.float64) for place in (at, of)]
        return (rotate(query, *tables[0]) * rotate(key, *tables[1])).sum()

    torch.testing.assert_close(score(first, second), score(first + 137, second + 137))


def test_rotation_turns_halves_not_neighbours() -> None:
    """Catches the interleaved layout: dimension 0 must move into dimension 2 of 4."""
    rotary = Rotary(RopeSpec(theta=10000.0, max_position=10), 4)
    tables = rotary.tables(torch.tensor([1]), torch.float64)
    turned = rotate(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]], dtype=torch.float64), *tables)
    expected = torch.tensor([[[math.cos(1), 0.0, math.sin(1), 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(turned, expected)


def test_tables_keep_their_precision_in_bfloat16() -> None:
    """Catches angles computed in bfloat16, which has no integer above 256 in steps of one."""
    rotary = Rotary(RopeSpec(theta=10000.0, max_position=10_000), 16)
    positions = torch.tensor([1001, 4097])
    low = rotary.tables(positions, torch.bfloat16)
    exact = rotary.tables(positions, torch.float64)
    for table, expected in zip(low, exact, strict=True):
        assert table.dtype == torch.bfloat16
        torch.testing.assert_close(table.double(), expected, atol=5e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norm_keeps_dtype_and_is_computed_wide(dtype: torch.dtype) -> None:
    """Catches a sum of squares that overflows or rounds in the low precision."""
    norm = RMSNorm(8, 1e-6)
    norm.weight.data = torch.full((8,), 2.0, dtype=dtype)
    rows = (drawn(3, 8) * 1e3).to(dtype)
    expected = 2 * rows.double() / rows.double().square().mean(-1, keepdim=True).sqrt()
    normalised = norm(rows)
    assert normalised.dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(normalised.double(), expected, atol=tolerance, rtol=tolerance)


def test_segments_do_not_see_each_other() -> None:
    """Catches a ragged batch that differs from its sequences run alone."""
    decoder = tiny_decoder(tiny_spec("qwen3"), seed=9)
    lengths = [5, 1, 9]
    ids = torch.arange(15) * 11 % 64
    positions = torch.cat([torch.arange(length) for length in lengths])
    together, _ = decoder(ids, positions, FullCausal(lengths))
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        alone, _ = decoder(ids[rows], torch.arange(length), FullCausal([length]))
        torch.testing.assert_close(together[rows], alone)
        start += length


def test_taps_come_in_the_order_asked_for() -> None:
    """Catches features concatenated in layer order whatever the drafter was trained with."""
    decoder = tiny_decoder(tiny_spec(), seed=9)
    ids, positions, cache = torch.arange(6), torch.arange(6), FullCausal([6])
    _, features = decoder(ids, positions, cache, (1, -1, 0, 1))
    assert features is not None
    assert features.shape == (6, 4 * 32)
    second, embedding, first, again = features.chunk(4, dim=-1)
    assert torch.equal(embedding, decoder.embedding.weight[ids])
    assert torch.equal(second, again)
    assert not torch.equal(first, second)
    hidden, nothing = decoder(ids, positions, cache)
    assert nothing is None
    torch.testing.assert_close(decoder.norm(second), hidden)
