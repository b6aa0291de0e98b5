"""Speed as a measurement: plain and speculative decoding of the same prompts, paired.

Both engines share the loaded weights and run the same prompts one right after the other, taking
turns in going first, so that what drifts on a machine (heat, neighbours) hits both. They change
turns after every prompt; with several requests at a time after a group of prompts, long enough that
its ragged end weighs little. The speedup of a repeat is the ratio of output throughputs over all
its prompts, and the speedup reported is the median over the repeats. Requests run in a closed loop:
one that finishes makes room for the next. Prefix caching is off, or the second repeat would find
the prompts of the first.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from outrider.analysis.closed_loop import Completed, Job, jobs_of, run_jobs
from outrider.analysis.numbers import acceptance_record, latency_record, vllm_acceptance_record
from outrider.analysis.prompts import PromptRow
from outrider.core.acceptance import Acceptance, total
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM

PLAIN, SPECULATIVE = "plain", "speculative"
WARM_UP_TOKENS = 16
# Requests per seat before the other engine gets its turn.
GROUP_ROUNDS = 8

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how many of its steps are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSetting:
    """What is run."""

    concurrency: int = 1
    max_tokens: int = 128
    repeats: int = 3
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    raw: bool = False
    """Leave the chat template out."""

    @property
    def params(self) -> SamplingParams:
        """How each request is sampled, but for its own seed."""
        return SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Some prompts of one domain, once, on one engine. `seconds` is the wall time of them all."""

    side: str
    repeat: int
    domain: str
    seconds: float
    outputs: tuple[Completed, ...]

    @property
    def num_tokens(self) -> int:
        """Generated tokens."""
        return sum(one.sequence.num_output for one in self.outputs)


@dataclass(slots=True)
class BenchReport:
    """Every run; the numbers are derived from them."""

    runs: list[Run] = field(default_factory=list)

    @property
    def domains(self) -> list[str]:
        """Names of the domains, in the order they were run."""
        return list(dict.fromkeys(run.domain for run in self.runs))

    def of(self, side: str, *, repeat: int | None = None, domain: str | None = None) -> list[Run]:
        """Pick runs."""
        return [
            run
            for run in self.runs
            if run.side == side
            and (repeat is None or run.repeat == repeat)
            and (domain is None or run.domain == domain)
        ]

    def speedups(self, domain: str | None = None) -> list[float]:
        """Give the paired ratio of output throughputs of every repeat."""
        repeats = sorted({run.repeat for run in self.of(SPECULATIVE)})
        return [
            output_throughput(self.of(SPECULATIVE, repeat=repeat, domain=domain))
            / output_throughput(self.of(PLAIN, repeat=repeat, domain=domain))
            for repeat in repeats
        ]

    def identical(self) -> tuple[int, int]:
        """Count outputs of the first repeat that have the same tokens on both sides, and all."""
        plain, speculative = (
            [one.tokens for run in self.of(side, repeat=0) for one in run.outputs]
            for side in (PLAIN, SPECULATIVE)
        )
        return sum(a == b for a, b in zip(plain, speculative, strict=True)), len(plain)

    def record(self) -> dict[str, Any]:
        """Give everything as one JSON object."""
        record: dict[str, Any] = {PLAIN: runs_record(self.of(PLAIN))}
        is_paired = bool(self.of(SPECULATIVE))
        if is_paired:
            same, compared = self.identical()
            record |= {
                SPECULATIVE: runs_record(self.of(SPECULATIVE)),
                "speedup": median(self.speedups()),
                "speedups": self.speedups(),
                "identical": same == compared,
                "num_identical": same,
                "num_compared": compared,
            }
        record["domains"] = {name: self._domain_record(name) for name in self.domains}
        record["runs"] = [
            {
                "side": side,
                "repeat": repeat,
                "domain": domain,
                "duration": sum(run.seconds for run in runs),
                "total_output_tokens": sum(run.num_tokens for run in runs),
                "output_throughput": output_throughput(runs),
            }
            for repeat in sorted({run.repeat for run in self.runs})
            for domain in self.domains
            for side in (PLAIN, SPECULATIVE)
            if (runs := self.of(side, repeat=repeat, domain=domain))
        ]
        return record

    def _domain_record(self, name: str) -> dict[str, Any]:
        sides = {
            side: runs_record(self.of(side, domain=name))
            for side in (PLAIN, SPECULATIVE)
            if self.of(side)
        }
        if SPECULATIVE not in sides:
            return sides
        return sides | {"speedup": median(self.speedups(name)), "speedups": self.speedups(name)}


