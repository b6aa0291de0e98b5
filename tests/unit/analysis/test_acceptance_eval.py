"""Acceptance figures: which rounds count, and that each figure is what its name says."""

import json
from collections.abc import Sequence

import pytest

from outrider.analysis.acceptance_eval import EvalReport, EvalRun, EvalSetting, evaluate, tally
from outrider.analysis.acceptance_report import eval_lines, eval_record, run_record
from outrider.analysis.bootstrap import Resamples
from outrider.analysis.closed_loop import Completed, Job
from outrider.analysis.prompts import PromptRow
from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.rounds import Round
from outrider.core.sequence import Sequence as Tokens
from tests.unit.analysis.conftest import MakeLLM

SETTING = EvalSetting(draft_len=3)


def output(
    rounds: Sequence[tuple[int, int]],
    *,
    domain: str = "d",
    tokens: Sequence[int] | None = None,
    sources: Sequence[str] = (),
    confidence: Sequence[float] = (),
) -> Completed:
    """Rounds as (verified, accepted), after one token that ended the prompt."""
    request = Request(RequestId("r"), (1, 2, 3), SamplingParams(), seed=0)
    sequence = Tokens.of(request)
    made, position = [Round(request.id, 0, 0, 0, 0, 1)], 1
    for verified, accepted in rounds:
        made.append(
            Round(
                request.id,
                position,
                verified,
                verified,
                accepted,
                accepted + 1,
                tuple(confidence[:verified]) or None,
                tuple(sources[:verified]) or None,
            )
        )
        position += accepted + 1
    sequence.tokens += range(position) if tokens is None else tokens
    return Completed(Job("p", domain, (1,), request.params), 0.0, sequence, [], made)


def run_of(outputs: Sequence[Completed], max_tokens: int = 100) -> EvalRun:
    tallies = tuple(tally(each, max_tokens) for each in outputs)
    draws = Resamples.draw([each.domain for each in tallies], num=200, seed=0)
    return EvalRun(0.0, tallies, draws)


def test_the_figures_by_hand() -> None:
    """Catches a length without the target's token, and conditional rates taken for marginal."""
    record = run_record(run_of([output([(3, 3), (3, 1), (3, 0), (0, 0)]), output([(2, 2)])]))
    assert record["rounds"] == 5
    assert record["mean_accept_length"] == pytest.approx(1 + 6 / 5)
    assert record["mean_accepted_tokens"] == pytest.approx(6 / 5)
    assert record["marginal_accept_rates"] == pytest.approx([3 / 4, 2 / 4, 1 / 3])
    assert record["conditional_accept_rates"] == pytest.approx([3 / 4, 2 / 3, 1 / 1])
    assert record["acceptance_length_histogram"] == [2, 1, 1, 1]
    assert record["num_prompts"] == 2


def test_only_whole_rounds_of_the_measured_span_count() -> None:
    """Catches the prompt's round, and rounds whose draft the end of the request cuts short."""
    one = output([(3, 3), (3, 2), (1, 1)])
    assert tally(one, 100).counts.rounds == 3
    # The output tokens before the three rounds are 1, 5 and 8.
    for max_tokens, rounds in ((1, 0), (2, 1), (5, 1), (6, 2), (8, 2), (9, 3)):
        assert tally(one, max_tokens).counts.rounds == rounds, max_tokens
    assert tally(one, 6).num_tokens == 6


def test_looping_outputs_are_given_apart() -> None:
    """Catches a headline without them, and a loop that begins after what is measured."""
    looping = output([(3, 3)] * 12, tokens=[8] * 49)
    record = run_record(run_of([looping, looping, output([(3, 0)] * 12)]))
    assert record["num_looping"] == 2
    assert record["mean_accept_length"] == pytest.approx(1 + 72 / 36)
    assert record["looping"]["mean_accept_length"] == 4.0
    assert record["not_looping"]["mean_accept_length"] == 1.0
    late = output([(3, 3)] * 12, tokens=[*range(60), *[8] * 40])
    assert tally(late, 100).is_looping
    assert not tally(late, 70).is_looping


