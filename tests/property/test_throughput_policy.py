"""The throughput policy: bounds, order, optimum, and what its early stop may know."""

import math
from collections.abc import Sequence
from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import BatchShape, Threshold, Throughput
from outrider.schedule.search import (
    expected_throughput,
    first_descent,
    highest,
    lengths_of,
    likeliest,
)

PLACE = MeasuredOn("a machine", "a model", "native", 1)


def cost_of(seconds: Sequence[float], host: float = 0.0) -> StepCost:
    """A table of 1, 2, … rows at every context."""
    rows = tuple(range(1, len(seconds) + 1))
    forward = (tuple(Timing(value, 0.0, 1) for value in seconds),)
    return StepCost(StepCostTable(PLACE, rows, (0,), forward, ((1, Timing(host, 0.0, 1)),)))


def shape_of(num_rows: int, strict: frozenset[int] = frozenset()) -> BatchShape:
    return BatchShape(num_known=num_rows, num_judged=num_rows, strict=strict)


chances = st.floats(0.0, 1.0, allow_nan=False)
rows = st.lists(chances, max_size=5).map(lambda row: list(accumulate(row, min)))
batches = st.lists(rows, min_size=1, max_size=4)
rising = st.lists(st.floats(0.1, 3.0), min_size=26, max_size=26).map(
    lambda steps: list(accumulate(steps))
)


def expected_rate(survival: list[list[float]], lengths: Sequence[int], cost: StepCost) -> float:
    tokens = len(survival) + sum(
        sum(row[:length]) for row, length in zip(survival, lengths, strict=True)
    )
    return tokens / cost.step(len(survival) + sum(lengths), len(survival), 0)


@given(batches, rising, st.booleans())
def test_lengths_are_within_the_drafts(
    survival: list[list[float]], seconds: list[float], is_wide: bool
) -> None:
    """Catches a length beyond the draft, or of a token that cannot survive."""
    lengths = Throughput(cost_of(seconds), is_wide=is_wide).plan(survival, shape_of(len(survival)))
    for row, length in zip(survival, lengths, strict=True):
        assert 0 <= length <= len(row)
        assert all(value > 0 for value in row[:length])


@given(batches, rising)
def test_the_wide_search_is_the_optimum(survival: list[list[float]], seconds: list[float]) -> None:
    """Catches a search that misses a combination of lengths; the oracle tries all of them."""
    cost = cost_of(seconds)
    lengths = Throughput(cost).plan(survival, shape_of(len(survival)))
    best = max(
        expected_rate(survival, each, cost)
        for each in product(*(range(len(row) + 1) for row in survival))
    )
    assert expected_rate(survival, lengths, cost) == pytest.approx(best, rel=1e-9)


def article(survival: list[list[float]], cost: StepCost, *, stops: bool) -> list[int]:
    """Algorithm 1 as it is written, one token at a time."""
    steps = [(r, slot + 1) for r, row in enumerate(survival) for slot in range(len(row))]
    steps.sort(key=lambda step: (-survival[step[0]][step[1] - 1], step[1], step[0]))
    lengths = [0] * len(survival)
    chosen, num_rows, tokens = list(lengths), len(survival), float(len(survival))
    best = tokens / cost.step(num_rows, len(survival), 0)
    for row, length in steps:
        if survival[row][length - 1] <= 0:
            break
        lengths[row] = length
        num_rows += 1
        tokens += survival[row][length - 1]
        rate = tokens / cost.step(num_rows, len(survival), 0)
        if rate > best:
            best, chosen = rate, list(lengths)
        elif stops:
            break
    return chosen


@given(batches, rising, st.booleans())
def test_it_is_the_article_s_algorithm(
    survival: list[list[float]], seconds: list[float], is_wide: bool
) -> None:
    """Catches a vectorised search that admits in another order or stops elsewhere."""
    cost = cost_of(seconds)
    found = Throughput(cost, is_wide=is_wide).plan(survival, shape_of(len(survival)))
    assert found == article(survival, cost, stops=not is_wide)


@given(batches, rising, st.data())
def test_the_early_stop_never_looks_ahead(
    survival: list[list[float]], seconds: list[float], data: st.DataObject
) -> None:
    """Catches an admission that depends on what comes behind it: change the tail, keep the head."""
    policy = Throughput(cost_of(seconds), is_wide=False)
    lengths = policy.plan(survival, shape_of(len(survival)))
    row = data.draw(st.sampled_from(range(len(survival))))
    keep = data.draw(st.integers(0, len(survival[row])))
    ceiling = survival[row][keep - 1] if keep else 1.0
    tail = data.draw(st.lists(st.floats(0.0, ceiling), max_size=5 - keep))
    changed = [list(own) for own in survival]
    changed[row] = survival[row][:keep] + list(accumulate(tail, min))
    again = policy.plan(changed, shape_of(len(survival)))
    # Whether the first `keep` tokens are verified was decided without the tail.
    assert min(again[row], keep) == min(lengths[row], keep)


@given(batches, rising, st.permutations(range(4)), st.booleans())
def test_the_order_of_the_rows_does_not_matter(
    survival: list[list[float]], seconds: list[float], order: list[int], is_wide: bool
) -> None:
    """Catches a row that is favoured by its place; equal values are the one thing left to it."""
    values = [value for row in survival for value in row]
    if len(set(values)) < len(values):
        return
    order = [index for index in order if index < len(survival)]
    policy = Throughput(cost_of(seconds), is_wide=is_wide)
    lengths = policy.plan(survival, shape_of(len(survival)))
    moved = policy.plan([survival[index] for index in order], shape_of(len(survival)))
    assert moved == [lengths[index] for index in order]