def bench(
    plain: LLM,
    speculative: LLM | None,
    rows: Sequence[PromptRow],
    setting: BenchSetting,
    on_progress: OnProgress = lambda _what, _done, _all: None,
) -> BenchReport:
    """Measure `plain` and, if given, `speculative` against it. Neither may cache prefixes.

    Raises:
        RequestError: A prompt cannot be served or failed.
    """
    sides = [(PLAIN, plain)] + ([(SPECULATIVE, speculative)] if speculative is not None else [])
    jobs = jobs_of(plain, rows, setting.params, raw=setting.raw)
    for _, llm in sides:
        assert not llm.config.prefix_caching, "a cached prompt is not measured"
        warm_up(llm, jobs, setting.concurrency)
    report = BenchReport()
    groups = _groups(jobs, setting.concurrency)
    num_runs = setting.repeats * len(jobs) * len(sides)
    done = 0
    for repeat in range(setting.repeats):
        for number, group in enumerate(groups):
            order = sides if (repeat + number) % 2 == 0 else sides[::-1]
            for side, llm in order:
                started = time.perf_counter()
                outputs = run_jobs(llm, group, concurrency=setting.concurrency)
                seconds = time.perf_counter() - started
                domain = group[0].domain
                report.runs.append(Run(side, repeat, domain, seconds, tuple(outputs)))
                done += len(group)
                on_progress(f"prompts, repeat {repeat + 1}, {domain}, {side}", done, num_runs)
    return report


def _groups(jobs: Sequence[Job], concurrency: int) -> list[list[Job]]:
    """Split by domain, and further into what runs before the other side gets its turn."""
    size = 1 if concurrency == 1 else GROUP_ROUNDS * concurrency
    groups: list[list[Job]] = []
    for domain in dict.fromkeys(job.domain for job in jobs):
        own = [job for job in jobs if job.domain == domain]
        groups += [own[start : start + size] for start in range(0, len(own), size)]
    return groups


def warm_up(llm: LLM, jobs: Sequence[Job], concurrency: int) -> None:
    """Run the first prompts briefly: first calls pay for memory and kernels."""
    short = [
        replace(job, params=replace(job.params, max_tokens=WARM_UP_TOKENS))
        for job in jobs[:concurrency]
    ]
    run_jobs(llm, short, concurrency=concurrency)


def output_throughput(runs: Sequence[Run]) -> float:
    """Generated tokens per second of wall time."""
    return sum(run.num_tokens for run in runs) / sum(run.seconds for run in runs)


def runs_record(runs: Sequence[Run]) -> dict[str, Any]:
    """Sum runs up under the field names of vLLM's benchmark; durations add up, latencies pool.

    `ttft` counts from the request's entry to its first token, `tpot` is the mean time per token
    after the first, `itl` the time between two deliveries (one per step, however many tokens).
    """
    outputs = [one for run in runs for one in run.outputs]
    seconds = sum(run.seconds for run in runs)
    num_input = sum(len(one.job.prompt) for one in outputs)
    num_output = sum(run.num_tokens for run in runs)
    counts: Acceptance = total([one.acceptance for one in outputs])
    return {
        "duration": seconds,
        "completed": len(outputs),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(outputs) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
        **latency_record("ttft", [one.token_times[0] - one.arrival for one in outputs]),
        **latency_record("tpot", [_time_per_token(one) for one in outputs if len(one.tokens) > 1]),
        **latency_record("itl", [gap for one in outputs for gap in _gaps(one.token_times)]),
        **latency_record("e2el", [one.seconds for one in outputs]),
        **vllm_acceptance_record(counts),
        **acceptance_record(counts),
    }


def _time_per_token(one: Completed) -> float:
    return (one.token_times[-1] - one.token_times[0]) / (len(one.tokens) - 1)


def _gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]
