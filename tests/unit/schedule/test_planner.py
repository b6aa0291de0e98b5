"""Who drafts, what is planned, and what the planner makes of verdicts."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider.core.calibration import Calibration, Effect, SourceFit
from outrider.core.ids import RequestId
from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.schedule.confidence import Estimator, Said
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import BatchShape, Fixed, Throughput
from outrider.schedule.planner import DraftedRow, DraftedStep, Planner
from outrider.schedule.rationing import (
    COMMON_EVIDENCE,
    FIRST_PAUSE,
    LEAST_EVIDENCE,
    LONGEST_PAUSE,
    Rationing,
)
from outrider.schedule.search import Survival

A, B = RequestId("a"), RequestId("b")


def cost_of(seconds: Sequence[float], host: float = 0.0) -> StepCost:
    table = StepCostTable(
        measured_on=MeasuredOn("m", "m", "b", 1),
        rows=tuple(range(1, len(seconds) + 1)),
        contexts=(0,),
        forward=(tuple(Timing(value, 0.0, 1) for value in seconds),),
        host=((1, Timing(host, 0.0, 1)),),
    )
    return StepCost(table)


LINEAR = cost_of([1.0 + 0.5 * rows for rows in range(40)])


def step_of(
    drafts: dict[RequestId, Sequence[float]], draft_seconds: float = 0.0, asked: bool = True
) -> DraftedStep:
    rows = tuple(DraftedRow(name, Said(len(own), own), asked) for name, own in drafts.items())
    return DraftedStep(rows, BatchShape(len(rows), len(rows), 0.0, draft_seconds))


def test_a_plan_says_what_it_expects() -> None:
    """Catches a prediction that forgets drafting, the host or the anchors."""
    cost = cost_of([1.0, 1.1, 1.2, 1.3, 1.4], host=0.25)
    planner = Planner(Fixed(9), cost=cost)
    plan = planner.plan(step_of({A: [0.5, 0.5], B: []}, draft_seconds=0.1))
    assert plan.lengths == [2, 0]
    assert plan.survival == [[0.5, 0.25], []]
    assert plan.tokens == pytest.approx(2.75)
    assert plan.seconds == pytest.approx(1.3 + 0.25 + 0.1)
    assert Planner(Fixed(9)).plan(step_of({A: [0.5]})).seconds is None


def run(planner: Planner, drafts: Sequence[float], draft_seconds: float, steps: int) -> list[bool]:
    """Let one request draft whenever it may; say when it did."""
    asked = []
    for _ in range(steps):
        planner.begin_step(1)
        may = planner.may_draft(A)
        asked.append(may)
        own = drafts if may else []
        plan = planner.plan(step_of({A: own}, draft_seconds if may else 0.0, asked=may))
        planner.learn(plan, [min(plan.lengths[0], len(own))])
    return asked


def test_drafts_that_do_not_pay_are_not_made() -> None:
    """Catches a drafter that runs for nothing, or one that is never tried again."""
    asked = run(Planner(Throughput(LINEAR), cost=LINEAR), [0.01], 0.3, 400)
    assert sum(asked[:4]) >= 3
    assert 3 <= sum(asked[100:]) <= 300 // 16


def test_drafts_that_pay_go_on() -> None:
    """Catches a price that is too high."""
    assert all(run(Planner(Throughput(LINEAR), cost=LINEAR), [0.95, 0.9], 0.1, 50))


def test_a_cheap_drafter_is_probed_often() -> None:
    """Catches pauses that cost more chances than they save time."""
    planner = Planner(Throughput(LINEAR), cost=LINEAR)
    assert sum(run(planner, [], 0.001, 400)) >= 150


def test_a_gain_that_comes_seldom_keeps_a_cheap_drafter_going() -> None:
    """Catches a rest after a few drafts that gained nothing, where one in fifty gains a token."""
    rationing = Rationing()
    asked = 0
    for number in range(600):
        rationing.begin_step(16)
        if rationing.may_draft(A):
            asked += 1
            rationing.learn(A, 1.0 if number % 50 == 49 else 0.0, 0.01)
    assert asked > 560


def test_a_probe_that_pays_ends_the_rest() -> None:
    """Catches a request that stays off although its text became predictable."""
    planner = Planner(Throughput(LINEAR), cost=LINEAR)
    run(planner, [0.01], 0.3, 300)
    asked = run(planner, [0.95, 0.9, 0.9], 0.3, LONGEST_PAUSE + 40)
    assert all(asked[LONGEST_PAUSE + 2 :])


def test_one_request_rests_while_another_drafts_and_probes_meet() -> None:
    """Catches one request's verdict on all, and probes that each pay for a forward alone."""
    rationing = Rationing()
    probes: dict[RequestId, list[int]] = {A: [], B: []}
    for number in range(300):
        rationing.begin_step(1)
        for name in (A, B):
            if rationing.may_draft(name) and (name == A or number > 20):
                probes[name].append(number)
                rationing.learn(name, 0.0, 1.0)
        rationing.learn(RequestId("c"), 1.0, 0.1)
        assert rationing.may_draft(RequestId("c"))
    late = [set(own) & set(range(200, 300)) for own in probes.values()]
    assert late[0] == late[1] != set()
    assert rationing.num_resting == 2
    rationing.forget(A)
    rationing.forget(A)
    assert rationing.num_resting == 1


