"""How much of what a drafter guesses the target accepts, on prompts, by domain and by position.

Conventions, which published figures differ in:

- The mean acceptance length counts the target's own token of each round; the mean number of
  accepted tokens does not. Both are means over rounds, pooled over prompts; the mean over domains
  weighs every domain alike.
- A round counts if it starts within the first `max_tokens` of the output; requests run on for one
  draft more, so no counted draft is cut short by the end. The round that ends the prompt is left
  out: a drafter that reads the target's features has none yet.
- Outputs that end in a loop are easy to draft and of no use; they count, and are also given apart.
- Every drafted token is verified.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.analysis.bootstrap import Resamples
from outrider.analysis.closed_loop import Completed, jobs_of, run_jobs
from outrider.analysis.numbers import finite
from outrider.analysis.prompts import PromptRow
from outrider.core.acceptance import Acceptance, total
from outrider.core.loops import loop_start
from outrider.core.request import SamplingParams
from outrider.core.rounds import Round
from outrider.engine.llm import LLM

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSetting:
    """What is run; `draft_len` is the longest draft of the engine that is given."""

    draft_len: int
    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 128
    concurrency: int = 16
    seed: int = 0
    raw: bool = False
    """Leave the chat template out."""
    resamples: int = 1000
    """Of the bootstrap; `seed` seeds it as well."""


@dataclass(slots=True)
class LedRounds:
    """Rounds whose draft began with a token of one source, and what they accepted of any."""

    rounds: int = 0
    accepted: int = 0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of these rounds, the target's own included."""
        return 1 + self.accepted / self.rounds


@dataclass(slots=True)
class PromptTally:
    """The counted rounds of one output. `confidence_at[i]` adds up over the rounds that reach i."""

    id: str
    domain: str
    num_tokens: int
    is_looping: bool
    counts: Acceptance = field(default_factory=Acceptance)
    histogram: Counter[int] = field(default_factory=Counter)
    led: dict[str, LedRounds] = field(default_factory=dict)
    confidence_at: list[float] = field(default_factory=list)
    confident_at: list[int] = field(default_factory=list)

    def add(self, one: Round) -> None:
        """Count a round."""
        self.counts.record(
            drafted=one.drafted,
            verified=one.verified,
            accepted=one.accepted,
            delivered=one.delivered,
            sources=one.sources,
        )
        self.histogram[one.accepted] += 1
        if one.sources:
            led = self.led.setdefault(one.sources[0], LedRounds())
            led.rounds += 1
            led.accepted += one.accepted
        for position, confidence in enumerate((one.confidence or ())[: one.accepted + 1]):
            if position == len(self.confidence_at):
                self.confidence_at.append(0.0)
                self.confident_at.append(0)
            self.confidence_at[position] += confidence
            self.confident_at[position] += 1

    def record(self) -> dict[str, Any]:
        """Give the numbers for JSON."""
        return {
            "id": self.id,
            "domain": self.domain,
            "output_tokens": self.num_tokens,
            "looping": self.is_looping,
            "rounds": self.counts.rounds,
            "drafted": self.counts.drafted,
            "accepted": self.counts.accepted,
            "accepted_at": self.counts.accepted_at,
            "mean_accept_length": finite(self.counts.acceptance_length),
        }


def tally(output: Completed, max_tokens: int) -> PromptTally:
    """Count the rounds of one output that start after its first token and before `max_tokens`."""
    tokens = output.tokens[:max_tokens]
    result = PromptTally(
        output.job.id, output.job.domain, len(tokens), loop_start(tokens) is not None
    )
    for one in output.rounds:
        if 0 < one.num_output < max_tokens:
            result.add(one)
    return result


@dataclass(frozen=True, slots=True)
class EvalRun:
    """All prompts at one temperature; `draws` are the bootstrap's resamples of them."""

    temperature: float
    prompts: tuple[PromptTally, ...]
    draws: Resamples

    @property
    def domains(self) -> list[str]:
        """Names of the domains, in the order of the prompts."""
        return list(dict.fromkeys(prompt.domain for prompt in self.prompts))

    def only(self, keep: Callable[[PromptTally], bool]) -> "EvalRun":
        """Keep some of the prompts."""
        kept = [keep(prompt) for prompt in self.prompts]
        prompts = tuple(p for p, is_kept in zip(self.prompts, kept, strict=True) if is_kept)
        return EvalRun(self.temperature, prompts, self.draws.only(kept))

    def of_domain(self, name: str) -> "EvalRun":
        """Keep the prompts of one domain."""
        return self.only(lambda prompt: prompt.domain == name)

    @property
    def counts(self) -> Acceptance:
        """Counters over all prompts."""
        return total([prompt.counts for prompt in self.prompts])

    @property
    def length_interval(self) -> tuple[float, float] | None:
        """Interval of the mean acceptance length."""
        accepted = [prompt.counts.accepted for prompt in self.prompts]
        found = self.draws.ratio(accepted, [prompt.counts.rounds for prompt in self.prompts])
        return None if found is None else (1 + found[0], 1 + found[1])

    @property
    def led(self) -> dict[str, LedRounds]:
        """Rounds by the source that began their draft, over all prompts."""
        result: dict[str, LedRounds] = {}
        for prompt in self.prompts:
            for name, own in prompt.led.items():
                mine = result.setdefault(name, LedRounds())
                mine.rounds += own.rounds
                mine.accepted += own.accepted
        return result


@dataclass(frozen=True, slots=True)
class EvalReport:
    """One run per temperature, in the order asked for."""

    setting: EvalSetting
    runs: tuple[EvalRun, ...]


def evaluate(
    llm: LLM,
    rows: Sequence[PromptRow],
    setting: EvalSetting,
    on_progress: OnProgress = lambda _what, _done, _all: None,
) -> EvalReport:
    """Run the prompts on `llm`, which speculates with drafts of up to `setting.draft_len` tokens.

    Raises:
        RequestError: A prompt cannot be served or failed.
    """
    assert llm.config.speculative is not None
    assert llm.config.speculative.num_speculative_tokens == setting.draft_len
    params = SamplingParams(max_tokens=setting.max_tokens + setting.draft_len, seed=setting.seed)
    draws = Resamples.draw([r.domain for r in rows], num=setting.resamples, seed=setting.seed)
    done, num_outputs = 0, len(rows) * len(setting.temperatures)
    runs = []

    def count(_: Completed) -> None:
        nonlocal done
        done += 1
        on_progress("outputs", done, num_outputs)

    for temperature in setting.temperatures:
        own = replace(params, temperature=temperature)
        jobs = jobs_of(llm, rows, own, raw=setting.raw)
        outputs = run_jobs(llm, jobs, concurrency=setting.concurrency, on_done=count)
        prompts = tuple(tally(output, setting.max_tokens) for output in outputs)
        runs.append(EvalRun(temperature, prompts, draws))
    return EvalReport(setting, tuple(runs))
