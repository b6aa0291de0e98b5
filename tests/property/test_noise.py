"""Noise: a pure function of its key, uniform, independent, and Gumbel where it says so."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from outrider.sampling.draw import coupled_token, draw
from outrider.sampling.noise import Purpose, gumbel, gumbel_argmax, mix, uniform
from tests.strategies import distributions

SEEDS = st.integers(-(1 << 70), 1 << 70)
COUNTERS = st.integers(0, 1 << 40)
ALL = torch.arange(64)


@given(SEEDS, COUNTERS, st.lists(st.integers(0, 63), min_size=1, unique=True))
def test_a_token_has_one_value_whatever_else_is_asked(
    seed: int, counter: int, tokens: list[int]
) -> None:
    """Catches noise by call order or by index: masked and unmasked rows would not be coupled."""
    everywhere = gumbel(seed, Purpose.MATCH, counter, ALL)
    some = gumbel(seed, Purpose.MATCH, counter, torch.tensor(tokens))
    assert some.tolist() == everywhere[tokens].tolist()


@given(SEEDS, COUNTERS)
def test_keys_are_told_apart(seed: int, counter: int) -> None:
    """Catches a purpose, a counter or a seed that does not enter the hash."""
    keys: list[tuple[int, ...]] = [
        (seed, Purpose.MATCH, counter),
        (seed, Purpose.DRAFT, counter),
        (seed + 1, Purpose.MATCH, counter),
        (seed, Purpose.MATCH, counter + 1),
        (seed, Purpose.MATCH, counter, 0),
        (seed, Purpose.MATCH, 0, counter + 1),
    ]
    assert len({mix(*key) for key in keys}) == len(keys)
    row = gumbel(seed, Purpose.MATCH, counter, ALL)
    assert not torch.equal(row, gumbel(seed + 1, Purpose.MATCH, counter, ALL))
    assert not torch.equal(row, gumbel(seed, Purpose.MATCH, counter + 1, ALL))
    assert not torch.equal(row, gumbel(seed, Purpose.ADD, counter, ALL))


def test_purposes_never_share_a_number() -> None:
    """Catches two purposes of one value: a draft would be judged by the noise that drew it."""
    numbers = [uniform(1, purpose, 0, 0) for purpose in Purpose.__members__.values()]
    assert len(set(numbers)) == len(numbers) >= 5


@given(SEEDS, st.sampled_from(list(Purpose)), COUNTERS, COUNTERS)
def test_uniform_numbers_are_below_one(seed: int, purpose: Purpose, one: int, two: int) -> None:
    """Catches a 1.0, which would reject a token that is certain."""
    assert 0.0 <= uniform(seed, purpose, one, two) < 1.0


def test_gumbel_noise_is_finite_at_both_ends() -> None:
    """Catches log(0): one infinite value in 2**53 would decide a token on its own."""
    row = gumbel(0, Purpose.MATCH, 0, torch.arange(200_000))
    assert bool(torch.isfinite(row).all())
    assert -3.0 < float(row.min()) < -2.0
    assert 10.0 < float(row.max()) < 20.0


@pytest.mark.stat
def test_uniform_numbers_are_uniform_and_independent() -> None:
    """n = 20,000 pairs (this slot, next slot) over a grid of 10 × 10, chi-square with 99 degrees.

    Threshold: the 1 − 1e-6 quantile, so a sound generator is called bad once in a million edits; a
    correlation of 0.08 between neighbouring slots or rounds is found nine times in ten.
    """
    for second in ((0, 1), (1, 0)):
        cells = Counter(
            (
                int(10 * uniform(7, Purpose.ACCEPT, round_number, 0)),
                int(10 * uniform(7, Purpose.ACCEPT, round_number + second[0], second[1])),
            )
            for round_number in range(0, 40_000, 2)
        )
        statistic = sum((cells[i, j] - 200) ** 2 / 200 for i in range(10) for j in range(10))
        assert statistic < stats.chi2.isf(1e-6, 99)


@pytest.mark.stat
@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_gumbel_noise_is_gumbel(axis: str) -> None:
    """n = 20,000 along tokens, positions or seeds; Kolmogorov-Smirnov against exp(−exp(−x)).

    Threshold 1e-6, the false-alarm rate; a shift of the mean by 0.05 is found with probability
    above 0.99.
    """
    if axis == "tokens":
        sample = gumbel(1, Purpose.MATCH, 0, torch.arange(20_000))
    else:
        one = torch.tensor([3])
        keys = [(0, i) if axis == "positions" else (i, 0) for i in range(20_000)]
        sample = torch.cat([gumbel(seed, Purpose.MATCH, at, one) for seed, at in keys])
    assert stats.kstest(sample.numpy(), stats.gumbel_r.cdf).pvalue > 1e-6


@pytest.mark.stat
def test_the_law_of_the_arg_max_is_the_softmax() -> None:
    """n = 20,000 positions, 5 tokens, one of them impossible; chi-square with 3 degrees.

    False-alarm rate 1e-6. Drawing at temperature 0.9 instead of 1 has noncentrality 90 here and is
    found with probability above 0.999.
    """
    law = torch.tensor([0.5, 0.3, 0.0, 0.15, 0.05], dtype=torch.float64)
    drawn = Counter(
        coupled_token(law.log(), seed=11, position=i, is_greedy=False) for i in range(20_000)
    )
    assert drawn[2] == 0
    expected = {token: 20_000 * float(law[token]) for token in (0, 1, 3, 4)}
    statistic = sum((drawn[token] - n) ** 2 / n for token, n in expected.items())
    assert statistic < stats.chi2.isf(1e-6, 3)


@given(SEEDS, COUNTERS, st.integers(1, 400), st.sampled_from([0.1, 3.0, 20.0]))
def test_fast_arg_max_is_the_plain_one(
    seed: int, counter: int, num_tokens: int, spread: float
) -> None:
    """Catches a candidate dropped too early because its score is low and its noise rare."""
    tokens = torch.randperm(500, generator=torch.Generator().manual_seed(counter))[:num_tokens]
    scores = spread * gumbel(counter, Purpose.SEED, 0, tokens)
    plain = int((scores + gumbel(seed, Purpose.MATCH, counter, tokens)).argmax())
    assert int(gumbel_argmax(scores, seed, Purpose.MATCH, counter, tokens)) == plain


def test_rare_noise_wins_from_far_below() -> None:
    """Catches the border of the fast arg-max: a score 10.5 below the best wins by its noise."""
    tokens = torch.arange(200_000)
    noise = gumbel(3, Purpose.MATCH, 9, tokens)
    best = int(noise.argmax())
    assert float(noise[best]) > 11.0
    scores = torch.full_like(noise, -1e9)
    low = int((noise - noise.clamp(max=0.0)).abs().argmin())
    scores[low] = 0.0
    scores[best] = float(noise[low] - noise[best]) + 1e-9
    assert int(gumbel_argmax(scores, 3, Purpose.MATCH, 9, tokens)) == best
    scores[best] = float(noise[low] - noise[best]) - 1e-9
    assert int(gumbel_argmax(scores, 3, Purpose.MATCH, 9, tokens)) == low


@given(distributions(6), st.floats(0.0, 1.0, exclude_max=True))
def test_draw_is_the_inverse_of_the_cumulated_law(law: torch.Tensor, number: float) -> None:
    """Catches a token of probability zero at either end, and an off-by-one in the search."""
    token = draw(law, number)
    before = math.fsum(law[:token].tolist())
    assert float(law[token]) > 0
    assert before - 1e-12 <= number <= before + float(law[token]) + 1e-12


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_draw_at_the_ends(number: float) -> None:
    """Catches an impossible first token at 0, and an index past the end just below 1."""
    law = torch.tensor([0.0, 0.1, 0.2, 0.7, 0.0], dtype=torch.float64)
    assert draw(law, number) == (1 if number == 0.0 else 3)
    assert draw(law / 3, number) == (1 if number == 0.0 else 3)


@given(st.integers(0, 1 << 30))
def test_ties_go_to_the_lowest_id_when_greedy(seed: int) -> None:
    """Catches a greedy token that depends on the seed."""
    row = torch.tensor([0.0, 2.0, 2.0, 2.0, 1.0], dtype=torch.float64)
    assert coupled_token(row, seed, 0, is_greedy=True) == 1
