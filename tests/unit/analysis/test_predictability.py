"""The numbers of every token, and what is made of them, against slower ways to get them."""

import html
import json
import math
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from outrider.analysis.predictability import (
    AnalyzeSetting,
    Predictability,
    Text,
    analyze,
    certain_length,
    numbers_of,
    survivals,
)
from outrider.analysis.predictability_page import predictability_page
from outrider.analysis.predictability_report import (
    predictability_figure,
    predictability_lines,
    predictability_record,
    token_lines,
)
from outrider.analysis.prompts import PromptRow
from outrider.core.acceptance import Acceptance
from outrider.core.request import SamplingParams
from tests.unit.analysis.conftest import MakeLLM

ROWS = [
    PromptRow("a", "code", "one two one two one"),
    PromptRow("b", "prose", "la la la <la> & la"),
]


def text(
    top_probs: Sequence[float],
    *,
    tokens: Sequence[int] | None = None,
    prompt: Sequence[int] = (1,),
    domain: str = "d",
) -> Text:
    tokens = range(len(top_probs)) if tokens is None else tokens
    zeros = (0.0,) * len(top_probs)
    copying = {"ngram": Acceptance(), "suffix": Acceptance()}
    return Text("x", domain, tuple(prompt), tuple(tokens), zeros, tuple(top_probs), zeros, copying)


def test_the_numbers_of_a_token_by_hand() -> None:
    """Catches bits for nats, a NaN from masked tokens, and the wrong token's surprise."""
    logits = torch.tensor(
        [[math.log(0.5), math.log(0.25), math.log(0.25)], [0.0, -math.inf, 0.0], [5.0, 5.0, 5.0]]
    )
    entropies, top_probs, surprises = numbers_of(logits, [1, 2, 0])
    assert entropies == pytest.approx([1.5 * math.log(2), math.log(2), math.log(3)], abs=1e-6)
    assert top_probs == pytest.approx([0.5, 0.5, 1 / 3], abs=1e-6)
    assert surprises == pytest.approx([math.log(4), math.log(2), math.log(3)], abs=1e-6)


