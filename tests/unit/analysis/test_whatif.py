"""The simulator against the engine it stands for, sums worked out by hand, and bad input."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.analysis.estimate import read_cost_table, shipped_costs
from outrider.analysis.whatif import (
    PLAIN,
    Load,
    NewDrafter,
    Outcome,
    Scenario,
    Setting,
    simulate,
)
from outrider.analysis.whatif_clock import LoggedRequest
from outrider.analysis.whatif_drafters import copying_drafter, drafting_name
from outrider.analysis.whatif_log import read_log
from outrider.analysis.whatif_report import whatif_figure, whatif_lines, whatif_records
from outrider.analysis.whatif_trace import Recorded, TraceDrafter, fitted, recorded
from outrider.core.outcome import FinishReason
from outrider.core.request import SamplingParams
from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.core.trace import TraceHeader
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import ConfigError
from outrider.schedule.cost import StepCost
from outrider.testing.scripted import TinyEngine, requests_of, tiny_engine
from outrider.testing.table_target import SeededTable, TableTarget

VOCAB, STOP = 10, 1


def cost_of(per_row: float = 0.0, *, drafting: float = 0.0, host: float = 0.0) -> StepCost:
    """A step of n rows takes 1 + per_row * (n - 1) seconds, and `host` for each request."""
    rows = (1, 2, 4, 4096)

    def at(number: int, each: float, first: float = 0.0) -> Timing:
        return Timing(first + each * number, 0.0, 1)

    table = StepCostTable(
        measured_on=MeasuredOn("machine", "m", "b", 1),
        rows=rows,
        contexts=(0,),
        forward=(tuple(at(n - 1, per_row, 1.0) for n in rows),),
        host=((1, at(1, host)), (64, at(64, host))),
        drafting={"suffix, up to 7": ((1, at(1, drafting)), (64, at(64, drafting)))},
    )
    return StepCost(table, "suffix, up to 7")


def text(seed: int, length: int) -> tuple[int, ...]:
    """Tokens that repeat themselves in part."""
    drawn = random.Random(seed)
    words = [tuple(drawn.randrange(2, VOCAB) for _ in range(4)) for _ in range(3)]
    return tuple(token for _ in range(length) for token in drawn.choice(words))[:length]


def log_of(number: int, *, prompt: int = 1, output: int = 40) -> list[LoggedRequest]:
    return [
        LoggedRequest(f"r{n}", "d", text(n, prompt), text(100 + n, output + n), output + n)
        for n in range(number)
    ]


def suffix(length: int) -> NewDrafter:
    return lambda _served: SuffixDrafter(length, min_survival=0.1, shared=None)


def drafting(length: int, cost: StepCost, policy: str = "fixed") -> Scenario:
    return Scenario("suffix", suffix(length), cost, policy)


def traced(record: Recorded, length: int) -> NewDrafter:
    return lambda served: TraceDrafter(record, served, length)


def plain(cost: StepCost) -> Scenario:
    return Scenario(PLAIN, None, cost, "off")


def rounds_of(found: Outcome) -> list[list[tuple[int, int, int, int]]]:
    return [
        [(each.num_output, each.drafted, each.verified, each.accepted) for each in one.rounds]
        for one in found.outputs
    ]


@pytest.mark.parametrize("policy", ["off", "fixed", "threshold", "throughput"])
@pytest.mark.parametrize("load", [Load(1), Load(3), Load(2, rate=0.05)])
def test_what_comes_out_is_the_log(policy: str, load: Load) -> None:
    """Catches a draft that is kept though the log has another token, and lost or doubled tokens."""
    log = log_of(5)
    found = simulate(log, drafting(4, cost_of(0.1), policy), load, Setting(num_requests=7))
    assert [tuple(one.tokens) for one in found.outputs] == [log[n % 5].output for n in range(7)]
    assert found.record()["total_output_tokens"] == sum(len(log[n % 5].output) for n in range(7))


def test_where_steps_cost_the_same_the_speedup_is_the_acceptance_length() -> None:
    """Catches drafting or rows that are charged though they are free."""
    log, flat = log_of(4), cost_of()
    slow, fast = (
        simulate(log, scenario, Load(1), Setting(num_requests=4))
        for scenario in (plain(flat), drafting(4, flat))
    )
    assert fast.record()["mean_accept_length"] > 1.5
    assert fast.throughput / slow.throughput == pytest.approx(fast.record()["mean_accept_length"])


def test_a_lone_request_takes_what_its_rounds_cost() -> None:
    """Catches a part of the step that is not charged, or charged twice: against a plain sum."""
    cost = cost_of(0.25, drafting=0.5, host=0.125)
    log = log_of(1, prompt=6)
    found = simulate(log, drafting(4, cost), Load(1), Setting(num_requests=1))
    seconds = 0.0
    for each in found.outputs[0].rounds:
        known = 6 if each.num_output == 0 else 1
        left = len(log[0].output) - each.num_output - 1
        seconds += 1 + 0.25 * (known + each.verified - 1) + 0.125 + 0.5 * (left > 0)
    assert found.seconds == pytest.approx(seconds)


def test_the_order_of_requests_does_not_matter_one_at_a_time() -> None:
    """Catches state of a drafter or policy that leaks from request to request."""
    log, cost = log_of(6), cost_of(0.1, drafting=0.2)
    there, back = (
        simulate(order, drafting(4, cost), Load(1), Setting(num_requests=6))
        for order in (log, log[::-1])
    )
    assert there.seconds == pytest.approx(back.seconds)
    assert rounds_of(there) == rounds_of(back)[::-1]


def test_rare_arrivals_are_served_as_if_alone() -> None:
    """Catches arrivals that wait, or time that stands still while nobody is there."""
    log, cost = log_of(6), cost_of(0.1, drafting=0.2)
    setting = Setting(num_requests=6)
    alone = simulate(log, drafting(4, cost), Load(1), setting).record()
    rare = simulate(log, drafting(4, cost), Load(8, rate=1e-6), setting).record()
    for name in ("mean_tpot_ms", "p99_tpot_ms", "mean_ttft_ms", "mean_token_latency_ms"):
        assert rare[name] == pytest.approx(alone[name])
    crowded = simulate(log, drafting(4, cost), Load(1, rate=1.0), setting).record()
    assert crowded["mean_ttft_ms"] > 10 * alone["mean_ttft_ms"], "the queue is not in the TTFT"


def recorded_run(
    policy_len: int, stop: frozenset[int] = frozenset()
) -> tuple[list[str], list[LoggedRequest]]:
    """A run of the engine with the suffix drafter on a real distribution: its trace, its log."""
    target = TableTarget(
        SeededTable(VOCAB, 3, recent=2, sharpness=2.0),
        VOCAB,
        num_blocks=256,
        block_size=4,
        stop_token_ids=stop,
    )
    drafter = SuffixDrafter(policy_len, min_survival=0.1, shared=None)
    engine = tiny_engine(target, drafter, TinyEngine(prefix_caching=False))
    prompts = [text(seed, 9) for seed in range(5)]
    requests = requests_of(prompts, SamplingParams(temperature=0.0, max_tokens=48))
    sequences = [engine.add(request) for request in requests]
    lines = [TraceHeader("m", "table", "suffix", policy_len, "matching", "fixed").to_line()]
    while engine.has_work:
        lines.append(engine.step().trace().to_line())
    log = []
    for sequence in sequences:
        assert sequence.finish is not None
        is_stopped = sequence.finish.reason is FinishReason.STOP
        output = tuple(sequence.output)
        most = 48 if is_stopped else len(output)
        log.append(LoggedRequest(str(sequence.id), "d", sequence.prompt, output, most))
    return lines, log


def accepted_in(record: Recorded) -> list[list[tuple[int, int, int, int]]]:
    return [
        [(each.num_output, each.drafted, each.verified, each.accepted) for each in own]
        for own in record.rounds
    ]


@pytest.mark.parametrize("length", [1, 4, 7])
def test_the_recorded_setting_gives_the_recorded_rounds(length: int) -> None:
    """Catches any way in which the log's drafter or the trace's differs from the one that ran."""
    lines, log = recorded_run(length)
    record = recorded(lines, "t")
    load, setting = Load(len(log)), Setting(num_requests=len(log))
    cost = cost_of(0.1)
    from_text = simulate(log, drafting(length, cost), load, setting)
    assert rounds_of(from_text) == accepted_in(record)
    again = Scenario("trace", traced(record, length), cost)
    from_trace = simulate(record.requests, again, load, setting)
    assert rounds_of(from_trace) == accepted_in(record)
    assert from_trace.seconds == pytest.approx(from_text.seconds)


def test_outputs_that_end_early_end_there_again() -> None:
    """Catches a run of accepted drafts that is cut short, or goes on, at a stop token."""
    lines, log = recorded_run(4, frozenset({4}))
    assert any(request.max_tokens > len(request.output) for request in log)
    record = recorded(lines, "t")
    load, setting = Load(len(log)), Setting(num_requests=len(log))
    again = Scenario("trace", traced(record, 4), cost_of())
    found = simulate(record.requests, again, load, setting)
    assert rounds_of(found) == accepted_in(record)
    from_text = simulate(log, drafting(4, cost_of()), load, setting)
    assert [len(one.tokens) for one in from_text.outputs] == [len(r.output) for r in log]


def test_other_lengths_from_a_trace_are_near_those_from_the_text() -> None:
    """Catches a draft inside a recorded one that is taken from the wrong place."""
    lines, log = recorded_run(7)
    record = recorded(lines, "t")
    load, setting, cost = Load(1), Setting(num_requests=len(log)), cost_of(0.1)
    for length in (1, 2, 3, 5):
        again = Scenario("trace", traced(record, length), cost)
        told = simulate(record.requests, again, load, setting)
        true = simulate(log, drafting(length, cost), load, setting)
        assert told.throughput == pytest.approx(true.throughput, rel=0.1)


def test_prompts_of_a_trace_have_their_lengths() -> None:
    """Catches prompts that share a step and are counted for each other."""
    lines, log = recorded_run(3)
    requests = recorded(lines, "t").requests
    assert [len(r.prompt) for r in requests] == [len(r.prompt) for r in log]


def test_a_fitted_table_takes_what_the_trace_took() -> None:
    """Catches drafting and the rest being scaled by each other's factor."""
    cost = cost_of(0.1, drafting=0.2)
    lines, _ = recorded_run(4)
    record = recorded(lines, "t")
    steps = tuple(
        replace(
            step,
            times=replace(
                step.times,
                draft=3 * cost.drafting(len(step.rounds)),
                total=3 * cost.drafting(len(step.rounds))
                + 2 * cost.step(step.num_tokens, len(step.rounds), step.context_len),
            ),
        )
        for step in record.steps
        if any(each.drafted for each in step.rounds)
    )
    found = fitted(cost.table, "suffix, up to 7", steps)
    assert found.rest == pytest.approx(2.0)
    assert found.drafting == pytest.approx(3.0)
    bare = fitted(replace(cost.table, drafting={}), None, steps)
    assert StepCost(bare.table, "").drafting(5) == pytest.approx(3 * cost.drafting(5))
    with pytest.raises(ConfigError, match="no cost can be fitted"):
        fitted(cost.table, None, [])


