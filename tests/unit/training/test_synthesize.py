"""Prompts of the target are judged in order, whatever order they come in."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from outrider.core.acceptance import Acceptance
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.output import CompletionOutput, RequestOutput
from outrider.errors import ConfigError
from outrider.sampling.noise import mix
from outrider.testing.tiny import EOS_ID
from outrider.training.settings import SynthesisSetting
from outrider.training.synthesize import load_openers, prompt_lines, synthesize
from tests.unchecked import unchecked
from tests.unit.training.conftest import MARKED_TEMPLATE, LoadLLM, tokenizer

OPENERS = {"chat": ["How can I", "What is"], "math": ["A farmer has"]}
HEADER = "<|bos|>user\n"


class FakeLLM:
    """Continues prompts by a function of the opener and the seed, several at a time."""

    def __init__(self, continue_: Callable[[str, int], str], ahead: int = 5) -> None:
        self.tokenizer = tokenizer(MARKED_TEMPLATE)
        self._continue = continue_
        self._ahead = ahead
        self.params: list[SamplingParams] = []

    def generate_from(
        self, source: Callable[[], tuple[list[int], SamplingParams] | None]
    ) -> Iterator[tuple[int, RequestOutput]]:
        waiting: list[tuple[int, list[int], SamplingParams]] = []
        number = 0
        while True:
            while len(waiting) < self._ahead and (one := source()) is not None:
                waiting.append((number, *one))
                number += 1
            if not waiting:
                return
            # The latest first: as far from the right order as can be.
            place, prompt, params = waiting.pop()
            self.params.append(params)
            yield place, self._output(prompt, params)

    def _output(self, prompt: list[int], params: SamplingParams) -> RequestOutput:
        shown = self.tokenizer.decode(prompt, skip_special_tokens=False)
        assert shown.startswith(HEADER)
        assert params.seed is not None
        text = self._continue(shown.removeprefix(HEADER), params.seed)
        ids = self.tokenizer.encode(text)
        is_ended = len(ids) < params.max_tokens
        ids = [*ids, EOS_ID] if is_ended else ids[: params.max_tokens]
        text = self.tokenizer.decode(ids)
        reason = "stop" if is_ended else "length"
        one = CompletionOutput(
            0, text, ids, [], [], None, reason, None, Acceptance(), 0, 0.0, 0.0, 0.0
        )
        return RequestOutput(None, prompt, [one])


def run(fake: FakeLLM, exclude: tuple[str, ...] = (), **options: Any) -> Any:
    setting = SynthesisSetting(**{"counts": {"chat": 6, "math": 2}, "max_tokens": 90, **options})
    with unchecked():
        return synthesize(cast(LLM, fake), setting, OPENERS, exclude=exclude)


def distinct(opener: str, seed: int) -> str:
    words = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "lambda", "zeta", "eta")
    return " " + " ".join(words[mix(seed, i) % 10] for i in range(8)) + "?"


def test_prompts_have_headers_openers_and_ids() -> None:
    """Catches an opener that is lost, and domains that are not evenly mixed."""
    made = run(FakeLLM(distinct))
    assert [one.domain for one in made.prompts].count("math") == 2
    assert all(one.prompt.startswith(tuple(OPENERS[one.domain])) for one in made.prompts)
    assert len({one.id for one in made.prompts}) == 8
    assert not made.missing
    lines = list(prompt_lines(made.prompts))
    assert json.loads(lines[0]) == {
        "id": made.prompts[0].id, "domain": made.prompts[0].domain,
        "prompt": made.prompts[0].prompt,
    }  # fmt: skip


def test_prompts_depend_on_the_seed_and_not_on_timing() -> None:
    """Catches a choice between two similar prompts by which came first."""

    def few(opener: str, seed: int) -> str:
        return distinct(opener, seed % 12)

    made = [run(FakeLLM(few, ahead)).prompts for ahead in (1, 3, 17)]
    assert made[0] == made[1] == made[2]
    assert run(FakeLLM(few), seed=1).prompts != made[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" one two three four five six seven", "duplicate"),
        (" so", "short"),
        (" go on " + "and on " * 10 + "!", "loop"),
        (" say <|bos|> again and again to me", "broken"),
        (" do \N{REPLACEMENT CHARACTER} with it now", "broken"),
        (" not do this test of the users", "excluded"),
    ],
)
def test_degenerate_prompts_are_dropped_and_counted(text: str, reason: str) -> None:
    """Catches a filter that was switched off. Every second prompt is fine."""
    calls: list[str] = []

    def half(opener: str, seed: int) -> str:
        calls.append(opener)
        return text if len(calls) % 2 else distinct(opener, seed)

    excluded = tuple(f"{opener} not do this test of the users" for opener in OPENERS["chat"])
    made = run(FakeLLM(half), excluded, counts={"chat": 6})
    assert made.dropped[reason] >= 2
    assert len(made.prompts) == 6
    if reason != "duplicate":
        assert not [one for one in made.prompts if one.prompt.endswith(text)]


def test_unfinished_prompts_end_with_a_sentence() -> None:
    """Catches words that stop in the middle, and prompts with no end at all."""

    def long(opener: str, seed: int) -> str:
        return distinct(opener, seed) + " And then an endless tail" + " of more" * 40

    made = run(FakeLLM(long), counts={"chat": 3})
    assert all(one.prompt.endswith("?") for one in made.prompts)
    made = run(FakeLLM(lambda _opener, seed: f" {seed}" * 40), counts={"chat": 1})
    assert made.dropped["unfinished"] == 20
    assert made.missing == {"chat": 1}
    assert made.prompts == ()


def test_a_real_model_is_asked_through_its_template(native: LoadLLM) -> None:
    """Catches a template without marked turns, whose stop is a text. The words are noise."""
    llm = native(max_num_seqs=8)
    setting = SynthesisSetting(counts={"chat": 2}, max_tokens=16)
    made = synthesize(llm, setting, {"chat": ["How can I. Now then: "]})
    again = synthesize(llm, setting, {"chat": ["How can I. Now then: "]})
    assert made == again
    assert sum(made.dropped.values()) + len(made.prompts) >= 2
    assert not llm.engine.has_work


def test_openers_ship_for_every_domain_and_bad_ones_are_named(tmp_path: Path) -> None:
    """Catches a data file left out of the package."""
    assert {"chat", "code", "edit", "math", "prose"} <= set(load_openers())
    for content in ("[]", '{"chat": []}', '{"chat": "x"}', "{"):
        path = tmp_path / "openers.json"
        path.write_text(content, "utf-8")
        with pytest.raises(ConfigError, match=r"openers\.json"):
            load_openers(path)
    with pytest.raises(ConfigError, match="no openers for the domain 'law'; known: chat, math"):
        run(FakeLLM(distinct), counts={"law": 1})
