"""The counterfactual of a trace: against lengths worked out by hand."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.analysis.counterfactual import counterfactual
from outrider.analysis.regret_report import regret_lines, regret_record
from outrider.core.ids import RequestId
from outrider.core.rounds import Round
from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.core.trace import StepTimes, StepTrace, TraceHeader, read_trace
from outrider.errors import ConfigError
from outrider.schedule.cost import StepCost

HEADER = TraceHeader("m", "native", "suffix", 4, "matching", "fixed")


def cost_of(*seconds: float) -> StepCost:
    table = StepCostTable(
        measured_on=MeasuredOn("m", "m", "b", 1),
        rows=tuple(range(1, len(seconds) + 1)),
        contexts=(0,),
        forward=(tuple(Timing(value, 0.0, 1) for value in seconds),),
        host=((1, Timing(0.0, 0.0, 1)),),
    )
    return StepCost(table)


def round_of(drafted: int, verified: int, accepted: int) -> Round:
    return Round(RequestId("r"), 1, drafted, verified, accepted, accepted + 1)


def step_of(*rounds: Round, draft: float = 0.0) -> StepTrace:
    rows = len(rounds) + sum(each.verified for each in rounds)
    times = StepTimes(draft=draft, forward=1.0, total=2.0, predicted_seconds=1.5)
    return StepTrace(len(rounds), rows, 0.0, times, rounds)


def test_fixed_lengths_by_hand() -> None:
    """Catches a length that keeps drafting free, counts a rejected token or prices other rows."""
    cost = cost_of(1.0, 1.25, 1.5, 2.0, 4.0)
    step = step_of(round_of(3, 3, 1), draft=0.1)
    found = counterfactual([step], cost, 3)
    assert [each.throughput for each in found.fixed] == pytest.approx(
        [1 / 1.0, 2 / 1.35, 2 / 1.6, 2 / 2.1]
    )
    assert found.actual.throughput == pytest.approx(2 / 2.1)
    assert found.oracle.throughput == pytest.approx(2 / 1.35)
    assert found.regret == pytest.approx(1 - (2 / 2.1) / (2 / 1.35))
    assert found.best_fixed.name == "fixed 1"
    assert found.fixed[3].wasted == pytest.approx(2 / 3)
    assert found.prediction_error == pytest.approx(0.25)
    assert found.censored == 0


def test_cut_drafts_are_credited_at_the_rates_seen() -> None:
    """Catches a cut draft taken for a rejected one, or for one that would have held for sure."""
    seen = [round_of(2, 2, 2), round_of(2, 2, 1)]
    found = counterfactual(
        [step_of(each) for each in (*seen, round_of(2, 1, 1))], cost_of(*[1] * 9), 2
    )
    assert found.censored == 1
    # Position 2 holds for one of two that reached it.
    assert found.fixed[2].tokens == pytest.approx(3 + 2 + 1 + 1.5)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
        min_size=1,
        max_size=5,
    )
)
def test_nothing_beats_the_oracle_step_by_step(steps: list[list[tuple[int, int]]]) -> None:
    """Catches an oracle that misses a combination of lengths."""
    cost = cost_of(*(1.0 + 0.4 * math.ceil(rows / 3) for rows in range(1, 20)))
    for rows in steps:
        rounds = [round_of(drafted, drafted, min(drafted, held)) for drafted, held in rows]
        found = counterfactual([step_of(*rounds, draft=0.05)], cost, 4)
        for each in (*found.fixed[1:], found.actual):
            assert each.throughput <= found.oracle.throughput + 1e-12
        assert found.fixed[0].verified == 0


def test_traces_are_read_as_they_were_written() -> None:
    """Catches a field that is lost, and a NaN that JSON does not have."""
    rounds = replace(
        round_of(2, 2, 1), confidence=(0.5, 0.25), survival=(0.5, 0.125), sources=("a", "b")
    )
    steps = [step_of(rounds), step_of(round_of(0, 0, 0))]
    lines = [HEADER.to_line(), *(each.to_line() for each in steps)]
    header, found = read_trace(lines, "f")
    again = list(found)
    assert header == HEADER
    assert [each.rounds for each in again] == [each.rounds for each in steps]
    assert math.isnan(again[0].times.drift)
    assert again[0].times.predicted_seconds == 1.5


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "f is empty"),
        (["x"], "line 1: not JSON"),
        (["[]"], "line 1: no object"),
        (["{}"], "f is not a trace"),
        (['{"format": "outrider trace", "version": 7}'], "version 7"),
        (['{"format": "outrider trace", "version": 1}'], "line 1: damaged"),
        ([HEADER.to_line(), "", '{"times": {}}'], "line 3: damaged"),
        ([HEADER.to_line(), step_of(round_of(1, 1, 1)).to_line()[:-9]], "line 2: not JSON"),
    ],
)
def test_damaged_traces_are_named(lines: list[str], says: str) -> None:
    """Catches a trace of another version that is read wrongly, or a crash without a line."""
    with pytest.raises(ConfigError, match=says):
        list(read_trace(lines, "f")[1])


def test_an_empty_run_has_no_counterfactual() -> None:
    """Catches a division by zero."""
    with pytest.raises(ConfigError, match="no step"):
        counterfactual([], cost_of(1, 2), 2)


def test_the_report_names_the_best() -> None:
    """Catches a report that JSON cannot hold."""
    found = counterfactual([step_of(round_of(3, 1, 1))], cost_of(1, 1.1, 1.2, 1.3), 3)
    lines = regret_lines(found)
    assert any("regret" in line for line in lines)
    assert any("were cut" in line for line in lines)
    json.dumps(regret_record(found), allow_nan=False)
