"""Warps against the same thing written in plain Python, option by option and all together."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, reject
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.request import SamplingParams
from outrider.errors import RequestRejected
from outrider.sampling.warp import NUCLEUS_GUESS, Context, check_token_ids, probabilities, warp
from tests.plain_warp import Undecided, plainly
from tests.strategies import logit_rows, token_lists, warp_options

VOCAB = 6
STOPS = frozenset({1, 4})


def assert_same(warped: Tensor, expected: Sequence[float]) -> None:
    reference = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(warped, reference, rtol=0, atol=1e-12)


def check(row: Tensor, context: Context, params: SamplingParams) -> None:
    try:
        expected = plainly(row.tolist(), params, context)
    except Undecided:
        reject()
    before = row.clone()
    assert_same(warp(row, params, context), expected)
    assert torch.equal(row, before), "the logits were changed in place"


PastParts = tuple[list[int], list[int], frozenset[int]]
pasts: st.SearchStrategy[PastParts] = st.tuples(
    token_lists(VOCAB), token_lists(VOCAB, 6), st.sampled_from([frozenset(), STOPS])
)


@given(logit_rows(VOCAB), pasts, warp_options(VOCAB))
def test_all_warps_together(row: Tensor, past: PastParts, options: dict[str, object]) -> None:
    """Catches two warps in the wrong order, and any that reads the wrong part of the history."""
    check(row, Context(*past), SamplingParams.from_options(options))


OPTIONS: dict[str, st.SearchStrategy[object]] = {
    "temperature": st.sampled_from([0.0, 0.2, 1.0, 3.0]),
    "top_k": st.integers(0, VOCAB + 2),
    "top_p": st.floats(0.01, 1.0),
    "min_p": st.floats(0.0, 1.0),
    "repetition_penalty": st.sampled_from([0.5, 1.0, 1.5]),
    "presence_penalty": st.sampled_from([-1.0, 0.0, 1.0]),
    "frequency_penalty": st.sampled_from([-0.5, 0.0, 0.5]),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100)),
    "allowed_token_ids": st.frozensets(st.integers(0, VOCAB - 1), min_size=1),
    "min_tokens": st.integers(0, 8),
    "token_mask": st.sampled_from(
        [None, lambda output: None, lambda output: {len(output) % VOCAB, 0}]
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
@given(data=st.data(), row=logit_rows(VOCAB), past=pasts)
def test_each_warp_alone(option: str, data: st.DataObject, row: Tensor, past: PastParts) -> None:
    """Catches a wrong border, sign or history of this option."""
    value = data.draw(OPTIONS[option])
    check(row, Context(*past), SamplingParams.from_options({option: value, "max_tokens": 16}))


@given(logit_rows(VOCAB), st.sampled_from([0.0, 0.7, 1.5]))
@example(torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64), 0.0)
def test_probabilities(row: Tensor, temperature: float) -> None:
    """Catches probabilities at temperature 0 that are not a point mass on the first arg-max."""
    params = SamplingParams(temperature=temperature)
    law = probabilities(warp(row, params, Context((), ())), params).tolist()
    if temperature == 0:
        best = row.tolist().index(max(row.tolist()))
        assert law == [float(i == best) for i in range(VOCAB)]
    else:
        weights = [math.exp((v - float(row.max())) / temperature) for v in row.tolist()]
        assert law == pytest.approx([w / sum(weights) for w in weights], abs=1e-12)


@given(st.integers(0, 1 << 30), st.floats(0.05, 0.999), st.sampled_from([0.5, 3.0]))
def test_nucleus_of_a_large_vocabulary(seed: int, top_p: float, spread: float) -> None:
    """Catches a nucleus larger than the first guess that is cut at the guess."""
    generator = torch.Generator().manual_seed(seed)
    row = spread * torch.randn(2 * NUCLEUS_GUESS, generator=generator, dtype=torch.float64)
    params = SamplingParams(top_p=top_p)
    check(row, Context((), ()), params)


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tiny_temperature_is_nearly_greedy(temperature: float, dtype: torch.dtype) -> None:
    """Catches an overflow that makes the likeliest token tie with others, or NaN."""
    row = torch.tensor([1.0, 5.0, 30.0, -40.0, 4.0, 2.0], dtype=dtype)
    params = SamplingParams(temperature=temperature)
    law = probabilities(warp(row, params, Context((), ())), params)
    assert law.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_half_precision_is_warped_in_float32() -> None:
    """Catches penalties and temperature computed in the eight bits of bfloat16."""
    row = torch.tensor([1.0, 1.0078125, 3.0, 0.0, 0.0, 0.0], dtype=torch.bfloat16)
    warped = warp(row, SamplingParams(temperature=0.7), Context((), ()))
    assert warped.dtype == torch.float32
    assert float(warped[1]) == pytest.approx(1.0078125 / 0.7, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": frozenset({0, VOCAB})}, "allowed_token_ids"),
        ({"stop_token_ids": frozenset({VOCAB + 7})}, "stop_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(options: dict[str, object], names: str) -> None:
    """Catches an index error, or a negative id that silently means the last token."""
    with pytest.raises(RequestRejected, match=names):
        check_token_ids(SamplingParams.from_options(options), VOCAB)
