"""Step cost tables: what is refused, what is smoothed, what lies between the measurements."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.errors import ConfigError
from outrider.schedule.cost import StepCost, faults_of, smoothed

PLACE = MeasuredOn("a machine", "a model", "native", 2)
ROWS = (1, 2, 4, 8, 16)


def timing(seconds: float, spread: float = 0.0) -> Timing:
    return Timing(seconds, spread, 5)


def table_of(*forward: Sequence[float], rows: Sequence[int] = ROWS) -> StepCostTable:
    contexts = tuple(100 * (1 + index) for index in range(len(forward)))
    return StepCostTable(
        measured_on=PLACE,
        rows=tuple(rows),
        contexts=contexts,
        forward=tuple(tuple(map(timing, own)) for own in forward),
        host=((1, timing(0.5)), (4, timing(0.8))),
        drafting={"suffix": ((1, timing(0.1)), (2, timing(0.3)))},
    )


GOOD = table_of([1, 1.2, 1.3, 2, 4], [2, 2.4, 2.6, 4, 8])


def kinds(table: StepCostTable, *, fatal: bool) -> list[str]:
    return [each.kind for each in faults_of(table) if each.is_fatal == fatal]


def test_a_good_table_has_no_fault() -> None:
    """Catches a check that refuses what was measured well."""
    assert faults_of(GOOD) == []


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (table_of([1, 1, 1, 1, 1]), "flat"),
        (table_of([0, 1, 1, 1, 2]), "flat"),
        (table_of([1, 5, 2, 2, 6]), "non-monotone"),
        (table_of([1, 2, 3], rows=(1, 2, 3)), "truncated"),
        (table_of([1, 2, 3, 4], rows=(2, 4, 8, 16)), "truncated"),
        (replace(GOOD, host=()), "truncated"),
        (
            replace(
                GOOD, forward=(tuple(timing(1 + n, 0.3 + n) for n in range(5)), GOOD.forward[1])
            ),
            "noisy",
        ),
    ],
)
def test_tables_that_would_mislead_are_refused(table: StepCostTable, kind: str) -> None:
    """Catches a policy that never trims, or trims by noise."""
    assert kind in kinds(table, fatal=True)


def test_small_faults_are_told_and_kept() -> None:
    """Catches a table thrown away for one disturbed point."""
    one_noisy = (timing(1), timing(1.2, 0.5), timing(1.3), timing(2), timing(4))
    assert kinds(replace(table_of([1, 1.2, 1.3, 2, 4]), forward=(one_noisy,)), fatal=False) == [
        "noisy"
    ]
    assert kinds(table_of([1, 1.3, 1.2, 2, 4]), fatal=False) == ["non-monotone"]
    assert kinds(table_of([1, 1.3, 1.2, 2, 4]), fatal=True) == []


def test_smoothing_pools_what_falls() -> None:
    """Catches a running maximum, which one slow outlier would stretch over all that follows."""
    assert smoothed([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert smoothed([5, 4, 3]) == [4, 4, 4]
    assert smoothed([1, 2, 3]) == [1, 2, 3]


def test_noise_everywhere_is_met_with_the_fastest_times() -> None:
    """Catches medians of a busy machine that are believed, or a table thrown away for nothing."""
    noisy = tuple(Timing(2.0 + 0.1 * n, 3.0, 5, fastest=1.0 + n) for n in range(5))
    table = replace(table_of([1, 1.2, 1.3, 2, 4]), forward=(noisy,))
    assert kinds(table, fatal=False) == ["noisy"]
    assert kinds(table, fatal=True) == []
    assert StepCost(table).forward_curve(96, 16)[8] == pytest.approx(4.0)
    few = tuple(replace(each, count=3) for each in noisy)
    assert kinds(replace(table, forward=(few,)), fatal=True) == ["noisy"]


def test_a_burst_over_one_point_is_met_with_the_fastest_times() -> None:
    """Catches a table thrown away because three rows were disturbed for most of their samples."""
    medians, fastest = (1, 5, 1.3, 2, 4), (1, 1.1, 1.2, 1.9, 3.9)
    burst = tuple(
        Timing(median, 0.1, 5, fastest=least)
        for median, least in zip(medians, fastest, strict=True)
    )
    table = replace(table_of([1, 1.2, 1.3, 2, 4]), forward=(burst,))
    assert faults_of(table) == []
    assert StepCost(table).forward_curve(96, 16)[2] == pytest.approx(1.1)


def test_costs_between_measurements() -> None:
    """Catches a look-up that is off by one row or reads the wrong context."""
    cost = StepCost(GOOD, "suffix")
    curve = cost.forward_curve(96, 16)  # 96 is below the first context, 100.
    assert [curve[rows] for rows in ROWS] == [1, 1.2, 1.3, 2, 4]
    assert curve[0] == 0
    assert curve[3] == pytest.approx(1.25)
    assert curve[12] == pytest.approx(3)
    assert cost.forward_curve(160, 16)[8] == pytest.approx(2 + 0.6 * 2)
    assert cost.host(1) == 0.5
    assert cost.host(2) == pytest.approx(0.6)
    assert cost.drafting(2) == 0.3
    assert StepCost(GOOD, "ngram").drafting(2) == 0
    assert cost.step(8, 4, 96) == pytest.approx(2.8)


def test_costs_beyond_the_measurements_go_on_rising() -> None:
    """Catches rows that are free behind the table."""
    cost = StepCost(GOOD)
    curve = cost.forward_curve(96, 100)
    slope = (4 - 1.3) / 12
    assert curve[100] == pytest.approx(4 + 84 * slope)
    assert cost.is_extrapolated(17, 100)
    assert cost.is_extrapolated(1, 201)
    assert not cost.is_extrapolated(16, 200)
    assert cost.host(7) == pytest.approx(1.1)


def test_a_table_survives_its_file() -> None:
    """Catches a field that is lost on the way."""
    assert StepCostTable.from_json(GOOD.to_json(), "f") == GOOD


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "x"}, "f is not a step cost table"),
        ({"version": 99}, "version 99, but this is version 1"),
        ({"rows": [1, 2, 2, 8, 16]}, "damaged"),
        ({"rows": [1, 2]}, "truncated"),
        ({"rows": [1, 2, 4, 8, "16"]}, "damaged"),
        ({"host": [[1, {"seconds": -1, "spread": 0, "count": 1}]]}, "damaged"),
        ({"host": [[1, {"seconds": float("nan"), "spread": 0, "count": 1}]]}, "damaged"),
        ({"measured_on": {}}, "damaged"),
        ({"drafting": 3}, "damaged"),
    ],
    ids=str,
)
def test_damaged_files_are_named(change: dict[str, Any], says: str) -> None:
    """Catches a crash deep inside, or numbers that are believed because they parse."""
    record = json.loads(GOOD.to_json()) | change
    with pytest.raises(ConfigError, match=says):
        StepCostTable.from_json(json.dumps(record), "f")
    with pytest.raises(ConfigError, match="damaged"):
        StepCostTable.from_json(GOOD.to_json()[:-40], "f")


def test_timings_are_medians_and_quartiles() -> None:
    """Catches a mean, which one interruption would move."""
    assert Timing.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Timing(3.0, 2.0, 5, fastest=1.0)
    assert Timing.of([2.0]) == Timing(2.0, 0.0, 1, fastest=2.0)
