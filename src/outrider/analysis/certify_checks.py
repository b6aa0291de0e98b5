"""What else must not change an output: streaming, the prefix cache, and any sampling option.

Each check compares the speculative engine with the plain one in its simplest form (no stream, no
prefix cache), so that a verifier that is wrong fails every one of them.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from outrider.analysis.certify import CertifySetting, OnProgress, Tally
from outrider.analysis.certify_options import variants
from outrider.analysis.closed_loop import Completed, Job, jobs_of, run_jobs
from outrider.analysis.divergence import Divergence, find_divergence
from outrider.analysis.goodness_of_fit import FALSE_ALARM, POWER
from outrider.analysis.prompts import PromptRow
from outrider.analysis.rejection_fit import RejectionFit, fit
from outrider.core.ids import RequestId
from outrider.core.outcome import Finish, FinishReason
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.engine.backend import EXACT
from outrider.engine.continuation import continuation_seed
from outrider.engine.llm import LLM
from outrider.engine.output import CompletionOutput, StreamChunk

Check = Literal["tokens", "stream", "prefix-cache", "options", "rejection-fit"]
CHECKS: Final[tuple[Check, ...]] = ("tokens", "stream", "prefix-cache", "options", "rejection-fit")
FIT_TOKENS: Final = 4096
SAMPLED: Final = 0.8
"""Temperature of the goodness-of-fit test where no sampled one was asked for."""
_LOGPROB_TOLERANCE: Final = 0.05


class MakeEngine(Protocol):
    """Builds the speculative engine over the plain one's weights, with options replaced."""

    def __call__(self, **options: Any) -> LLM:
        """Build it."""
        ...


