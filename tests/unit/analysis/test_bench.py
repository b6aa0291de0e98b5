"""The pairing of runs and the numbers derived from them."""

import json

import pytest

from outrider.analysis.baseline import BareLoop, bench_baseline
from outrider.analysis.bench import (
    PLAIN,
    SPECULATIVE,
    BenchReport,
    BenchSetting,
    Run,
    bench,
)
from outrider.analysis.closed_loop import Completed, Job, run_jobs
from outrider.analysis.prompts import PromptRow
from outrider.analysis.render import baseline_lines, bench_lines
from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence
from outrider.errors import ConfigError
from tests.unit.analysis.conftest import MakeLLM

ROWS = [
    PromptRow("a", "code", "x = 1\nx = 1\nx = 1\n"),
    PromptRow("b", "prose", "la la la la la"),
    PromptRow("c", "prose", "one two one two one two"),
]


def fake_run(side: str, repeat: int, seconds: float, num_tokens: int, domain: str = "d") -> Run:
    """One prompt that gave `num_tokens` in `seconds`, evenly, the first after one share."""
    request = Request(RequestId("r"), (1, 2, 3), SamplingParams(), seed=0)
    sequence = Sequence.of(request)
    sequence.tokens += range(num_tokens)
    job = Job("p", domain, request.prompt, request.params)
    times = [10 + seconds * (i + 1) / num_tokens for i in range(num_tokens)]
    return Run(side, repeat, domain, seconds, (Completed(job, 10.0, sequence, times),))


def test_the_speedup_is_the_median_of_paired_ratios() -> None:
    """Catches a ratio of means, which one slow repeat would decide."""
    report = BenchReport()
    for repeat, (plain, speculative) in enumerate([(4.0, 2.0), (10.0, 4.0), (3.0, 9.0)]):
        report.runs += [
            fake_run(PLAIN, repeat, plain, 8),
            fake_run(SPECULATIVE, repeat, speculative, 8),
        ]
    record = report.record()
    assert record["speedups"] == [2.0, 2.5, pytest.approx(1 / 3)]
    assert record["speedup"] == 2.0
    assert record["identical"] is True
    assert record["plain"]["output_throughput"] == pytest.approx(24 / 17)
    assert record["domains"]["d"]["speedup"] == 2.0


def test_latencies_have_their_usual_meaning() -> None:
    """Catches a time per token that includes the first one, or counts tokens instead of gaps."""
    record = BenchReport([fake_run(PLAIN, 0, 2.0, 4)]).record()
    plain = record["plain"]
    assert "speculative" not in record
    assert plain["mean_ttft_ms"] == pytest.approx(500.0)
    assert plain["mean_tpot_ms"] == pytest.approx(500.0)
    assert plain["mean_itl_ms"] == pytest.approx(500.0)
    assert plain["mean_e2el_ms"] == pytest.approx(2000.0)
    assert plain["total_input_tokens"] == 3
    assert plain["total_output_tokens"] == 4
    assert plain["request_throughput"] == pytest.approx(0.5)


def test_the_sides_take_turns(make_llm: MakeLLM) -> None:
    """Catches one side always going second, on a machine that the first has warmed up."""
    plain = make_llm(prefix_caching=False)
    drafting = plain.sibling(speculative_config={"method": "ngram"})
    report = bench(plain, drafting, ROWS, BenchSetting(max_tokens=12, repeats=2, raw=True))
    order = [run.side for run in report.runs]
    assert order[:2] == [PLAIN, SPECULATIVE]
    assert order[2:4] == [SPECULATIVE, PLAIN]
    assert len(order) == 2 * 2 * len(ROWS)
    first_of_repeat = [run.side for run in report.runs if run.outputs[0].job.id == "a"][::2]
    assert first_of_repeat == [PLAIN, SPECULATIVE]
    record = json.loads(json.dumps(report.record(), allow_nan=False))
    assert record["identical"] is True
    assert record["num_compared"] == 3
    assert record["speculative"]["spec_decode_num_drafts"] > 0
    assert record["plain"]["spec_decode_num_drafts"] == 0
    assert len(record["runs"]) == 2 * 2 * 2
    assert sum("speedup" in line for line in bench_lines(report)) == 2


def test_concurrent_requests_run_in_groups(make_llm: MakeLLM) -> None:
    """Catches groups of one where several requests should be in flight, and mixed domains."""
    plain = make_llm(prefix_caching=False)
    report = bench(plain, None, ROWS, BenchSetting(max_tokens=4, repeats=1, concurrency=2))
    assert [len(run.outputs) for run in report.runs] == [1, 2]
    assert [run.domain for run in report.runs] == ["code", "prose"]
    assert "speedup" not in report.record()
    assert len(bench_lines(report)) == 2


def test_the_bare_loop_is_plain_decoding(make_llm: MakeLLM) -> None:
    """Catches a loop that is fast because it computes something else; prompts span chunks."""
    llm = make_llm(prefix_caching=False, max_num_batched_tokens=16, max_num_seqs=2)
    for length in (1, 15, 16, 17, 32, 40):
        prompt = tuple(b"abcdefgh" * 5)[:length]
        job = Job("p", "d", prompt, SamplingParams(temperature=0, max_tokens=10))
        assert BareLoop(llm, 64).run(job) == run_jobs(llm, [job])[0].tokens, length


def test_the_baseline_compares_token_by_token(make_llm: MakeLLM) -> None:
    """Catches an overhead measured on different work."""
    llm = make_llm(prefix_caching=False)
    report = bench_baseline(llm, ROWS, BenchSetting(max_tokens=8, repeats=2, raw=True))
    record = json.loads(json.dumps(report.record(), allow_nan=False))
    assert record["identical"] is True
    assert record["num_compared"] == 6
    assert record["loop"]["total_output_tokens"] == record["engine"]["total_output_tokens"]
    assert len(record["ratios"]) == 2
    assert baseline_lines(report)[-1] == "identical outputs: 6 of 6"
    with pytest.raises(ConfigError, match="greedy"):
        bench_baseline(llm, ROWS, BenchSetting(temperature=0.5))
