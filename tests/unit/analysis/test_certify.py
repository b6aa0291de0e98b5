"""The certificate counts what it says, and an engine that is wrong fails it."""

import json

import pytest

from outrider.analysis.certify import Certificate, CertifySetting, certify, overall
from outrider.analysis.prompts import PromptRow
from outrider.analysis.render import certificate_lines
from outrider.core.outcome import Origin
from outrider.errors import ConfigError
from outrider.tensor.window import RowVerdict
from outrider.testing.scripted import random_drafter
from outrider.verify import verifier
from tests.unit.analysis.conftest import MakeLLM

ROWS = [
    PromptRow("a", "code", "x = 1\nx = 1\nx = 1\n"),
    PromptRow("b", "prose", "la la la la la"),
    PromptRow("c", "prose", "one two one two one two"),
]
SETTING = CertifySetting(concurrencies=(1, 3), max_tokens=16, raw=True)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_a_correct_engine_is_lossless(make_llm: MakeLLM, method: str) -> None:
    """Catches false alarms, counts over the wrong runs, and a certificate of nothing drafted."""
    plain = make_llm()
    drafting = plain.sibling(speculative_config={"method": method})
    steps: list[tuple[int, int]] = []
    certificates = certify(
        plain, {method: drafting}, ROWS, SETTING, lambda _, done, all_: steps.append((done, all_))
    )
    certificate = certificates[method]
    assert certificate.verdict == "lossless"
    assert certificate.divergences == []
    assert certificate.total.acceptance.verified > 0
    record = json.loads(json.dumps(certificate.record(), allow_nan=False))
    assert record["passed"] is True
    assert record["total"]["prompts"] == 3
    # Two temperatures, two concurrencies.
    assert record["total"]["comparisons"] == record["total"]["identical"] == 12
    assert record["domains"]["prose"]["prompts"] == 2
    assert record["domains"]["prose"]["comparisons"] == 8
    assert {(s["temperature"], s["concurrency"]) for s in record["settings"]} == {
        (t, c) for t in (0.0, 0.8) for c in (1, 3)
    }
    assert steps == [(i + 1, 18) for i in range(18)]


def test_an_engine_that_accepts_every_draft_is_caught(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a certificate that does not look. The broken verifier never rejects a draft."""

    def gullible(targets: list[int], drafts: tuple[int, ...]) -> RowVerdict:
        return RowVerdict(len(drafts), targets[-1], Origin.BONUS)

    monkeypatch.setattr(verifier, "match_ids", gullible)
    plain = make_llm()
    drafting = plain.sibling(speculative_config={"method": "ngram"})
    certificate = certify(plain, {"drafter": drafting}, ROWS, SETTING)["drafter"]
    assert certificate.verdict == "not lossless"
    assert certificate.record()["passed"] is False
    assert all(each.kind == "error" for _, _, each in certificate.divergences)
    # Only temperature 0 goes through the broken function.
    assert {temperature for temperature, _, _ in certificate.divergences} == {0.0}
    lines = certificate_lines(certificate)
    assert lines[-1] == "verdict: not lossless"
    assert "not explained by rounding" in lines[0]


def test_drafters_share_the_plain_runs(make_llm: MakeLLM) -> None:
    """Catches a baseline that is made anew, and counts of one drafter put down to another."""
    plain = make_llm()
    drafting = {
        "ngram": plain.sibling(speculative_config={"method": "ngram"}),
        "random": plain.sibling(drafter=random_drafter(4, plain.spec.vocab_size)),
    }
    runs: list[str] = []
    certificates = certify(plain, drafting, ROWS, SETTING, lambda what, *_: runs.append(what))
    assert sum(run.startswith("plain") for run in runs) == 2 * len(ROWS)
    for certificate in certificates.values():
        assert certificate.verdict == "lossless"
        assert certificate.total.comparisons == 12
    rates = {name: each.total.acceptance for name, each in certificates.items()}
    assert rates["random"].verified > 50
    assert rates["random"].acceptance_rate < rates["ngram"].acceptance_rate
    wrong = Certificate()
    wrong.total.errors = 1
    assert overall([*certificates.values(), wrong]) == "not lossless"
    assert overall(certificates.values()) == "lossless"


def test_a_drafter_of_the_callers_and_a_config_exclude_each_other(make_llm: MakeLLM) -> None:
    """Catches a drafter that is silently left out."""
    with pytest.raises(ConfigError, match="exclude each other"):
        make_llm().sibling(speculative_config={"method": "ngram"}, drafter=random_drafter(2, 9))


def test_rejection_is_held_to_equal_tokens_at_temperature_0_only(make_llm: MakeLLM) -> None:
    """Catches a lawful difference reported as an error, and a skipped temperature kept quiet."""
    plain = make_llm(verify_rule="rejection")
    drafting = plain.sibling(speculative_config={"method": "suffix"})
    certificate = certify(plain, {"drafter": drafting}, ROWS, SETTING)["drafter"]
    assert certificate.verdict == "lossless"
    assert certificate.total.comparisons == 6
    assert certificate.skipped == (0.8,)
    *_, note, verdict = certificate_lines(certificate)
    assert "temperature 0.8" in note
    assert verdict == "verdict: lossless at temperature 0"


def test_ties_are_a_verdict_of_their_own() -> None:
    """Catches ties that count as identical, or as a failure."""
    certificate = Certificate()
    certificate.total.ties = 1
    assert certificate.verdict == "lossless up to numeric ties"
    assert certificate.record()["passed"] is True
