"""Losslessness as a measurement: every prompt plain and speculative, compared token for token.

The plain reference of a prompt is made once per temperature, at the smallest concurrency; each
speculative run, of every drafter at every concurrency, is held against it. What a difference means
is judged by `divergence`. Under the `rejection` rule outputs are equal in distribution, not token
for token, so there only temperature 0 is compared: a draft token then has probability 0 or 1, and
the rule reduces to equality.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from outrider.analysis.closed_loop import Completed, Job, jobs_of, run_jobs
from outrider.analysis.divergence import TOLERANCE_ULPS, Divergence, find_divergence
from outrider.analysis.numbers import acceptance_record
from outrider.analysis.prompts import PromptRow
from outrider.core.acceptance import Acceptance
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM

Verdict = Literal["lossless", "lossless up to numeric ties", "not lossless"]
_BEST_FIRST: Final[tuple[Verdict, ...]] = (
    "lossless",
    "lossless up to numeric ties",
    "not lossless",
)

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how many of its steps are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifySetting:
    """What is run."""

    temperatures: tuple[float, ...] = (0.0, 0.8)
    concurrencies: tuple[int, ...] = (1, 8)
    max_tokens: int = 128
    seed: int = 0
    """Seeds the first prompt; the others count on from it."""
    raw: bool = False
    """Leave the chat template out."""


@dataclass(slots=True)
class Tally:
    """Counts over comparisons of one plain with one speculative run."""

    num_prompts: int = 0
    comparisons: int = 0
    identical: int = 0
    ties: int = 0
    errors: int = 0
    tie_margins: list[float] = field(default_factory=list)
    output_tokens: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)

    def add(self, speculative: Completed, divergence: Divergence | None) -> None:
        """Count one comparison."""
        self.comparisons += 1
        self.output_tokens += speculative.sequence.num_output
        self.acceptance.add(speculative.acceptance)
        if divergence is None:
            self.identical += 1
        elif divergence.kind == "tie":
            self.ties += 1
            self.tie_margins.append(divergence.margin or 0.0)
        else:
            self.errors += 1

    def record(self) -> dict[str, Any]:
        """Give the counts and the rates derived from them."""
        return {
            "prompts": self.num_prompts,
            "comparisons": self.comparisons,
            "identical": self.identical,
            "ties": self.ties,
            "tie_margins": [round(margin, 9) for margin in self.tie_margins],
            "errors": self.errors,
            "output_tokens": self.output_tokens,
            **acceptance_record(self.acceptance),
        }


@dataclass(slots=True)
class Certificate:
    """The outcome for one drafter."""

    total: Tally = field(default_factory=Tally)
    domains: dict[str, Tally] = field(default_factory=dict)
    settings: dict[tuple[float, int], Tally] = field(default_factory=dict)
    divergences: list[tuple[float, int, Divergence]] = field(default_factory=list)
    """With the temperature and the concurrency they appeared at."""
    skipped: tuple[float, ...] = ()
    """Temperatures at which the verify rule does not promise equal tokens."""

    @property
    def verdict(self) -> Verdict:
        """Put the outcome into words."""
        if self.total.errors:
            return "not lossless"
        return "lossless up to numeric ties" if self.total.ties else "lossless"

    def record(self) -> dict[str, Any]:
        """Give everything as one JSON object."""
        return {
            "verdict": self.verdict,
            "passed": not self.total.errors,
            "total": self.total.record(),
            "domains": {name: tally.record() for name, tally in self.domains.items()},
            "settings": [
                {"temperature": temperature, "concurrency": concurrency, **tally.record()}
                for (temperature, concurrency), tally in self.settings.items()
            ],
            "skipped_temperatures": list(self.skipped),
            "divergences": [
                {"temperature": temperature, "concurrency": concurrency, **divergence.record()}
                for temperature, concurrency, divergence in self.divergences
            ],
        }


def certify(
    plain: LLM,
    drafting: Mapping[str, LLM],
    rows: Sequence[PromptRow],
    setting: CertifySetting,
    on_progress: OnProgress = lambda _what, _done, _all: None,
) -> dict[str, Certificate]:
    """Run and compare everything that `setting` asks for; a certificate per engine of `drafting`.

    Raises:
        RequestError: A prompt cannot be served or failed.
    """
    temperatures = setting.temperatures
    if plain.config.verify_rule == "rejection":
        temperatures = tuple(each for each in temperatures if each == 0)
    skipped = tuple(each for each in setting.temperatures if each not in temperatures)
    certificates = {name: Certificate(skipped=skipped) for name in drafting}
    runs_per_prompt = 1 + len(drafting) * len(setting.concurrencies)
    progress = _Progress(on_progress, len(rows) * len(temperatures) * runs_per_prompt)
    for temperature in temperatures:
        params = SamplingParams(
            temperature=temperature, max_tokens=setting.max_tokens, seed=setting.seed
        )
        jobs = jobs_of(plain, rows, params, raw=setting.raw)
        reference = _run(plain, jobs, min(setting.concurrencies), "plain", progress)
        for name, llm in drafting.items():
            for concurrency in setting.concurrencies:
                outputs = _run(llm, jobs, concurrency, name, progress)
                _compare(certificates[name], plain, reference, outputs, concurrency)
    for certificate in certificates.values():
        _count_prompts(certificate, rows)
    return certificates


def overall(certificates: Iterable[Certificate]) -> Verdict:
    """Give the worst of the verdicts."""
    return max((each.verdict for each in certificates), key=_BEST_FIRST.index)


def tolerance_record(dtype: str) -> dict[str, Any]:
    """Say what counts as a numeric tie in `dtype`."""
    return {"dtype": dtype, "ulps": TOLERANCE_ULPS[dtype], "of": "largest logit / temperature"}


class _Progress:
    """Counts runs over all settings."""

    def __init__(self, on_progress: OnProgress, num_runs: int) -> None:
        self._on_progress = on_progress
        self._num_runs = num_runs
        self._done = 0

    def step(self, what: str) -> None:
        self._done += 1
        self._on_progress(what, self._done, self._num_runs)


def _run(
    llm: LLM, jobs: Sequence[Job], concurrency: int, kind: str, progress: _Progress
) -> list[Completed]:
    temperature = jobs[0].params.temperature
    what = f"{kind}, temperature {temperature:g}, {concurrency} at a time"
    return run_jobs(llm, jobs, concurrency=concurrency, on_done=lambda _: progress.step(what))


def _compare(
    certificate: Certificate,
    judge: LLM,
    reference: Sequence[Completed],
    outputs: Sequence[Completed],
    concurrency: int,
) -> None:
    for plain, speculative in zip(reference, outputs, strict=True):
        job = plain.job
        temperature = job.params.temperature
        divergence = find_divergence(judge, plain, speculative)
        if divergence is not None:
            certificate.divergences.append((temperature, concurrency, divergence))
        for tally in (
            certificate.total,
            certificate.domains.setdefault(job.domain, Tally()),
            certificate.settings.setdefault((temperature, concurrency), Tally()),
        ):
            tally.add(speculative, divergence)


def _count_prompts(certificate: Certificate, rows: Sequence[PromptRow]) -> None:
    certificate.total.num_prompts = len(rows)
    for name, tally in certificate.domains.items():
        tally.num_prompts = sum(row.domain == name for row in rows)
    for tally in certificate.settings.values():
        tally.num_prompts = len(rows)
