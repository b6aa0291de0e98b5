"""The closed loop keeps its number of requests in flight and loses none."""

import pytest

from outrider.analysis.closed_loop import Job, jobs_of, run_jobs
from outrider.analysis.prompts import PromptRow
from outrider.core.request import SamplingParams
from outrider.engine.report import StepReport
from outrider.errors import ConfigError, RequestRejected
from tests.unit.analysis.conftest import MakeLLM

ROWS = [PromptRow(f"p{i}", "d", f"prompt number {i}, ab ab ab") for i in range(5)]


def test_results_keep_the_order_and_the_number_in_flight(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches results in the order of finishing, and a loop that queues everything at once."""
    llm = make_llm()
    jobs = jobs_of(llm, ROWS, SamplingParams(temperature=0.8, seed=3, max_tokens=6), raw=True)
    # Lengths differ, so that requests finish out of order.
    jobs = [
        Job(job.id, job.domain, job.prompt, SamplingParams(seed=0, max_tokens=12 - 2 * i))
        for i, job in enumerate(jobs)
    ]
    sizes: list[int] = []
    step = llm.engine.step

    def watched() -> StepReport:
        report = step()
        sizes.append(report.num_requests)
        return report

    monkeypatch.setattr(llm.engine, "step", watched)
    done = run_jobs(llm, jobs, concurrency=2)
    assert [one.job.id for one in done] == ["p0", "p1", "p2", "p3", "p4"]
    assert max(sizes) == 2
    assert not llm.engine.has_work
    for one in done:
        assert one.arrival <= one.token_times[0] <= one.token_times[-1]
        assert one.seconds > 0
        assert len(one.token_times) == len(one.tokens)


def test_jobs_run_as_generate_would(make_llm: MakeLLM) -> None:
    """Catches a seed or a prompt that is made differently from `LLM.generate`."""
    llm = make_llm()
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=8)
    jobs = jobs_of(llm, ROWS[:2], params, raw=False)
    assert [job.params.seed for job in jobs] == [3, 4]
    done = run_jobs(llm, jobs)
    prompt = llm.chat_prompt([{"role": "user", "content": ROWS[1].text}])
    own = SamplingParams(temperature=0.8, seed=4, max_tokens=8)
    assert done[1].tokens == llm.generate([prompt], own)[0].outputs[0].token_ids


def test_a_refused_prompt_is_named_and_nothing_is_left_behind(make_llm: MakeLLM) -> None:
    """Catches a message without the prompt's id, and requests that stay in the engine."""
    llm = make_llm()
    rows = [ROWS[0], PromptRow("too-long", "d", "x" * 600)]
    jobs = jobs_of(llm, rows, SamplingParams(max_tokens=4), raw=True)
    with pytest.raises(RequestRejected, match="prompt too-long: "):
        run_jobs(llm, jobs, concurrency=2)
    assert not llm.engine.has_work


def test_an_engine_in_use_is_refused(make_llm: MakeLLM) -> None:
    """Catches times of one engine with two masters, and deltas nobody asked for."""
    llm = make_llm()
    jobs = jobs_of(llm, ROWS[:1], SamplingParams(max_tokens=4), raw=True)
    stream = llm.stream("ab ab", SamplingParams(max_tokens=8, ignore_eos=True))
    next(stream)
    with pytest.raises(ConfigError, match="on a sibling"):
        run_jobs(llm, jobs)
    stream.close()
    assert len(run_jobs(llm, jobs)) == 1