def test_the_report_names_fields_as_peers_do() -> None:
    """Catches a histogram or mean that leaves rounds out, and a figure without a scenario."""
    log, cost = log_of(4), cost_of(0.1)
    loads = [Load(1), Load(4)]
    found = [
        simulate(log, scenario, load, Setting())
        for load in loads
        for scenario in (plain(cost), drafting(4, cost))
    ]
    records = whatif_records(found)
    for one, record in zip(found, records, strict=True):
        histogram = record["acceptance_length_histogram"]
        assert sum(histogram) == record["rounds"]
        accepted = sum(n * count for n, count in enumerate(histogram))
        assert record["mean_accept_length"] == pytest.approx(1 + accepted / record["rounds"])
        assert len(record["conditional_accept_rates"]) == len(record["marginal_accept_rates"])
        json.dumps(record, allow_nan=False)
        assert one.scenario in whatif_figure(found)
    assert records[0]["over_plain"] == 1.0
    assert "4 at a time: most tokens per second with" in "\n".join(whatif_lines(found))


def test_steps_beyond_the_table_are_said_to_be() -> None:
    """Catches a claim about batches that nobody measured."""
    table = replace(cost_of().table, rows=(1, 2, 3, 4), forward=((Timing(1.0, 0.0, 1),) * 4,))
    few, many = (
        simulate(log_of(8), plain(StepCost(table)), Load(seats), Setting()) for seats in (4, 5)
    )
    assert not few.is_extrapolated
    assert many.is_extrapolated


