"""What deciding costs: one plan of the throughput policy, alone and with everything around it.

    python benchmarks/policy_cost.py [--requests 32] [--positions 7]

Prints microseconds per step, the median of many; the last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import accumulate
from operator import mul
from statistics import median

from outrider.core.calibration import Calibration, Effect, SourceFit
from outrider.core.ids import RequestId
from outrider.core.reading import Reading
from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.sampling.noise import Purpose, uniform
from outrider.schedule.confidence import Estimator, Said
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import BatchShape, Throughput
from outrider.schedule.planner import DraftedRow, DraftedStep, Planner

ROUNDS = 400


def linear_cost(num_rows: int) -> StepCost:
    """A table that is flat over the first rows and then rises with every row."""
    rows = tuple(range(1, num_rows + 1))
    forward = tuple(Timing(0.004 + 0.001 * max(0, n - 4), 0.0, 1) for n in rows)
    host = ((1, Timing(0.0003, 0.0, 1)),)
    return StepCost(StepCostTable(MeasuredOn("", "", "", 1), rows, (64,), (forward,), host))


def some_calibration() -> Calibration:
    """Effects of evidence for two sources."""
    names = ("", "in words", "age 128", "first", "after a", "after b", "sure 0", "behind word")
    effects = {name: Effect(0.0 if name else 1.0, 0.1, 0.0) for name in names}
    fit = SourceFit(effects=effects, by_share={"a": effects["first"], "b": effects["first"]})
    kinds = {"greedy": {"a": fit, "b": fit}}
    return Calibration("", "", 7, "logistic", {"greedy": 0.0}, kinds)


def microseconds(call: Callable[[int], object]) -> float:
    """Median time of a call."""
    times = []
    for number in range(ROUNDS):
        started = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - started)
    return 1e6 * median(times)


def said_of(confidence: list[float]) -> Said:
    """A draft that begins with one source and ends with another."""
    num = len(confidence)
    sources = ("a",) * (num // 2) + ("b",) * (num - num // 2)
    reading = Reading("words", ("word",) * num)
    return Said(num, confidence, "greedy", sources, reading, num_output=200)


def main() -> None:
    """Time the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--positions", type=int, default=7)
    args = parser.parse_args()
    requests, positions = args.requests, args.positions
    cost = linear_cost(requests * (positions + 1))
    confidence = [
        [
            [0.5 + 0.5 * uniform(7, Purpose.SEED, n, r, i) for i in range(positions)]
            for r in range(requests)
        ]
        for n in range(16)
    ]
    survival = [[list(accumulate(row, mul)) for row in step] for step in confidence]
    shape = BatchShape(requests, requests, 64.0, 0.0001)
    steps = [
        DraftedStep(
            tuple(
                DraftedRow(RequestId(f"r{r}"), said_of(row), was_asked=True)
                for r, row in enumerate(each)
            ),
            shape,
        )
        for each in confidence
    ]
    planner = Planner(Throughput(cost), cost=cost, estimator=Estimator())
    plans = [planner.plan(step) for step in steps]
    calibrated = Planner(Throughput(cost), cost=cost, estimator=Estimator(some_calibration()))
    calibrated_plans = [calibrated.plan(step) for step in steps]
    results = {
        "policy, wide search": lambda n: Throughput(cost).plan(survival[n % 16], shape),
        "policy, early stop": lambda n: Throughput(cost, is_wide=False).plan(
            survival[n % 16], shape
        ),
        "with estimates of survival": lambda n: planner.plan(steps[n % 16]),
        "learning from verdicts": lambda n: planner.learn(
            plans[n % 16], [length // 2 for length in plans[n % 16].lengths]
        ),
    }
    results["with a calibration by evidence"] = lambda n: calibrated.plan(steps[n % 16])
    results["learning with a calibration"] = lambda n: calibrated.learn(
        calibrated_plans[n % 16], [length // 2 for length in calibrated_plans[n % 16].lengths]
    )
    measured = {name: round(microseconds(call), 1) for name, call in results.items()}
    for name, value in measured.items():
        print(f"{name:30} {value:8.1f} us")
    print(json.dumps({"requests": requests, "positions": positions, "microseconds": measured}))


if __name__ == "__main__":
    main()
