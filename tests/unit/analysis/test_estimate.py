"""Records of earlier runs become acceptance; what is no such record is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.analysis.benefit import ConstantRate, expected_rows, expected_tokens, outlook
from outrider.analysis.estimate import (
    HIGH,
    LOW,
    constant_regimes,
    estimate_figure,
    estimate_lines,
    estimate_record,
    measured,
    measured_in_trace,
    read_cost_table,
    read_record,
    table_regimes,
)
from outrider.core.ids import RequestId
from outrider.core.rounds import Round
from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.core.trace import StepTimes, StepTrace, TraceHeader
from outrider.errors import ConfigError

COUNTS = {"rounds": 8, "accepted_at": [3, 1], "verified_at": [4, 2]}
OTHER = {"rounds": 4, "accepted_at": [4], "verified_at": [4]}
EVAL: dict[str, Any] = {
    "mean_accept_length": 1.5,
    "runs": [COUNTS | {"domains": {"code": OTHER}}],
    "speculative_config": {"method": "suffix"},
    "setting": {"concurrency": 16},
}
BENCH: dict[str, Any] = {
    "plain": {},
    "speculative": COUNTS,
    "speedup": 1.25,
    "domains": {"code": {"plain": {}, "speculative": OTHER, "speedup": 1.75}},
    "speculative_config": {"method": "suffix"},
    "setting": {"concurrency": 4},
}


def test_an_eval_gives_acceptance_and_no_speedup() -> None:
    """Catches rounds without a draft being left out of the mean."""
    found = measured(EVAL, "e.json")
    assert expected_tokens(found.model, 2) == 1.5
    assert expected_rows(found.model, 2) == 1.75
    assert found.speedup is None
    assert found.concurrency == 16
    assert expected_tokens(measured(EVAL, "e.json", "code").model, 1) == 2.0


def test_a_bench_gives_the_speculative_side_and_its_speedup() -> None:
    """Catches the plain side's counters, and the whole's speedup for one domain."""
    found = measured(BENCH, "b.json")
    assert expected_tokens(found.model, 2) == 1.5
    assert (found.speedup, found.concurrency) == (1.25, 4)
    found = measured(BENCH, "b.json", "code")
    assert expected_tokens(found.model, 1) == 2.0
    assert found.speedup == 1.75


@pytest.mark.parametrize(
    ("record", "domain", "says"),
    [
        ({"plain": {}}, None, "x.json is no record"),
        (EVAL, "prose", "no domain 'prose'; it has code"),
        (EVAL | {"runs": [{"rounds": 3}]}, None, "lacks 'accepted_at'"),
        (EVAL | {"runs": [{"rounds": 3, "accepted_at": [], "verified_at": []}]}, None, "no draft"),
        (EVAL | {"runs": [COUNTS | {"accepted_at": [5, 1]}]}, None, "cannot come from 8 rounds"),
    ],
)
def test_what_cannot_be_used_is_refused(
    record: dict[str, Any], domain: str | None, says: str
) -> None:
    """Catches a traceback, or an estimate from nothing."""
    with pytest.raises(ConfigError, match=says):
        measured(record, "x.json", domain)


def test_saved_output_is_read(tmp_path: Path) -> None:
    """Catches a file that holds the tables as well as the JSON, which is what > makes."""
    path = tmp_path / "run.txt"
    path.write_text("a table\n\n" + json.dumps(EVAL) + "\n", "utf-8")
    assert read_record(path) == EVAL
    path.write_text(json.dumps(EVAL, indent=1), "utf-8")
    assert read_record(path) == EVAL
    for text, says in (("", "is empty"), ("one line", "line 1"), ("[1]", "no JSON object")):
        path.write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=says):
            read_record(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_record(tmp_path / "none")


def test_without_a_verify_cost_both_ends_are_given() -> None:
    """Catches one of the two taken for the truth."""
    regimes = constant_regimes(draft_per_token=0.15)
    assert [regime.name for regime in regimes] == [LOW, HIGH]
    low, high = (outlook(ConstantRate(0.9), regime, 8) for regime in regimes)
    assert low.speedups[4] == pytest.approx(4.0951 / 1.6)
    assert high.speedups[4] == pytest.approx(4.0951 / 5.6)
    lines = "\n".join(estimate_lines([low, high]))
    assert "none is enough" in lines
    assert "2.559" in lines
    record = json.loads(json.dumps(estimate_record([low, high]), allow_nan=False))
    assert record["regimes"][1]["best_draft_len"] == 0
    assert record["regimes"][1]["break_even_rate"] is None


def test_measured_verify_costs_bound_the_draft_length() -> None:
    """Catches a cost made up beyond what was measured."""
    (regime,) = constant_regimes(draft_per_round=0.5, verify=[1.0, 1.5])
    found = outlook(ConstantRate(1.0), regime, 8)
    assert found.speedups == pytest.approx((1.0, 2 / 1.5, 3 / 2.0))
    (regime,) = constant_regimes(per_row=0.5)
    assert outlook(ConstantRate(1.0), regime, 1).speedups[1] == pytest.approx(2 / 1.5)


def cost_table(**changes: Any) -> StepCostTable:
    """Forwards of 10 ms and 1 ms a further row, 2 ms around them, drafts of 3 ms per request."""
    rows = (1, 2, 4, 8, 16, 32)

    def timing(seconds: float) -> Timing:
        return Timing(seconds, 0.0, 9)

    table = StepCostTable(
        measured_on=MeasuredOn("here", "tiny", "native", 1),
        rows=rows,
        contexts=(128, 512),
        forward=(tuple(timing(0.009 + 0.001 * n) for n in rows),) * 2,
        host=((1, timing(0.002)), (16, timing(0.002))),
        drafting={"suffix": ((1, timing(0.003)), (16, timing(0.048)))},
    )
    return replace(table, **changes)


def test_a_table_prices_rounds_at_each_batch() -> None:
    """Catches rows of one request taken for those of the batch, and drafting left out."""
    one, four = table_regimes(cost_table(), [1, 4], context_len=256)
    assert one.name == "1 at a time"
    assert one.cost(3, 4.0) == pytest.approx((3 + 13 + 2) / (10 + 2))
    assert four.cost(3, 4.0) == pytest.approx((12 + 25 + 2) / (13 + 2))
    assert one.cost(3, 2.5) == pytest.approx((3 + 11.5 + 2) / (10 + 2))
    assert (one.max_draft_len, four.max_draft_len) == (31, 7)
    assert len(outlook(ConstantRate(0.5), four, 16).speedups) == 8
    (many,) = table_regimes(cost_table(), [64], context_len=256)
    assert outlook(ConstantRate(0.5), many, 16).speedups == (1.0,)


def test_a_table_must_know_the_drafter() -> None:
    """Catches drafting taken to be free because its name was not found."""
    with pytest.raises(ConfigError, match="no drafter 'dspark'; it has 'suffix'"):
        table_regimes(cost_table(), [1], context_len=256, drafter="dspark")
    with pytest.raises(ConfigError, match="it has none"):
        table_regimes(cost_table(drafting={}), [1], context_len=256)


def test_a_useless_table_is_refused(tmp_path: Path) -> None:
    """Catches an estimate from a disturbed measurement."""
    path = tmp_path / "table.json"
    path.write_text(cost_table().to_json(), "utf-8")
    assert read_cost_table(path) == cost_table()
    flat = tuple(Timing(0.01, 0.0, 9) for _ in range(6))
    path.write_text(cost_table(forward=(flat, flat)).to_json(), "utf-8")
    with pytest.raises(ConfigError, match="took no longer"):
        read_cost_table(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cost_table(tmp_path / "none")


def test_the_figure_has_a_line_for_each_regime() -> None:
    """Catches a figure without its labels."""
    outlooks = [outlook(ConstantRate(0.8), regime, 4) for regime in constant_regimes()]
    svg = estimate_figure(outlooks)
    assert svg.count("<polyline") == 2
    for text in ("draft tokens per round", "speedup", LOW, HIGH):
        assert text in svg


def test_prompts_pull_the_speedup_towards_one() -> None:
    """Catches prompts that drafts are said to save time on: Amdahl's law, by hand."""
    table = StepCostTable(
        measured_on=MeasuredOn("m", "m", "b", 1),
        rows=(1, 2, 3, 4096),
        contexts=(0,),
        forward=(tuple(Timing(1.0 + n / 100, 0.0, 1) for n in (1, 2, 3, 4096)),),
        host=((1, Timing(0.0, 0.0, 1)), (8, Timing(0.0, 0.0, 1))),
        drafting={"suffix": ((1, Timing(0.0, 0.0, 1)),)},
    )
    without, with_prompts = (
        table_regimes(table, [4], context_len=0, lengths=lengths)[0]
        for lengths in (None, (400.0, 11.0))
    )
    model = ConstantRate(0.8)
    decoding = without.speedup(model, 2)
    # A request has ten steps behind its first token, each shared by four.
    reading = (1.0 + 4.0) / (10 * 1.04 / 4)
    assert with_prompts.reading == pytest.approx(reading)
    assert with_prompts.speedup(model, 2) == pytest.approx((1 + reading) / (1 / decoding + reading))
    assert with_prompts.speedup(model, 0) == 1.0


def test_a_bench_and_a_trace_say_how_long_texts_are() -> None:
    """Catches lengths of the speculative side's total, or rounds of prompts counted as decoding."""
    sized = BENCH | {"plain": {"completed": 2, "total_input_tokens": 30, "total_output_tokens": 8}}
    assert measured(sized, "b.json").lengths == (15.0, 4.0)
    assert measured(BENCH, "b.json").lengths is None
    lines = [TraceHeader("m", "b", "suffix", 2, "matching", "fixed").to_line()]
    for num_output, drafted, accepted, rows in ((0, 0, 0, 9), (1, 2, 1, 3), (3, 2, 2, 3)):
        one = Round(RequestId("r"), num_output, drafted, drafted, accepted, accepted + 1)
        lines.append(StepTrace(1, rows, 0.0, StepTimes(), (one,)).to_line())
    found = measured_in_trace(lines, "t")
    assert found.lengths == (9.0, 6.0)
    assert expected_tokens(found.model, 2) == 1 + 2 / 2 + 1 / 2


def test_a_cost_table_is_no_acceptance() -> None:
    """Catches a table given in the wrong place being called a damaged record."""
    with pytest.raises(ConfigError, match="give it to --profile"):
        measured({"format": "outrider step cost table"}, "c.json")
