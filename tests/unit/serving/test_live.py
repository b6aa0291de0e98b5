"""What the live page is told, and the files it is made of."""

import json
import re
from pathlib import Path

import pytest

from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.schedule.cost import StepCost
from outrider.serving.driver import Driver
from outrider.serving.history import StepSummary
from outrider.serving.live import WEB, _step_cost, state_record
from tests.loopback import tiny_llm


def step(lengths: tuple[int, ...], rows: int, seconds: float) -> StepSummary:
    return StepSummary(
        time=0.0,
        rows=rows,
        requests=len(lengths),
        waiting=0,
        verify_lengths=lengths,
        drafted=sum(lengths),
        verified=sum(lengths),
        accepted=0,
        tokens=len(lengths),
        context_len=10.0,
        predicted_seconds=None,
        seconds=2 * seconds,
        forward_seconds=seconds,
        policy="off",
    )


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tiny_llm(tmp_path), max_queue=1, max_seconds=1.0, clock=lambda: 7.5)


def test_an_idle_server_has_a_state(driver: Driver) -> None:
    """Catches a page that breaks until the first request, and numbers that JSON cannot hold."""
    record = state_record(driver, "tiny")
    assert json.loads(json.dumps(record, allow_nan=False))["time"] == 7.5
    assert (record["method"], record["running"], record["waiting"]) == ("suffix", 0, 0)
    assert record["step_cost"] == {"curve": [], "observed": [], "now": None}


def test_counters_are_those_of_the_metrics(driver: Driver) -> None:
    """Catches rates worked out from another counter than the one that is shown."""
    driver.metrics.acceptance.record(drafted=4, verified=3, accepted=1, delivered=2)
    record = state_record(driver, "tiny")
    assert record["counts"] == {
        "rounds": 1,
        "drafted": 4,
        "verified": 3,
        "accepted": 1,
        "delivered": 2,
    }
    assert (record["verified_at"], record["reached_at"]) == ([1, 1, 1], [1, 1, 0])
    assert record["accepted_at"] == [1, 0, 0]


def test_verify_lengths_are_counted_by_load(driver: Driver) -> None:
    """Catches steps put under the wrong load, and prompts counted as rounds."""
    driver.history.extend(
        [
            step((3,), 4, 0.1),
            step((0,), 1, 0.1),
            step((1, 2, 2), 8, 0.1),
            step((0, 0, 0, 1), 5, 0.1),
            step((), 64, 0.1),
            step((1,) * 5, 10, 0.1),
        ]
    )
    assert state_record(driver, "tiny")["verify_lengths"] == [
        {"requests": "1", "counts": [1, 0, 0, 1]},
        {"requests": "3–4", "counts": [3, 2, 2]},
        {"requests": "5–8", "counts": [0, 5]},
    ]


def test_step_costs_leave_prompts_out(driver: Driver) -> None:
    """Catches an operating point that a prompt of a thousand rows moved off the plot."""
    driver.history.extend(
        [step((3,), 4, 0.1), step((3,), 4, 0.3), step((1,), 2, 0.1), step((1,), 600, 9.0)]
    )
    cost = state_record(driver, "tiny")["step_cost"]
    assert cost["observed"] == [(2, 0.1), (4, pytest.approx(0.2))]
    assert cost["now"] == (pytest.approx(10 / 3), pytest.approx(0.5 / 3))


def test_the_curve_is_the_cost_tables() -> None:
    """Catches a curve that begins at no rows, or ends before the operating point."""
    timings = tuple(Timing(seconds, 0.0, 9) for seconds in (1.0, 2.0))
    table = StepCostTable(MeasuredOn("m", "m", "native", 1), (1, 33), (10,), (timings,), ())
    cost = StepCost(table)
    assert len(_step_cost([], cost)["curve"]) == 16, "an idle server has a curve too"
    drawn = _step_cost([step((16,), 17, 1.5)], cost)["curve"]
    assert drawn[0] == (1, 1.0)
    assert drawn[16] == (17, pytest.approx(1.5))
    assert len(drawn) == 34


PAGE_FILES = sorted(path for path in WEB.iterdir() if path.suffix in (".html", ".css", ".js"))


@pytest.mark.parametrize("path", PAGE_FILES, ids=lambda path: path.name)
def test_the_page_needs_nothing_from_elsewhere(path: Path) -> None:
    """Catches a font, a script or an inline handler that the page's own policy would block."""
    text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"https?:|//cdn|@import|url\(", text)
    assert not re.findall(
        r"\sstyle=|\son\w+=|<script(?! type=\"module\" src)|innerHTML|eval\(", text
    )
    assert len(text.splitlines()) <= 400