@dataclass(slots=True)
class CheckResult:
    """The outcome of one check for one drafter; `fits` are those of the goodness-of-fit test."""

    check: Check
    drafter: str
    tally: Tally = field(default_factory=Tally)
    divergences: list[tuple[str, Divergence]] = field(default_factory=list)
    """With the variant they appeared in."""
    faults: list[str] = field(default_factory=list)
    """Errors that are no difference between two token sequences."""
    notes: list[str] = field(default_factory=list)
    fits: dict[str, RejectionFit] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        fits = all(each.passed for each in self.fits.values())
        return not self.tally.errors and not self.faults and fits

    def compare(self, judge: LLM, variant: str, plain: Completed, other: Completed) -> None:
        """Count one comparison."""
        divergence = find_divergence(judge, plain, other)
        self.tally.add(other, divergence)
        if divergence is not None:
            self.divergences.append((variant, divergence))

    def record(self) -> dict[str, Any]:
        """Give it for JSON."""
        return {
            "check": self.check,
            "drafter": self.drafter,
            "passed": self.passed,
            **self.tally.record(),
            "divergences": [{"variant": v, **each.record()} for v, each in self.divergences],
            "faults": self.faults,
            "notes": self.notes,
            **({"fits": {n: f.record() for n, f in self.fits.items()}} if self.fits else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all checks of a call run on."""

    plain: LLM
    drafting: Mapping[str, MakeEngine]
    rows: Sequence[PromptRow]
    setting: CertifySetting
    fit_tokens: int = FIT_TOKENS

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those at which the engine's verify rule promises equal tokens."""
        if self.plain.config.verify_rule == "rejection":
            return tuple(each for each in self.setting.temperatures if each == 0)
        return self.setting.temperatures

    def jobs(self, temperature: float) -> list[Job]:
        """One job per prompt."""
        setting = self.setting
        params = SamplingParams(
            temperature=temperature, max_tokens=setting.max_tokens, seed=setting.seed
        )
        return jobs_of(self.plain, self.rows, params, raw=setting.raw)


def run_checks(
    checks: Sequence[Check],
    ground: Ground,
    on_progress: OnProgress = lambda _what, _done, _all: None,
) -> list[CheckResult]:
    """Run every check but `tokens`, which is `certify.certify`, for every drafter.

    Raises:
        RequestError: A prompt cannot be served or failed.
    """
    wanted = [check for check in checks if check != "tokens"]
    results: list[CheckResult] = []
    total = len(wanted) * len(ground.drafting)
    for check in wanted:
        for name, make in ground.drafting.items():
            result = CheckResult(check, name)
            on_progress(f"{check}, {name}", len(results), total)
            _RUNNERS[check](ground, make, result)
            results.append(result)
    return results


def _stream(ground: Ground, make: MakeEngine, result: CheckResult) -> None:
    """Chunks of a stream add up to what the plain engine gives at once."""
    engine = make()
    for temperature in ground.temperatures:
        for job in ground.jobs(temperature):
            reference = _generated(ground.plain, job)[0]
            streamed = _streamed(engine, job, reference)
            if isinstance(streamed, str):
                result.faults.append(f"{job.id}: {streamed}")
                continue
            at = f"temperature {temperature:g}"
            result.compare(ground.plain, f"{at}, stream", reference, streamed)
            result.compare(ground.plain, f"{at}, at once", reference, _generated(engine, job)[0])


def _streamed(llm: LLM, job: Job, reference: Completed) -> Completed | str:
    chunks: list[StreamChunk] = [chunk for _, chunk in llm.stream([list(job.prompt)], job.params)]
    ends = [index for index, chunk in enumerate(chunks) if chunk.finish_reason is not None]
    if ends != [len(chunks) - 1]:
        return f"the stream says at chunks {ends} of {len(chunks)} that it ends"
    reason = FinishReason(str(chunks[-1].finish_reason))
    finish = reference.sequence.finish
    # A chunk does not say which stop it was; that the text ends in the same place does.
    detail = finish.detail if finish is not None and finish.reason is reason else None
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    text = "".join(chunk.text for chunk in chunks)
    return _completed(job, 0, tokens, text, Finish(reason, detail))


def _prefix_cache(ground: Ground, make: MakeEngine, result: CheckResult) -> None:
    """What is found in the cache is what would be computed."""
    plain = ground.plain.sibling(prefix_caching=False)
    engines = {"off": make(prefix_caching=False), "on": make(prefix_caching=True)}
    seats = max(ground.setting.concurrencies)
    hits = 0
    for temperature in ground.temperatures:
        jobs = ground.jobs(temperature)
        references = run_jobs(plain, jobs)
        for name in ("off", "on", "on, again"):
            outputs = run_jobs(engines[name.split(",")[0]], jobs, concurrency=seats)
            hits += sum(one.sequence.num_cached_prompt for one in outputs)
            for reference, output in zip(references, outputs, strict=True):
                at = f"temperature {temperature:g}, prefix cache {name}"
                result.compare(ground.plain, at, reference, output)
    result.notes.append(f"{hits} prompt tokens were found in the cache")
    if not hits:
        block = ground.plain.config.block_size
        result.notes.append(f"no prompt fills a block of {block} tokens, so nothing was shared")


def _options(ground: Ground, make: MakeEngine, result: CheckResult) -> None:
    """Every sampling option, alone and in combinations."""
    engine = make()
    exact = ground.plain.precision == EXACT
    has_forms = importlib.util.find_spec("llguidance") is not None
    if not has_forms:
        result.notes.append("structured_outputs left out: llguidance is not installed")
    names: set[str] = set()
    for temperature in ground.temperatures:
        for job in ground.jobs(temperature):
            base = _generated(ground.plain, job)[0]
            spec = ground.plain.spec
            for each in variants(job.params, base.tokens, base.sequence.text, spec.vocab_size):
                if each.params.structured_outputs is not None and not has_forms:
                    continue
                own = replace(job, params=each.params)
                names.add(each.name)
                ours, theirs = _outputs(ground.plain, own), _outputs(engine, own)
                for index, pair in enumerate(zip(ours, theirs, strict=True)):
                    plain, other = (_of_output(own, index, one) for one in pair)
                    result.compare(ground.plain, each.name, plain, other)
                    if plain.tokens == other.tokens and not _same_logprobs(*pair, exact=exact):
                        result.faults.append(f"{job.id}, {each.name}: other log-probabilities")
    result.notes.append(f"{len(names)} options and combinations")


def _same_logprobs(ours: CompletionOutput, theirs: CompletionOutput, *, exact: bool) -> bool:
    if ours.logprobs is None or theirs.logprobs is None:
        return ours.logprobs is theirs.logprobs
    if exact:
        return ours.logprobs == theirs.logprobs
    return len(ours.logprobs) == len(theirs.logprobs) and all(
        abs(one.logprob - other.logprob) <= _LOGPROB_TOLERANCE
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True)
    )


def _rejection_fit(ground: Ground, make: MakeEngine, result: CheckResult) -> None:
    """Sampled texts have the target's law; the plain engine is tested the same way."""
    temperature = max((each for each in ground.setting.temperatures if each > 0), default=SAMPLED)
    jobs = [
        replace(job, params=replace(job.params, ignore_eos=True, max_tokens=_at_least_two(job)))
        for job in ground.jobs(temperature)
    ]
    seats = max(ground.setting.concurrencies)
    engines = {
        "plain": ground.plain.sibling(verify_rule="rejection"),
        "speculative": make(verify_rule="rejection"),
    }
    for name, engine in engines.items():
        result.fits[name] = fit(engine, ground.plain, jobs, ground.fit_tokens, seats)
    found = result.fits["speculative"]
    if not found.acceptance.verified:
        result.notes.append("nothing was drafted, so nothing was tested")
    result.notes.append(
        f"false alarm {FALSE_ALARM:g}; with chance {POWER:g} it finds {found.test.detectable:.1%} "
        "of the probability moved between likelier and less likely tokens"
    )


def _at_least_two(job: Job) -> int:
    return max(job.params.max_tokens, 2)


def _outputs(llm: LLM, job: Job) -> list[CompletionOutput]:
    return llm.generate([list(job.prompt)], job.params)[0].outputs


def _generated(llm: LLM, job: Job) -> list[Completed]:
    return [_of_output(job, index, one) for index, one in enumerate(_outputs(llm, job))]


def _of_output(job: Job, index: int, one: CompletionOutput) -> Completed:
    finish = Finish(FinishReason(str(one.finish_reason)), one.stop_reason)
    completed = _completed(job, index, one.token_ids, one.text, finish)
    completed.sequence.acceptance.add(one.acceptance)
    return completed


def _completed(job: Job, index: int, tokens: Sequence[int], text: str, finish: Finish) -> Completed:
    seed = continuation_seed(job.params.seed or 0, index)
    sequence = Tokens.of(Request(RequestId(job.id), job.prompt, job.params, seed, index=index))
    sequence.tokens += tokens
    sequence.text, sequence.finish = text, finish
    return Completed(job, 0.0, sequence)


_RUNNERS: Final[Mapping[Check, Callable[[Ground, MakeEngine, CheckResult], None]]] = {
    "stream": _stream,
    "prefix-cache": _prefix_cache,
    "options": _options,
    "rejection-fit": _rejection_fit,
}


def check_lines(result: CheckResult) -> list[str]:
    """Give the outcome of a check for people, errors first."""
    lines = [f"{each.describe()} [{variant}]" for variant, each in result.divergences]
    lines += [f"error: {fault}" for fault in result.faults]
    for name, one in result.fits.items():
        test = one.test
        lines.append(
            f"{result.check}, {name}: chi-square {test.statistic:.1f} over {test.count} tokens "
            f"(threshold {test.threshold:.1f}, p {test.p_value:.2g}), "
            f"{one.acceptance.accepted} of {one.acceptance.verified} draft tokens accepted"
            + (f", {one.impossible} tokens the target never says" if one.impossible else "")
        )
    tally = result.tally
    if tally.comparisons:
        lines.append(
            f"{result.check}: {tally.comparisons} compared, {tally.identical} identical, "
            f"{tally.ties} ties, {tally.errors + len(result.faults)} errors"
        )
    lines += [f"{result.check}: {note}" for note in result.notes]
    lines.append(f"{result.check}: {'passed' if result.passed else 'failed'}")
    return lines
