"""Tokens drawn in C++ against `sampling.warp` and `sampling.draw` on the same float32 logits."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.request import SamplingParams
from outrider.sampling.draw import coupled_token
from outrider.sampling.rows import NONE_LEFT, NOT_NUMBERS
from outrider.sampling.warp import Context, warp
from tests.native.machines import machine, require_native
from tests.strategies import logit_rows, token_lists, warp_options
from tests.unchecked import unchecked

VOCAB = 9
STOPS = frozenset({1, 4})
SEEDS = st.sampled_from([0, 1, -5, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


def expected_token(
    row: Tensor, params: SamplingParams, context: Context, seed: int, position: int
) -> int:
    """What the Python side draws, or why it draws nothing."""
    if not bool(torch.isfinite(row.max())):
        return NOT_NUMBERS
    warped = warp(row, params, context)
    token = coupled_token(warped, seed, position, is_greedy=params.is_greedy)
    return NONE_LEFT if float(warped[token]) == -torch.inf else token


def native_tokens(
    rows: Tensor, params: SamplingParams, context: Context, seeds: Sequence[int]
) -> list[int]:
    from outrider.native.sampling import matching_tokens, warp_rule

    rules = [warp_rule(params, context)] * len(seeds)
    numbers = range(len(seeds))
    return matching_tokens(machine(2), rows, numbers, rules, seeds, numbers)


def check(rows: Tensor, params: SamplingParams, context: Context, seeds: Sequence[int]) -> None:
    expected = [
        expected_token(row, params, context, seed, position)
        for position, (row, seed) in enumerate(zip(rows, seeds, strict=True))
    ]
    assert native_tokens(rows, params, context, seeds) == expected, params


@given(
    rows=st.lists(logit_rows(VOCAB), min_size=1, max_size=3),
    options=warp_options(VOCAB),
    prompt=token_lists(VOCAB),
    output=token_lists(VOCAB, 6),
    seed=SEEDS,
    allowed=st.none() | st.binary(min_size=2, max_size=4),
)
@unchecked()
def test_any_options_on_a_small_vocabulary(
    rows: list[Tensor],
    options: dict[str, object],
    prompt: list[int],
    output: list[int],
    seed: int,
    allowed: bytes | None,
) -> None:
    """Catches a warp in another order, a border tie that is cut, or noise of another position."""
    logits = torch.stack(rows).to(torch.float32)
    context = Context(prompt, output, STOPS, allowed)
    check(
        logits, SamplingParams.from_options(options), context, [seed + i for i in range(len(rows))]
    )


LARGE = 49157  # No multiple of any vector.


def large_rows(number: int, seed: int) -> Tensor:
    """Rows of a real model's shape: few likely tokens, a long tail, some exact ties."""
    generator = torch.Generator().manual_seed(seed)
    rows = 3.0 * torch.randn(number, LARGE, generator=generator)
    rows[:, ::5] = (rows[:, ::5] * 4).round() / 4
    rows[:, 7] += 9.0
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8},
        {"temperature": 2.5},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 40000},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 2.0, "top_p": 0.999},
        {"temperature": 0.7, "min_p": 0.02},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.1, "frequency_penalty": 0.3, "logit_bias": {7: -100.0, LARGE - 1: 3.0}},
        {"temperature": 1.0, "allowed_token_ids": frozenset(range(0, LARGE, 3))},
    ],
    ids=str,
)
@unchecked()
def test_a_large_vocabulary(options: dict[str, object]) -> None:
    """Catches a wrong tail of a vector loop, a nucleus beyond the guess, or a lost rare noise."""
    context = Context([7, 8, 9], [3, 3, 11])
    rows = large_rows(8, seed=5)
    check(rows, SamplingParams.from_options(options), context, list(range(40, 48)))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@unchecked()
def test_a_mask_over_a_large_vocabulary(temperature: float) -> None:
    """Catches bits that are read from the wrong end, and a tail of the row without a mask."""
    generator = torch.Generator().manual_seed(3)
    size = LARGE // 8 + 1
    for density in (1, 40, 256):
        draws = torch.randint(256, (size,), generator=generator)
        allowed = bytes((draws * (draws < density)).tolist())
        context = Context([], [], frozenset(), allowed)
        params = SamplingParams(temperature=temperature, top_p=0.9)
        check(large_rows(4, seed=density), params, context, [1, 2, 3, 4])


def test_a_mask_that_is_too_short_is_refused() -> None:
    """Catches a read behind the end of a mask."""
    with pytest.raises(ValueError, match="too short"):
        native_tokens(
            torch.zeros(1, 17), SamplingParams(), Context([], [], allowed=b"ab"), seeds=[0]
        )


def test_codes_are_those_of_the_extension() -> None:
    """Catches a broken row that is taken for another kind of broken, or for a token."""
    from outrider.native import _native

    assert (_native.NOT_NUMBERS, _native.NONE_LEFT) == (NOT_NUMBERS, NONE_LEFT)


@pytest.mark.parametrize("temperature", [1e-5, 0.7])
@unchecked()
def test_logits_that_overflow_the_temperature(temperature: float) -> None:
    """Catches a rare noise that beats an infinite score."""
    rows = large_rows(8, seed=6)
    rows[:, 40001] = 3e38
    check(rows, SamplingParams(temperature=temperature), Context((), ()), list(range(8)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_not_numbers(value: float) -> None:
    """Catches a token drawn from logits that mean nothing, or one bad row spoiling its mates."""
    rows = torch.zeros(3, 40)
    rows[1, 33] = value
    tokens = native_tokens(rows, SamplingParams(), Context((), ()), [1, 2, 3])
    assert [token == NOT_NUMBERS for token in tokens] == [False, True, False]


def test_an_empty_mask() -> None:
    """Catches a token drawn where none is allowed."""
    params = SamplingParams(token_mask=lambda output: ())
    assert native_tokens(torch.zeros(1, 40), params, Context((), ()), [1]) == [NONE_LEFT]


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_that_is_not_there_is_refused(row: int) -> None:
    """Catches a read past the end of the logits."""
    from outrider.native.sampling import matching_tokens, warp_rule

    rule = warp_rule(SamplingParams(), Context((), ()))
    with pytest.raises(ValueError, match=f"row {row} is outside 0 to 2"):
        matching_tokens(machine(1), torch.zeros(3, 40), [row], [rule], [1], [0])


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    """Catches a write past the end of a row."""
    with pytest.raises(ValueError, match="token 40"):
        native_tokens(
            torch.zeros(1, 40), SamplingParams(logit_bias={40: 1.0}), Context((), ()), [1]
        )