@pytest.mark.parametrize("name", shipped_costs())
def test_shipped_tables_can_be_used(name: str) -> None:
    """Catches a damaged asset."""
    table = read_cost_table(name)
    assert "published" in table.measured_on.machine
    assert StepCost(table).step(1, 1, 256) > 0


def write(path: Path, lines: Sequence[Any]) -> str:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines), "utf-8")
    return str(path)


GOOD = {"prompt_token_ids": [2, 3], "output_token_ids": [4, 5, 6]}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "empty"),
        ([GOOD, "{"], "line 2: not JSON"),
        ([GOOD, [1]], "line 2: no object"),
        ([{"prompt": "hello", "output": "you"}], "line 1: the prompt is text"),
        ([{"prompt_token_ids": [1]}], "line 1: no output"),
        ([GOOD | {"output_token_ids": []}], "line 1: the output has no token"),
        ([GOOD, GOOD | {"prompt_token_ids": [99]}], "line 2: 99 in the prompt .* another model"),
        ([GOOD | {"output_token_ids": [1.5]}], "line 1: 1.5"),
        ([GOOD | {"model": "a"}, GOOD | {"model": "b"}], "mixes models: 'a' in line 1, 'b' in"),
        ([GOOD | {"max_tokens": 2}], "line 1: max_tokens is 2, but the output has 3"),
    ],
)
def test_bad_logs_are_refused_by_line(tmp_path: Path, lines: list[Any], reason: str) -> None:
    """Catches a log that is half read, or a traceback in place of a sentence."""
    with pytest.raises(ConfigError, match=reason):
        read_log(write(tmp_path / "log.jsonl", lines), vocab_size=50)