def ask(rationing: Rationing, name: RequestId, num_requests: int, steps: int) -> list[bool]:
    """Whether the request may draft in each of so many steps; no draft of it pays."""
    asked = []
    for _ in range(steps):
        rationing.begin_step(num_requests)
        asked.append(rationing.may_draft(name))
        if asked[-1]:
            rationing.learn(name, 0.0, 1.0)
    return asked


def test_a_new_request_rests_where_drafts_do_not_pay() -> None:
    """Catches drafts that every request makes to learn what all others know already."""
    rationing = Rationing()
    assert LEAST_EVIDENCE <= sum(ask(rationing, A, 16, 5)) < 5
    for number in range(COMMON_EVIDENCE):
        ask(rationing, RequestId(f"r{number}"), 16, 1)
    asked = ask(rationing, B, 16, 2 * FIRST_PAUSE)
    assert 1 <= sum(asked) <= 2
    # Of another load nothing is known.
    assert ask(rationing, RequestId("c"), 1, 1) == [True]


def test_a_request_that_rests_is_asked_when_half_the_others_have_gone() -> None:
    """Catches a rest on a busy machine that goes on when it is idle."""
    rationing = Rationing()
    ask(rationing, A, 16, 200)
    assert rationing.num_resting == 1
    rationing.begin_step(9)
    assert not rationing.may_draft(A)
    rationing.begin_step(8)
    assert rationing.may_draft(A)


def test_a_price_is_that_of_the_table() -> None:
    """Catches a price of one stair, or of prompts that are read meanwhile."""
    planner = Planner(Throughput(LINEAR), cost=LINEAR)
    price = planner.price(BatchShape(num_known=10, num_judged=4))
    assert price is not None
    assert price.step_seconds == pytest.approx(2.5)
    assert price.row_seconds == pytest.approx(0.5)
    assert price.row_tokens == pytest.approx(4 * 0.5 / 2.5)
    assert price.draft_seconds(3) == 0.0
    assert Planner(Fixed(9)).price(BatchShape(1, 1)) is None


def test_drafts_that_take_longer_than_expected_are_cut() -> None:
    """Catches a table that is believed against the clock: plans, prices and predictions."""
    planner = Planner(Throughput(LINEAR), cost=LINEAR)
    plain, drafted = step_of({A: []}, asked=False), step_of({A: [0.9, 0.9]}, 0.1)
    before = planner.plan(drafted)
    assert before.lengths == [2]
    assert before.seconds == pytest.approx(0.1 + 2.0)
    for _ in range(100):
        planner.hear(planner.plan(plain), 1.0)
        planner.hear(before, 1.0 + 3 * 1.1)
    after = planner.plan(drafted)
    assert after.lengths == [0]
    price = planner.price(BatchShape(1, 1))
    assert price is not None
    assert price.row_seconds == pytest.approx(2 * 0.5)
    # Of a step in which a prompt is read nothing can be learnt.
    reading = planner.plan(DraftedStep(drafted.rows, BatchShape(9, 1)))
    for _ in range(100):
        planner.hear(reading, 0.1)
    assert planner.plan(drafted).lengths == [0]