def test_equals_are_admitted_by_length_then_by_row() -> None:
    """Catches a tie decided by chance or by a later row."""
    survival = [[0.5, 0.5], [0.5], [0.9, 0.5]]
    falling = likeliest(survival)
    expected = [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [2, 1, 1], [2, 1, 2]]
    assert [lengths_of(survival, falling, count) for count in range(6)] == expected


@given(batches)
def test_flat_cost_verifies_everything(survival: list[list[float]]) -> None:
    """Catches a search that stops although another token is free."""
    for is_wide in (False, True):
        policy = Throughput(cost_of([1.0] * 26), is_wide=is_wide)
        alive = [sum(value > 1e-9 for value in row) for row in survival]
        found = policy.plan(survival, shape_of(len(survival)))
        assert [max(a, b) for a, b in zip(alive, found, strict=True)] == found


@given(batches)
def test_steep_cost_verifies_nothing(survival: list[list[float]]) -> None:
    """Catches a search that admits the first token unseen: here every row doubles the cost."""
    for is_wide in (False, True):
        policy = Throughput(cost_of([2.0**rows for rows in range(26)]), is_wide=is_wide)
        assert policy.plan(survival, shape_of(len(survival))) == [0] * len(survival)


@given(rows, rising)
def test_one_request_gets_its_own_optimum(row: list[float], seconds: list[float]) -> None:
    """Catches a τ or a B that counts the anchor twice or not at all."""
    rates = [(1 + sum(row[:length])) / seconds[length] for length in range(len(row) + 1)]
    (length,) = Throughput(cost_of(seconds)).plan([row], shape_of(1))
    assert rates[length] == pytest.approx(max(rates), rel=1e-9)


def test_a_staircase_stops_the_early_stop_and_not_the_wide_search() -> None:
    """Catches a wide search that gives up in a valley: rows come in fours, as kernels do."""
    seconds = [1.0 + 0.35 * math.ceil(rows / 4) for rows in range(1, 27)]
    seconds[0] = 1.0
    survival = [[0.3, 0.29, 0.28, 0.1, 0.1]]
    policy = Throughput(cost_of(seconds), is_wide=False)
    assert policy.plan(survival, shape_of(1)) == [0]
    assert Throughput(cost_of(seconds)).plan(survival, shape_of(1)) == [3]


def test_the_numbers_of_the_article() -> None:
    """Catches another definition of survival, τ or B."""
    survival = list(accumulate([0.9, 0.8, 0.7], lambda a, b: a * b))
    assert survival[-1] == pytest.approx(0.504)
    # Two requests: 1 + .9 + .72 and 1 + .5 tokens, from (1 + 2) + (1 + 1) positions.
    rates = expected_throughput(likeliest([survival, [0.5]]), 2.0, [1.0] * 5)
    assert rates == pytest.approx([2.0, 2.9, 3.62, 4.124, 4.624])
    assert (first_descent([2.0, 2.0, 3.0]), highest([2.0, 2.0, 3.0])) == (0, 2)


def test_strict_rows_keep_the_early_stop_beside_others() -> None:
    """Catches a wide search that reaches rows judged by rejection, or that forgets their cost."""
    seconds = [1.0, 1.6, 1.7, 1.75, 1.8, 1.85, 1.9, 1.95]
    survival = [[0.6, 0.5, 0.5], [0.6, 0.55, 0.5]]
    shape = shape_of(2, strict=frozenset({0}))
    wide, early = Throughput(cost_of(seconds)), Throughput(cost_of(seconds), is_wide=False)
    steep = [1.0, 1.0, 1.6, 1.62, 1.64, 1.66, 1.68, 1.7]
    assert wide.plan(survival, shape)[0] == early.plan(survival, shape)[0]
    mixed = Throughput(cost_of(steep)).plan(survival, shape)
    assert mixed[0] == 0
    assert mixed == [0, 3]
    assert Throughput(cost_of(steep)).plan(survival, shape_of(2)) == [3, 3]


def test_drafts_alone_never_ask_for_a_step_beyond_the_table() -> None:
    """Catches an extrapolated cost that looks cheap; a long prompt in the step lifts the bound."""
    flat = cost_of([1.0, 1.0, 1.0, 1.0])
    survival = [[0.9] * 5]
    assert Throughput(flat).plan(survival, shape_of(1)) == [3]
    prompt = BatchShape(num_known=50, num_judged=1)
    assert Throughput(flat).plan(survival, prompt) == [5]


def test_a_prompt_in_the_step_does_not_make_drafts_cheap() -> None:
    """Catches a price per second that sinks because a long prompt is read beside the drafts."""
    linear = cost_of([1.0 + 0.5 * rows for rows in range(60)])
    survival = [[0.4, 0.3], [0.9]]
    alone = Throughput(linear).plan(survival, shape_of(2))
    beside = Throughput(linear).plan(survival, BatchShape(num_known=40, num_judged=2))
    assert alone == beside == [0, 1]


@pytest.mark.parametrize(
    ("least", "expected"), [(0.5, [2, 0, 1]), (0.0, [3, 1, 1]), (1.0, [0] * 3)]
)
def test_threshold_ends_before_the_first_weak_token(least: float, expected: list[int]) -> None:
    """Catches a threshold on the product, or one that rounding moves."""
    confidence = [[0.9, 0.5, 0.4], [0.49], [0.5]]
    survival = [list(accumulate(row, lambda a, b: a * b)) for row in confidence]
    assert Threshold(least).plan(survival, shape_of(3)) == expected
    assert not Threshold.anticipating
    assert not Throughput.anticipating