def test_domains_weigh_alike_in_their_mean() -> None:
    """Catches the pooled figure under the name of the mean over domains."""
    outputs = [output([(3, 3)], domain="a")] * 2 + [output([(3, 0)] * 8, domain="b")] * 2
    record = run_record(run_of(outputs))
    assert record["mean_accept_length"] == pytest.approx(1 + 6 / 18)
    assert record["mean_accept_length_over_domains"] == pytest.approx(2.5)
    assert record["mean_accept_length_over_domains_interval"] == pytest.approx((2.5, 2.5))
    assert record["domains"]["a"]["mean_accept_length"] == 4.0
    assert list(record["domains"]) == ["a", "b"]


def test_sources_share_the_tokens_and_lead_the_rounds() -> None:
    """Catches accepted tokens booked to the source that began the draft."""
    one = output([(3, 2), (3, 1)], sources=["own", "table", "table"])
    sources = run_record(run_of([one, output([(2, 2)], sources=["table", "own"])]))["sources"]
    assert sources["own"] == {
        "verified": 3, "reached": 3, "accepted": 3, "accept_rate": 1.0,
        "rounds": 2, "mean_accept_length": pytest.approx(1 + 3 / 2),
    }  # fmt: skip
    assert sources["table"] == {
        "verified": 5, "reached": 4, "accepted": 2, "accept_rate": 0.5,
        "rounds": 1, "mean_accept_length": 3.0,
    }  # fmt: skip


def test_expected_and_observed_are_of_the_same_rounds() -> None:
    """Catches confidences averaged over positions behind a rejection."""
    one = output([(3, 1), (3, 0)], confidence=[0.9, 0.5, 0.1])
    record = run_record(run_of([one]))
    assert record["mean_confidences"] == pytest.approx([0.9, 0.5])
    assert record["conditional_accept_rates"][:2] == [0.5, 0.0]


def test_the_report_is_json_and_names_its_conventions() -> None:
    """Catches NaN in the JSON, and figures at the top that are not the first temperature's."""
    runs = (run_of([output([(3, 3)]), output([(3, 1)])]), run_of([output([]), output([])]))
    report = EvalReport(SETTING, runs)
    record = json.loads(json.dumps(eval_record(report), allow_nan=False))
    assert next(iter(record)) == "mean_accept_length"
    assert record["mean_accept_length"] == 3.0
    assert record["mean_accept_length_interval"] == [2.0, 4.0]
    assert record["mean_accept_length_by_domain"] == {"d": 3.0}
    assert record["runs"][1]["mean_accept_length"] is None
    assert "target's own token included" in record["conventions"]["mean_accept_length"]
    lines = "\n".join(eval_lines(report))
    assert "2.000 to 4.000" in lines
    assert "looping" not in lines


def test_every_drafter_can_be_evaluated(make_llm: MakeLLM) -> None:
    """Catches drafts cut short at the end of a request, and outputs that the drafts changed."""
    rows = [PromptRow(f"p{i}", "xy"[i % 2], f"one two one two one {i}") for i in range(4)]
    setting = EvalSetting(draft_len=3, max_tokens=20, temperatures=(0.0, 0.9), concurrency=3)
    config = {"method": "ngram", "num_speculative_tokens": 3}
    llm = make_llm(speculative_config=config)
    seen: list[tuple[int, int]] = []
    report = evaluate(llm, rows, setting, lambda _, done, total: seen.append((done, total)))
    assert seen == [(i, 8) for i in range(1, 9)]
    greedy, sampled = report.runs
    assert greedy.domains == ["x", "y"]
    assert greedy.counts.verified > 0
    assert sampled.counts.rounds != greedy.counts.rounds
    for prompt in greedy.prompts:
        assert prompt.num_tokens == 20
        assert prompt.counts.rounds + prompt.counts.accepted >= 19
    again = evaluate(llm, rows, setting)
    assert eval_record(again) == eval_record(report)