def test_a_delay_is_not_what_drafting_costs() -> None:
    """Catches a draft held up by another program that sends its request to rest."""
    delays = [0.1] * 5 + [50.0] + [0.1] * 30
    drafting = {"d": ((1, Timing(0.1, 0.0, 1)),)}
    cost = StepCost(replace(LINEAR.table, drafting=drafting), "d")
    planner = Planner(Throughput(cost), cost=cost)
    for delay in delays:
        assert run(planner, [0.95, 0.9], delay, 1) == [True]


def test_nothing_is_planned_where_nothing_was_drafted() -> None:
    """Catches a search in every step of an engine whose requests all rest."""

    class Counting(Fixed):
        calls = 0

        def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:
            Counting.calls += 1
            return super().plan(survival, shape)

    planner = Planner(Counting(9), cost=LINEAR)
    plan = planner.plan(step_of({A: [], B: []}))
    assert (plan.lengths, plan.tokens, Counting.calls) == ([0, 0], 2.0, 0)
    assert planner.plan(step_of({A: [], B: [0.9]})).lengths == [0, 1]
    assert Counting.calls == 1


def test_without_a_cost_table_everybody_drafts() -> None:
    """Catches rationing on a guess."""
    assert all(run(Planner(Fixed(9)), [0.01], 9.0, 50))


def test_bad_estimates_fall_back_to_the_best_fixed_length(caplog: pytest.LogCaptureFixture) -> None:
    """Catches a policy that goes on planning with estimates that verdicts contradict."""
    cost = cost_of([1.0, 1.1, 1.2, 2.9, 4.5, 6.0, 7.5, 9.0])
    planner = Planner(
        Throughput(cost), cost=cost
    )  # No estimator: the drafter is taken at its word.
    seen = []
    with caplog.at_level(logging.WARNING):
        for _ in range(400):
            plan = planner.plan(step_of({A: [0.9, 0.9, 0.2]}))
            seen.append(plan.lengths[0])
            # The first token alone is ever accepted.
            planner.learn(plan, [min(plan.lengths[0], 1)])
    assert seen[0] == 2
    # With one token verified the estimate holds again, so the policy comes back and goes again.
    assert seen.count(1) > 50
    assert len(caplog.records) == 1
    assert "verify lengths are fixed" in caplog.text


def test_an_estimator_learns_through_the_planner() -> None:
    """Catches verdicts that reach the gauge and not the estimate."""
    planner = Planner(Fixed(3), estimator=Estimator())
    for _ in range(300):
        planner.learn(planner.plan(step_of({A: [0.9, 0.9, 0.9]})), [0])
    plan = planner.plan(step_of({A: [0.9, 0.9, 0.9]}))
    assert plan.survival[0][0] < 0.2
    assert abs(planner.drift.gap) < 0.1
    planner.forget(A)


def test_requests_are_told_apart_and_forgotten() -> None:
    """Catches a record of one request that others get, or that stays when it is gone."""
    effects = {"": Effect(1.0, 0.0, 0.0)}
    fits = {"": SourceFit(effects=effects, by_share={"": Effect(0.0, 3.0, 0.0)})}
    calibration = Calibration("m", "d", 3, "logistic", {"greedy": 0.0}, {"greedy": fits})
    planner = Planner(Fixed(3), estimator=Estimator(calibration, learns=False))
    step = step_of({A: [0.5, 0.5], B: [0.5, 0.5]})
    before = planner.plan(step).survival
    planner.learn(planner.plan(step), [2, 0])
    own, other = planner.plan(step).survival
    assert own[0] > before[0][0]
    assert other == before[1]
    planner.forget(A)
    assert planner.plan(step).survival == before
