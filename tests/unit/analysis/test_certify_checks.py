"""Each further check passes a sound engine and fails an engine whose verifier is wrong."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from outrider.analysis.certify import CertifySetting
from outrider.analysis.certify_checks import (
    CHECKS,
    Check,
    CheckResult,
    Ground,
    check_lines,
    run_checks,
)
from outrider.analysis.certify_options import variants
from outrider.analysis.prompts import PromptRow
from outrider.cli.certify import CHECKS as OFFERED
from outrider.core.outcome import Origin
from outrider.core.request import SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.engine.llm import LLM
from outrider.sampling.draw import draw
from outrider.sampling.noise import Purpose, uniform
from outrider.sampling.warp import probabilities
from outrider.tensor.batch import BatchRow
from outrider.tensor.window import RowProposal, RowVerdict
from outrider.testing.scripted import RowDrafter
from outrider.verify import verifier
from outrider.verify.matching import WarpedPositions
from tests.unit.analysis.conftest import MakeLLM

ROWS = [
    PromptRow("a", "code", "x = 1\nx = 1\nx = 1\nx = 1\nx = 1\n"),
    PromptRow("b", "prose", "la la la la la la la la la la la"),
]
SETTING = CertifySetting(concurrencies=(1, 2), max_tokens=16, raw=True)


def accept_all(targets: list[int], drafts: tuple[int, ...]) -> RowVerdict:
    """Arg-maxima, but no draft is ever rejected."""
    return RowVerdict(len(drafts), targets[-1], Origin.BONUS)


def accept_all_drawn(
    positions: WarpedPositions, draft: RowProposal, sequence: Tokens
) -> RowVerdict:
    """The rejection rule without rejections."""
    warped = positions[len(draft.tokens)]
    assert warped is not None
    law = probabilities(warped, sequence.params)
    number = uniform(sequence.request.seed, Purpose.ADD, sequence.num_rounds)
    return RowVerdict(len(draft.tokens), draw(law, number), Origin.BONUS)


def ground(make_llm: MakeLLM, method: str = "ngram", **changes: Any) -> Ground:
    plain = make_llm()
    drafting = {method: partial(plain.sibling, speculative_config={"method": method})}
    fields: dict[str, Any] = {"plain": plain, "drafting": drafting, "rows": ROWS}
    return Ground(**(fields | {"setting": SETTING} | changes))


def only(results: Sequence[CheckResult]) -> CheckResult:
    assert len(results) == 1
    json.dumps(results[0].record(), allow_nan=False)
    return results[0]


def size_of(check: Check, temperature: float) -> dict[str, Any]:
    """Options are many, so they get one prompt at one temperature."""
    if check != "options":
        return {}
    setting = dataclasses.replace(SETTING, temperatures=(temperature,), max_tokens=12)
    return {"rows": ROWS[:1], "setting": setting}


@pytest.mark.parametrize("check", ["stream", "prefix-cache", "options"])
@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_a_sound_engine_passes(make_llm: MakeLLM, check: Check, method: str) -> None:
    """Catches false alarms, and checks that compare nothing or draft nothing."""
    result = only(run_checks([check], ground(make_llm, method, **size_of(check, 0.8))))
    assert result.passed, check_lines(result)
    assert result.tally.identical == result.tally.comparisons > 0
    assert result.tally.acceptance.verified > 0
    assert check_lines(result)[-1] == f"{check}: passed"


@pytest.mark.parametrize("check", ["stream", "prefix-cache", "options"])
def test_a_verifier_that_accepts_everything_fails(
    make_llm: MakeLLM, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a check that holds the broken engine against itself."""
    monkeypatch.setattr(verifier, "match_ids", accept_all)
    result = only(run_checks([check], ground(make_llm, **size_of(check, 0.0))))
    assert not result.passed
    assert result.tally.errors > 0
    lines = check_lines(result)
    assert "not explained by rounding" in lines[0]
    assert lines[-1] == f"{check}: failed"


def test_the_prefix_cache_is_really_used(make_llm: MakeLLM) -> None:
    """Catches a check of the prefix cache in which nothing is ever found there."""
    result = only(run_checks(["prefix-cache"], ground(make_llm)))
    assert int(result.notes[0].split()[0]) > 0
    # Two prompts, two temperatures, the cache off, on, and on again.
    assert result.tally.comparisons == 12
    short = ground(make_llm, rows=[PromptRow("s", "d", "ab")])
    assert "nothing was shared" in only(run_checks(["prefix-cache"], short)).notes[-1]


