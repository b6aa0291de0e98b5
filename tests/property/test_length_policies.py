"""When may the verify length look at what was drafted? Exact enumeration of safe and biased ways.

Rejection is lossless only if whether draft token k is verified is decided without looking at it.
Two requests of two draft tokens each, vocabulary of two, confidences that depend on the drafted
prefix, one step cost that ties the requests together: the joint law of both outputs is computed
exactly and compared with the target's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest

from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.sampling.noise import Purpose, uniform
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import BatchShape, Threshold, Throughput
from tests import exact
from tests.exact import Law, Run
from tests.unchecked import unchecked

NUM_REQUESTS, DRAFT_LEN, VOCAB = 2, 2, 2
NUM_WORLDS = 25
Drafts = tuple[Run, ...]


@dataclass(frozen=True)
class World:
    """Everything random about one instance."""

    seed: int

    def numbers(self, *key: int) -> float:
        return uniform(self.seed, Purpose.SEED, *key)

    def row(self, kind: int, request: int, prefix: Run) -> list[float]:
        weights = [
            0.05 + self.numbers(kind, request, len(prefix), *prefix, v) for v in range(VOCAB)
        ]
        return [weight / sum(weights) for weight in weights]

    def target(self, request: int) -> exact.Rows:
        return lambda prefix: self.row(1, request, prefix)

    def draft(self, request: int) -> exact.Rows:
        return lambda prefix: self.row(2, request, prefix)

    def confidence(self, request: int, prefix: Run) -> float:
        """Of the draft token after `prefix`: mostly high or low."""
        number = self.numbers(3, request, len(prefix), *prefix)
        return 0.3 * number if number < 0.5 else 0.6 + 0.4 * number

    def steps_per_second(self, num_rows: int) -> float:
        """Falls with the size of the step; abruptly behind the smallest: valleys are common."""
        extra = num_rows - NUM_REQUESTS
        return (0.6 + 0.3 * self.numbers(4)) ** min(extra, 1) * 0.97**extra

    def survival(self, drafts: Drafts) -> list[list[float]]:
        return [
            [
                math.prod(self.confidence(r, run[:i]) for i in range(slot + 1))
                for slot in range(DRAFT_LEN)
            ]
            for r, run in enumerate(drafts)
        ]


Policy = Callable[[World, Drafts], list[int]]


def ladder(survival: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """(request, length) by falling survival, shorter first among equals."""
    steps = [(r, slot + 1) for r, row in enumerate(survival) for slot in range(len(row))]
    return sorted(steps, key=lambda step: (-survival[step[0]][step[1] - 1], step[1], step[0]))


def greedy(world: World, drafts: Drafts, *, stops: bool) -> list[int]:
    """Climb the ladder while the expected tokens per second grow, or search all of it."""
    survival = world.survival(drafts)
    lengths = [0] * NUM_REQUESTS
    best_lengths, num_rows, tokens = list(lengths), NUM_REQUESTS, float(NUM_REQUESTS)
    best = tokens * world.steps_per_second(num_rows)
    for request, length in ladder(survival):
        lengths[request] = length
        num_rows += 1
        tokens += survival[request][length - 1]
        rate = tokens * world.steps_per_second(num_rows)
        if rate > best:
            best, best_lengths = rate, list(lengths)
        elif stops:
            break
    return best_lengths


def stopping_greedy(world: World, drafts: Drafts) -> list[int]:
    return greedy(world, drafts, stops=True)


def global_argmax(world: World, drafts: Drafts) -> list[int]:
    return greedy(world, drafts, stops=False)


def product_policy(*, is_wide: bool, is_strict: bool) -> "Policy":
    """The engine's policy on the world's costs, with every row judged by rejection."""

    def plan(world: World, drafts: Drafts) -> list[int]:
        rows = range(1, NUM_REQUESTS * (DRAFT_LEN + 1) + 1)
        seconds = [1 / world.steps_per_second(max(number, NUM_REQUESTS)) for number in rows]
        table = StepCostTable(
            measured_on=MeasuredOn("m", "m", "b", 1),
            rows=tuple(rows),
            contexts=(0,),
            forward=(tuple(Timing(value, 0.0, 1) for value in seconds),),
            host=((1, Timing(0.0, 0.0, 1)),),
        )
        strict = frozenset(range(NUM_REQUESTS)) if is_strict else frozenset[int]()
        shape = BatchShape(num_known=NUM_REQUESTS, num_judged=NUM_REQUESTS, strict=strict)
        return Throughput(StepCost(table), is_wide=is_wide).plan(world.survival(drafts), shape)

    return plan


early_throughput = product_policy(is_wide=False, is_strict=False)
strict_throughput = product_policy(is_wide=True, is_strict=True)
wide_throughput = product_policy(is_wide=True, is_strict=False)


def threshold(world: World, drafts: Drafts) -> list[int]:
    shape = BatchShape(num_known=NUM_REQUESTS, num_judged=NUM_REQUESTS)
    return Threshold(0.4).plan(world.survival(drafts), shape)


def fixed_top(world: World, drafts: Drafts) -> list[int]:
    """The likeliest K draft tokens, K known beforehand."""
    lengths = [0] * NUM_REQUESTS
    for request, length in ladder(world.survival(drafts))[: int(5 * world.numbers(5))]:
        lengths[request] = length
    return lengths


def confident_prefix(world: World, drafts: Drafts) -> list[int]:
    """Stop before the first token of low confidence, which is known before it is drawn."""
    return _prefix(drafts, lambda r, run, slot: world.confidence(r, run[:slot]) >= 0.4)


def own_probability(world: World, drafts: Drafts) -> list[int]:
    """Drop a token because its own draft probability is low: it looks at the token."""
    return _prefix(drafts, lambda r, run, slot: world.draft(r)(run[:slot])[run[slot]] >= 0.4)


def _prefix(drafts: Drafts, keeps: Callable[[int, Run, int], bool]) -> list[int]:
    lengths = []
    for request, run in enumerate(drafts):
        length = 0
        while length < len(run) and keeps(request, run, length):
            length += 1
        lengths.append(length)
    return lengths


def bias(policy: Policy, world: World) -> float:
    """Largest error of the joint law of both outputs under a policy."""
    length = DRAFT_LEN + 1
    chains = [exact.chain_law(world.target(r), (), length) for r in range(NUM_REQUESTS)]

    @cache
    def emitted(request: int, kept: Run) -> Law:
        target, draft = world.target(request), world.draft(request)
        return exact.completed(exact.window_law(target, draft, (), kept), target, (), length)

    whole: dict[tuple[Run, ...], float] = {}
    drawn = [exact.chain_law(world.draft(r), (), DRAFT_LEN) for r in range(NUM_REQUESTS)]
    for drafts in product(*drawn):
        chance = math.prod(law[run] for law, run in zip(drawn, drafts, strict=True))
        lengths = policy(world, drafts)
        laws = [emitted(r, drafts[r][: lengths[r]]) for r in range(NUM_REQUESTS)]
        for runs, mass in exact.joint(laws).items():
            whole[runs] = whole.get(runs, 0.0) + chance * mass
    return exact.distance(whole, exact.joint(chains))


SAFE = [
    stopping_greedy,
    fixed_top,
    confident_prefix,
    early_throughput,
    strict_throughput,
    threshold,
]


@pytest.mark.parametrize("policy", SAFE)
@unchecked()
def test_lengths_decided_before_the_token_are_lossless(policy: Policy) -> None:
    """Catches an accept rule that is exact for whole drafts only, or a wrong row's residual."""
    errors = [bias(policy, World(seed)) for seed in range(NUM_WORLDS)]
    assert max(errors) < 1e-12
    worlds = [World(seed) for seed in range(NUM_WORLDS)]
    chosen = {tuple(policy(world, ((0, 1), (1, 0)))) for world in worlds}
    assert len(chosen) > 3, "the policy hardly ever chooses"


