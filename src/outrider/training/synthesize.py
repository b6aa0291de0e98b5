"""Prompts that the target writes itself, by sampling in the place of the user.

The target is shown its chat template's user header and an opener, a few words that set a topic, and
goes on until it ends the user's turn (the idea of Xu et al. 2024, "Magpie", with openers added so
that small models stay on a domain).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from outrider.core.loops import loop_start
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.output import RequestOutput
from outrider.errors import ConfigError
from outrider.sampling.noise import Purpose, mix
from outrider.training.chat_format import ChatFormat
from outrider.training.near_duplicates import NearDuplicates
from outrider.training.settings import SynthesisSetting

Openers = Mapping[str, Sequence[str]]
OnPrompt = Callable[[int, int], None]
"""Told after each prompt how many are kept and how many are wanted."""

MOST_ATTEMPTS = 20
_SHORTEST = 15
_FEWEST_NEW_WORDS = 3
_LOOP_STEP = 8
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SENTENCE_END = re.compile(r"[.?!:][\"')\]]*(?=\s|$)")
_LINE_END = re.compile(r"\n")


@dataclass(frozen=True, slots=True)
class SynthesizedPrompt:
    """One prompt as the target wrote it, opener included."""

    id: str
    domain: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Synthesis:
    """The prompts in the order they were written, and how many were dropped for which reason."""

    prompts: tuple[SynthesizedPrompt, ...]
    dropped: Mapping[str, int]
    missing: Mapping[str, int]
    """By domain, prompts that were wanted and did not come in `MOST_ATTEMPTS` times as many."""


def load_openers(path: Path | None = None) -> dict[str, list[str]]:
    """Read openers by domain: a JSON object of lists, by default the ones that ship.

    Raises:
        ConfigError: The file cannot be read or is of another form.
    """
    source = path or resources.files("outrider.training") / "openers.json"
    try:
        content: Any = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the openers in {source} cannot be read ({error})") from error
    if not isinstance(content, dict) or not all(map(_are_openers, content.values())):
        raise ConfigError(
            f'{source} holds no openers; it must be an object like {{"chat": ["How can I"]}}'
        )
    return content


def _are_openers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v for v in value)


def synthesize(
    llm: LLM,
    setting: SynthesisSetting,
    openers: Openers,
    *,
    exclude: Iterable[str] = (),
    on_prompt: OnPrompt = lambda _kept, _wanted: None,
) -> Synthesis:
    """Let the target write prompts; equal settings give equal prompts on the native backend.

    Prompts that nearly repeat a text of `exclude`, such as those of an evaluation, are dropped.

    Raises:
        ConfigError: A domain has no openers, or the template has no place for a user's words.
    """
    for domain in setting.counts:
        if domain not in openers:
            raise ConfigError(
                f"there are no openers for the domain {domain!r}; known: {', '.join(openers)}"
            )
    writer = _Writer(llm, setting, openers, exclude)
    wanted = sum(setting.counts.values())
    early: dict[int, RequestOutput] = {}
    stream = llm.generate_from(writer.next_request)
    for number, output in stream:
        early[number] = output
        # Judged in the order of their numbers, so that timing cannot decide which of two stays.
        while writer.num_judged in early and not writer.is_done:
            writer.judge(early.pop(writer.num_judged))
            on_prompt(len(writer.kept), wanted)
        if writer.is_done:
            stream.close()
            break
    missing = {domain: left for domain, left in writer.left.items() if left}
    return Synthesis(tuple(writer.kept), dict(writer.dropped), missing)


class _Writer:
    """Issues requests and judges what came of them."""

    def __init__(
        self, llm: LLM, setting: SynthesisSetting, openers: Openers, exclude: Iterable[str]
    ) -> None:
        self._llm, self._setting, self._openers = llm, setting, openers
        self._format = ChatFormat.of(llm.tokenizer)
        self._stop_ids, self._stop_texts = self._format.user_stop()
        self._excluded = NearDuplicates(setting.max_overlap)
        self._excluded.add_all(exclude)
        self._seen = NearDuplicates(setting.max_overlap)
        self._order = _domain_order(setting.counts)
        self._most = MOST_ATTEMPTS * max(len(self._order), 1)
        self._position = 0
        self._issued: list[tuple[str, str]] = []
        self.num_judged = 0
        self.left = dict(setting.counts)
        self.kept: list[SynthesizedPrompt] = []
        self.dropped: Counter[str] = Counter()

    @property
    def is_done(self) -> bool:
        return not any(self.left.values())

    def next_request(self) -> tuple[Sequence[int], SamplingParams] | None:
        """Give the next prompt to be written; None when there are enough, or enough attempts."""
        while self._position < self._most and not self.is_done:
            position = self._position
            self._position += 1
            domain = self._order[position % len(self._order)]
            if not self.left[domain]:
                continue
            seed = mix(Purpose.SEED, self._setting.seed, position)
            listed = self._openers[domain]
            opener = listed[seed % len(listed)]
            self._issued.append((domain, opener))
            shown = self._llm.tokenizer.encode(
                self._format.header + opener, add_special_tokens=False
            )
            return shown, self._params(seed)
        return None

    def _params(self, seed: int) -> SamplingParams:
        setting = self._setting
        return SamplingParams(
            max_tokens=setting.max_tokens,
            temperature=setting.temperature,
            top_p=setting.top_p,
            seed=seed,
            stop=self._stop_texts,
            stop_token_ids=self._stop_ids,
        )

    def judge(self, output: RequestOutput) -> None:
        """Keep the prompt or count why not."""
        domain, opener = self._issued[self.num_judged]
        self.num_judged += 1
        if not self.left[domain]:
            return
        text = self._text(opener, output)
        reason = self._fault(text, opener, output.outputs[0].token_ids)
        if reason is not None:
            self.dropped[reason] += 1
            return
        self.left[domain] -= 1
        number = self._setting.counts[domain] - self.left[domain]
        self.kept.append(SynthesizedPrompt(f"self-{domain}-{number}", domain, text))

    def _text(self, opener: str, output: RequestOutput) -> str:
        """Opener and words; what was not finished is cut after its last sentence or line."""
        one = output.outputs[0]
        text = opener + one.text
        if one.finish_reason == "length":
            ends = [m.end() for m in (*_SENTENCE_END.finditer(text), *_LINE_END.finditer(text))]
            text = text[: max(ends, default=0)]
        return text.strip()

    def _fault(self, text: str, opener: str, tokens: Sequence[int]) -> str | None:
        """Name what is wrong with a prompt, the cheapest first; None if nothing is."""
        if not text.startswith(opener.strip()):
            return "unfinished"
        new_words = text[len(opener.strip()) :].split()
        if len(text) < _SHORTEST or len(new_words) < _FEWEST_NEW_WORDS:
            return "short"
        special = self._llm.tokenizer.special_ids
        written = tokens[:-1] if tokens and tokens[-1] in special else tokens
        if _REPLACEMENT in text or special & set(written):
            return "broken"
        if _has_loop(written):
            return "loop"
        if not self._excluded.is_new(text):
            return "excluded"
        return None if self._seen.add(text) else "duplicate"


def _has_loop(tokens: Sequence[int]) -> bool:
    """Whether a long loop stands anywhere; punctuation may follow it."""
    ends = (*range(_LOOP_STEP, len(tokens), _LOOP_STEP), len(tokens))
    return any(loop_start(tokens[:end]) is not None for end in ends)


def _domain_order(counts: Mapping[str, int]) -> list[str]:
    """One entry per wanted prompt, domains evenly mixed: the one furthest behind comes next."""
    total = sum(counts.values())
    done: Counter[str] = Counter()
    order: list[str] = []
    for place in range(total):
        domain = max(counts, key=lambda d: counts[d] * (place + 1) / total - done[d])
        done[domain] += 1
        order.append(domain)
    return order


def prompt_lines(prompts: Iterable[SynthesizedPrompt]) -> Iterator[str]:
    """Spell prompts as JSON Lines."""
    for one in prompts:
        yield json.dumps(
            {"id": one.id, "domain": one.domain, "prompt": one.prompt}, ensure_ascii=False
        )