def test_a_stream_that_loses_a_token_or_an_end_fails(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a check that does not read the chunks."""
    whole = LLM.stream

    def without(keep: Callable[[int, Any], bool]) -> Any:
        def stream(self: LLM, *args: Any) -> Any:
            return [pair for i, pair in enumerate(whole(self, *args)) if keep(i, pair[1])]

        return stream

    monkeypatch.setattr(LLM, "stream", without(lambda index, _: index != 2))
    lost = only(run_checks(["stream"], ground(make_llm)))
    assert lost.tally.errors > 0
    monkeypatch.setattr(LLM, "stream", without(lambda _, chunk: chunk.finish_reason is None))
    assert "that it ends" in only(run_checks(["stream"], ground(make_llm))).faults[0]


def test_every_option_is_varied() -> None:
    """Catches an option that was added to requests and is never certified."""
    base = SamplingParams(temperature=0.8, max_tokens=16, seed=3)
    found = list(variants(base, [5, 9, 12, 5, 9, 12], "abcabc", 64))
    changed = {
        field.name
        for each in found
        for field in dataclasses.fields(SamplingParams)
        if getattr(each.params, field.name) != getattr(base, field.name)
    }
    assert changed == {field.name for field in dataclasses.fields(SamplingParams)}
    assert sum(" + " in each.name for each in found) >= 4
    greedy = variants(dataclasses.replace(base, temperature=0.0), [5], "abcabc", 64)
    assert all(each.params.is_greedy for each in greedy)


def wrong_drafter(max_draft_len: int, vocab_size: int) -> RowDrafter:
    """Draws its tokens evenly from the vocabulary and says so."""

    def draft(row: BatchRow, rule: str) -> RowProposal:
        law = torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64)
        seed, turn = row.sequence.request.seed, row.sequence.num_rounds
        numbers = [uniform(seed, Purpose.DRAFT, turn, slot) for slot in range(max_draft_len)]
        return RowProposal(
            tuple(draw(law, number) for number in numbers), law.repeat(max_draft_len, 1)
        )

    return RowDrafter(max_draft_len, draft)


def fit_ground(make_llm: MakeLLM) -> Ground:
    plain = make_llm()

    def make(**options: Any) -> LLM:
        return plain.sibling(drafter=wrong_drafter(3, plain.spec.vocab_size), **options)

    return Ground(plain=plain, drafting={"drawn": make}, rows=ROWS, setting=SETTING, fit_tokens=600)


@pytest.mark.stat
def test_sampled_texts_have_the_targets_law(make_llm: MakeLLM) -> None:
    """Catches places that are not uniform though the engine is right. n = 600 tokens, chi-square
    over 16 bins, false-alarm rate 1e-4; seeds are fixed.
    """
    result = only(run_checks(["rejection-fit"], fit_ground(make_llm)))
    assert result.passed, check_lines(result)
    assert result.fits["plain"].acceptance.verified == 0
    speculative = result.fits["speculative"]
    assert speculative.acceptance.verified > 600
    assert speculative.test.count >= 600
    assert 0.05 < speculative.test.detectable < 0.2


@pytest.mark.stat
def test_a_rejection_rule_that_accepts_everything_fails(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a test of fit that does not notice another law."""
    monkeypatch.setattr(verifier, "reject_rows", accept_all_drawn)
    result = only(run_checks(["rejection-fit"], fit_ground(make_llm)))
    assert not result.passed
    # The plain engine has no drafts to accept: its draws stay right, and so does the test.
    assert result.fits["plain"].passed
    assert not result.fits["speculative"].passed


@pytest.mark.stat
def test_a_residual_that_is_forgotten_fails(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a test too weak for the commonest mistake: after a rejection the target is sampled
    as it is, which makes likely tokens too frequent.
    """
    monkeypatch.setattr("outrider.verify.rejection.residual", lambda target, _: target)
    result = only(run_checks(["rejection-fit"], fit_ground(make_llm)))
    assert not result.fits["speculative"].passed


def test_the_command_offers_every_check() -> None:
    """Catches a check that cannot be asked for."""
    assert OFFERED == CHECKS