@pytest.mark.parametrize("policy", [global_argmax, own_probability, wide_throughput])
@unchecked()
def test_lengths_that_look_at_the_token_are_found_out(policy: Policy) -> None:
    """Catches an enumeration that would call any policy lossless."""
    assert max(bias(policy, World(seed)) for seed in range(NUM_WORLDS)) > 1e-2


@pytest.mark.parametrize(("stops", "expected"), [(True, 0.7), (False, 0.85)])
def test_the_papers_counterexample(stops: bool, expected: float) -> None:
    """Catches a search that goes on past a draft that does not pay and comes back for it.

    One request, two drafts, survival 0.8 of the first; after A the second is confident (0.9), after
    B it is not (0). The search for the global maximum verifies two drafts after A and none after B,
    so A comes out with 0.85 instead of 0.7; stopping at the first loss verifies none.
    """
    target, draft = [0.7, 0.3], [0.5, 0.5]
    rates = {1: 1.0, 2: 0.5, 3: 0.45}
    law: Law = {}
    table = StepCostTable(
        measured_on=MeasuredOn("m", "m", "b", 1),
        rows=tuple(rates),
        contexts=(0,),
        forward=(tuple(Timing(1 / rate, 0.0, 1) for rate in rates.values()),),
        host=((1, Timing(0.0, 0.0, 1)),),
    )
    policy = Throughput(StepCost(table), is_wide=not stops)
    for first in range(2):
        survival = [0.8, 0.8 * (0.9 if first == 0 else 0.0)]
        (length,) = policy.plan([survival], BatchShape(num_known=1, num_judged=1))
        for second in range(2):
            kept = (first, second)[:length]
            emitted = exact.window_law(lambda run: target, lambda run: draft, (), kept)
            for run, mass in emitted.items():
                exact.add(law, run[:1], draft[first] * draft[second] * mass)
    assert law[0,] == pytest.approx(expected, abs=1e-12)