def test_low_precision_logits_are_summed_in_float64() -> None:
    """Catches an entropy that rounding of the sums spoils: 50,000 terms in bfloat16."""
    logits = torch.randn(40, 50_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    entropies, top_probs, _ = numbers_of(logits, [0] * 40)
    for row in (0, 31, 32, 39):
        values = logits[row].tolist()
        whole = math.fsum(map(math.exp, values))
        probs = [math.exp(value) / whole for value in values]
        assert entropies[row] == pytest.approx(-math.fsum(p * math.log(p) for p in probs), abs=1e-4)
        assert top_probs[row] == pytest.approx(max(probs), abs=1e-4)


def test_every_token_gets_the_distribution_it_was_taken_from(make_llm: MakeLLM) -> None:
    """Catches rows shifted by one; the engine's own log-probabilities are the other way."""
    llm = make_llm(prefix_caching=False)
    found = analyze(llm, ROWS, AnalyzeSetting(max_tokens=20, raw=True, concurrency=2))
    params = SamplingParams(temperature=0, seed=0, max_tokens=20, logprobs=llm.spec.vocab_size)
    for one, row in zip(found.texts, ROWS, strict=True):
        (output,) = llm.generate(row.text, params)[0].outputs
        assert list(one.tokens) == output.token_ids
        assert output.logprobs is not None
        for position, logprobs in enumerate(output.logprobs):
            values = [value for _, value in logprobs.top]
            entropy = -math.fsum(math.exp(value) * value for value in values)
            assert one.entropies[position] == pytest.approx(entropy, abs=1e-4)
            assert one.top_probs[position] == pytest.approx(math.exp(max(values)), abs=1e-4)
            assert one.surprises[position] == pytest.approx(-logprobs.logprob, abs=1e-4)


def test_copying_is_what_the_engine_would_accept(make_llm: MakeLLM) -> None:
    """Catches a replay that counts otherwise than the engine."""
    llm = make_llm(prefix_caching=False)
    setting = AnalyzeSetting(max_tokens=40, raw=True, draft_len=4)
    found = analyze(llm, ROWS, setting)
    drafting = llm.sibling(
        speculative_config={"method": "suffix", "num_speculative_tokens": 4}, is_checked=True
    )
    for one, row in zip(found.texts, ROWS, strict=True):
        params = SamplingParams(temperature=0, seed=0, max_tokens=40)
        (output,) = drafting.generate(row.text, params)[0].outputs
        assert output.acceptance.accepted == one.copying["suffix"].accepted
        assert output.acceptance.rounds == one.copying["suffix"].rounds


def test_certain_runs() -> None:
    """Catches a run that is lost at the end, and 0.9 itself taken for certain."""
    assert text([0.95, 0.99, 0.5, 0.9, 0.91]).certain_runs == [2, 1]
    assert text([0.1]).certain_runs == []
    assert text([]).certain_runs == []
    assert text([1.0] * 5).certain_runs == [5]


def test_copied_and_repeated_passages() -> None:
    """Catches single words taken for copies, and tokens counted once per passage."""
    one = text([0.5] * 8, tokens=[9, 1, 2, 3, 4, 5, 9, 1], prompt=[1, 2, 3, 4, 5, 7])
    assert one.copied == 5
    assert one.repeated == 0
    two = text([0.5] * 10, tokens=[1, 2, 3, 4, 8, 1, 2, 3, 4, 9])
    assert two.repeated == 4
    assert text([0.5] * 3, tokens=[1, 2, 3], prompt=[1, 2, 3]).copied == 0


def test_the_ceiling_of_guessing_the_certain_tokens() -> None:
    """Catches rounds that do not end with the target's own token."""
    assert certain_length([text([0.95, 0.95, 0.5, 0.5, 0.95])], 7) == pytest.approx(5 / 3)
    assert certain_length([text([1.0] * 16)], 7) == pytest.approx(8.0)
    assert certain_length([text([0.1] * 4)], 7) == 1.0
    assert certain_length([], 7) == 0.0


def test_survivals_multiply_along_the_text() -> None:
    """Catches chances taken from positions behind the end, or powers of a mean."""
    assert survivals([text([0.5, 0.8, 1.0])], 4) == pytest.approx(
        [(0.5 + 0.8 + 1.0) / 3, (0.4 + 0.8) / 2, 0.4, 0.0]
    )


def found_by_hand() -> Predictability:
    texts = (
        text([0.95, 0.2, 0.99], domain="code"),
        text([0.5] * 30, tokens=[7] * 30, domain="chat"),
    )
    return Predictability(AnalyzeSetting(), texts)


def test_the_record_is_json_by_domain_with_loops_apart() -> None:
    """Catches NaN for a domain without a token that does not loop, and a lost token."""
    record = json.loads(json.dumps(predictability_record(found_by_hand()), allow_nan=False))
    code, chat = record["domains"]["code"], record["domains"]["chat"]
    assert code["certain_share"] == pytest.approx(2 / 3)
    assert code["certain_runs"]["mean"] == 1.0
    assert (chat["num_looping"], chat["not_looping"]["num_tokens"]) == (1, 0)
    assert chat["not_looping"]["entropy"]["mean"] is None
    assert chat["certain_runs"] == {
        "num": 0,
        "mean": None,
        "median": None,
        "p90": None,
        "max": None,
    }
    assert [len(each["entropies"]) for each in record["outputs"]] == [3, 30]
    assert record["num_tokens"] == 33
    lines = "\n".join(predictability_lines(found_by_hand()))
    assert "code" in lines
    assert "chat" in lines


def test_the_figure_has_four_panels() -> None:
    """Catches a panel without its unit."""
    svg = predictability_figure(found_by_hand(), draft_cost=0.05)
    ET.fromstring(svg)
    assert svg.count("<g transform") == 8
    for label in ("entropy (nats)", "length (tokens)", "top-1 probability p1", "speedup"):
        assert label in svg


def test_the_annotated_table() -> None:
    """Catches numbers beside the wrong token."""
    lines = token_lines(found_by_hand().texts[0], ["N", "at\n", "al"], 2)
    assert len(lines) == 2
    assert lines[0].split() == ["'N'", "H=0.000", "p1=0.950", "certain"]
    assert lines[1].split() == [r"'at\n'", "H=0.000", "p1=0.200"]


def page() -> str:
    found = found_by_hand()
    return predictability_page(
        found,
        lambda tokens: [f"<{token}>&" for token in tokens],
        title="How predictable a & b is",
        lines=predictability_lines(found),
        chart=predictability_figure(found, draft_cost=0.05),
    )


def test_the_page_holds_every_token_and_needs_nothing_else() -> None:
    """Catches markup in a token that becomes markup of the page, and links to other files."""
    content = page()
    assert content.count('data-n="') == 33
    assert html.escape("<0>&") in content
    assert "<0>&" not in content
    assert "src=" not in content
    assert "href=" not in content
    assert "p1 0.950" in content


@pytest.mark.slow
def test_a_browser_reads_the_page(tmp_path: Path) -> None:
    """Catches a page that only looks like HTML: Chromium repairs and prints what it understood."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("there is no Chromium")
    path = tmp_path / "page.html"
    path.write_text(page(), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command = [browser, *options, "--dump-dom", path.as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert seen.count('class="t"') == 33 + 5
    assert seen.count("<polyline") == 2 * 3
    assert seen.count("<details>") == 2
