"""A tie is told from an error."""

import dataclasses

import pytest
import torch

from outrider.analysis.closed_loop import Completed, Job, run_jobs
from outrider.analysis.divergence import (
    SMALLEST_TOLERANCE,
    Divergence,
    find_divergence,
    matching_scores,
    tie_tolerance,
    token_margin,
)
from outrider.core.outcome import Finish, FinishReason
from outrider.core.request import SamplingParams
from outrider.core.sequence import Sequence
from outrider.engine.llm import LLM
from tests.unit.analysis.conftest import MakeLLM

PROMPT = tuple(b"to be or not to be, to be or not")


def run(llm: LLM, temperature: float) -> Completed:
    params = SamplingParams(temperature=temperature, seed=11, max_tokens=12, ignore_eos=True)
    return run_jobs(llm, [Job("p", "d", PROMPT, params)])[0]


def forged(one: Completed, position: int, token: int) -> Completed:
    """The same run with another token at one output position."""
    copy = Sequence.of(one.sequence.request)
    copy.tokens = list(one.sequence.tokens)
    copy.tokens[copy.num_prompt + position] = token
    copy.finish, copy.text = one.sequence.finish, one.sequence.text
    return dataclasses.replace(one, sequence=copy)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_scores_are_those_that_chose_the_tokens(make_llm: MakeLLM, temperature: float) -> None:
    """Catches noise of another seed or position, or a temperature that is not applied."""
    llm = make_llm()
    one = run(llm, temperature)
    logits = llm.score_tokens(PROMPT, one.tokens)
    for position, token in enumerate(one.tokens):
        scores = matching_scores(llm, one.job, logits[position], one.tokens[:position])
        assert int(scores.argmax()) == token, position


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_wrong_token_is_an_error_at_its_position(make_llm: MakeLLM, temperature: float) -> None:
    """Catches a judge that calls everything a tie, and a difference found one token off."""
    llm = make_llm()
    one = run(llm, temperature)
    token = (one.tokens[5] + 1) % 258
    found = find_divergence(llm, one, forged(one, 5, token))
    assert found is not None
    assert (found.kind, found.position) == ("error", 5)
    assert (found.plain_token, found.speculative_token) == (one.tokens[5], token)
    logits = llm.score_tokens(PROMPT, one.tokens)[5]
    scores = matching_scores(llm, one.job, logits, one.tokens[:5])
    assert found.margin == pytest.approx(float(scores[one.tokens[5]] - scores[token]))
    assert "p, token 5" in found.describe()


def test_a_close_second_is_a_tie(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a judge that calls everything an error. The tolerance is widened to reach it."""
    llm = make_llm()
    one = run(llm, 0.0)
    second = int(llm.score_tokens(PROMPT, one.tokens)[3].topk(2).indices[1])
    assert find_divergence(llm, one, forged(one, 3, second)).kind == "error"  # type: ignore[union-attr]
    monkeypatch.setattr("outrider.analysis.divergence.SMALLEST_TOLERANCE", 100.0)
    found = find_divergence(llm, one, forged(one, 3, second))
    assert isinstance(found, Divergence)
    assert found.kind == "tie"


def test_what_follows_from_equal_tokens_must_be_equal(make_llm: MakeLLM) -> None:
    """Catches an early end, another reason or another text that goes unnoticed."""
    llm = make_llm()
    one = run(llm, 0.0)
    assert find_divergence(llm, one, run(llm, 0.0)) is None
    shorter, reason, text = (forged(one, 0, one.tokens[0]) for _ in range(3))
    shorter.sequence.tokens.pop()
    reason.sequence.finish = Finish(FinishReason.STOP, "x")
    text.sequence.text += "!"
    for other, says in ((shorter, "ended where"), (reason, "ended as"), (text, "different texts")):
        found = find_divergence(llm, one, other)
        assert found is not None
        assert found.kind == "error"
        assert says in found.reason
    ended = find_divergence(llm, one, shorter)
    assert ended is not None
    assert (ended.position, ended.speculative_token, ended.margin) == (11, None, None)


def test_the_tolerance_follows_precision_magnitude_and_temperature() -> None:
    """Catches a fixed tolerance: 0.75 for logits of 30 in bfloat16 would hide errors in float32."""
    row = torch.tensor([-30.0, 17.0])
    assert tie_tolerance(row, "bfloat16", 0.0) == 6 * 0.125
    assert tie_tolerance(row, "bfloat16", 0.5) == 6 * 0.25
    assert tie_tolerance(row / 4, "bfloat16", 1.0) == 6 * 0.03125
    assert tie_tolerance(row, "float32", 0.0) == 64 * 2.0**-19
    assert tie_tolerance(row, "float64", 0.0) == SMALLEST_TOLERANCE
    assert tie_tolerance(torch.zeros(2), "float32", 0.0) == SMALLEST_TOLERANCE


def test_the_margin_is_that_of_the_worse_token() -> None:
    """Catches a distance between the two alone, though a third is better; and lost infinities."""
    scores = torch.tensor([5.0, 1.0, 0.5, -torch.inf])
    assert token_margin(scores, (1, 2)) == 4.5
    assert token_margin(scores, (0, 1)) == token_margin(scores, (1, 0)) == 4.0
    assert token_margin(scores, (0, 3)) == float("inf")
    assert not token_margin(torch.tensor([1.0, float("nan")]), (0, 1)) <= 1e9