class Letters:
    def prompt(self, text: str) -> list[int]:
        return [1, *map(ord, text)]

    def output(self, text: str) -> list[int]:
        return [*map(ord, text)]


def test_a_log_of_texts_is_tokenized(tmp_path: Path) -> None:
    """Catches prompts and outputs that are tokenized alike."""
    path = write(tmp_path / "chat.jsonl", [{"prompt": "ab", "output": "cd", "model": "m"}])
    log, model = read_log(path, encoder=Letters())
    assert (log[0].prompt, log[0].output, model) == ((1, 97, 98), (99, 100), "m")
    assert log[0].domain == "chat"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [], "empty"),
        (lambda lines: lines[:1], "no request from its beginning on"),
        (lambda lines: [lines[0].replace('"version": 1', '"version": 2'), *lines[1:]], "version 2"),
        (lambda lines: [*lines[:2], "[]"], "line 3: no object"),
        (lambda lines: [*lines[:2], '{"rounds": []}'], "line 3: damaged"),
    ],
)
def test_bad_traces_are_refused_by_line(change: Any, reason: str) -> None:
    """Catches a trace of a newer release, or a cut one, that is taken at its word."""
    lines, _ = recorded_run(2)
    with pytest.raises(ConfigError, match=reason):
        recorded(change(lines), "t.jsonl")


def test_other_impossible_input_is_refused() -> None:
    """Catches loads and drafters that cannot be."""
    with pytest.raises(ConfigError, match="concurrency is 0"):
        Load(0)
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="rate is"):
            Load(1, rate)
    with pytest.raises(ConfigError, match="no request"):
        simulate([], plain(cost_of()), Load(1), Setting())
    with pytest.raises(ConfigError, match="name it with --model"):
        copying_drafter(SpeculativeConfig(method="dspark", model="x"))
    with pytest.raises(ConfigError, match="speculative method"):
        copying_drafter(SpeculativeConfig(method="sufix"))
    assert drafting_name(cost_of().table, "suffix") == "suffix, up to 7"
    assert drafting_name(cost_of().table, "suf") is None
