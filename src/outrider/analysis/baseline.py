"""What the engine itself costs: a bare greedy loop over the same network, against the engine.

The loop reads the prompt, then feeds back the arg-max of the last row, with one block table and
nothing around it: no scheduler, no sampler, no text. The engine runs the same prompts one at a time
with speculation off; the two take turns prompt by prompt.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from outrider.analysis.bench import BenchSetting, warm_up
from outrider.analysis.closed_loop import Job, jobs_of, run_jobs
from outrider.analysis.prompts import PromptRow
from outrider.core.ids import BlockId
from outrider.engine.llm import LLM
from outrider.errors import ConfigError
from outrider.tensor.span import Span

OnProgress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Timing:
    """Tokens and seconds of one way of decoding, one entry per repeat."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Start a repeat."""
        self.tokens.append(0)
        self.seconds.append(0.0)

    def add(self, tokens: int, seconds: float) -> None:
        """Count one prompt."""
        self.tokens[-1] += tokens
        self.seconds[-1] += seconds

    @property
    def throughputs(self) -> list[float]:
        """Tokens per second of every repeat."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    def record(self) -> dict[str, Any]:
        """Give the numbers for JSON."""
        return {
            "duration": sum(self.seconds),
            "total_output_tokens": sum(self.tokens),
            "output_throughput": sum(self.tokens) / sum(self.seconds),
            "output_throughputs": self.throughputs,
        }


@dataclass(slots=True)
class BaselineReport:
    """The outcome of `bench_baseline`."""

    loop: Timing = field(default_factory=Timing)
    engine: Timing = field(default_factory=Timing)
    num_identical: int = 0
    num_compared: int = 0

    @property
    def ratios(self) -> list[float]:
        """Throughput of the engine over that of the loop, per repeat; 1 means no overhead."""
        pairs = zip(self.engine.throughputs, self.loop.throughputs, strict=True)
        return [engine / loop for engine, loop in pairs]

    def record(self) -> dict[str, Any]:
        """Give everything as one JSON object."""
        return {
            "loop": self.loop.record(),
            "engine": self.engine.record(),
            "ratio": median(self.ratios),
            "ratios": self.ratios,
            "identical": self.num_identical == self.num_compared,
            "num_identical": self.num_identical,
            "num_compared": self.num_compared,
        }


def bench_baseline(
    engine: LLM,
    rows: Sequence[PromptRow],
    setting: BenchSetting,
    on_progress: OnProgress = lambda _what, _done, _all: None,
) -> BaselineReport:
    """Time `engine`, which must not speculate, against the bare loop.

    Raises:
        ConfigError: The setting is not greedy, or not one request at a time.
        RequestError: A prompt cannot be served or failed.
    """
    if setting.temperature != 0 or setting.concurrency != 1:
        raise ConfigError("the baseline loop is greedy and serves one request; leave both options")
    assert engine.config.speculative is None
    jobs = jobs_of(engine, rows, setting.params, raw=setting.raw)
    warm_up(engine, jobs, 1)
    loop = BareLoop(engine, max(len(job.prompt) for job in jobs) + setting.max_tokens)
    report = BaselineReport()
    for repeat in range(setting.repeats):
        report.loop.begin()
        report.engine.begin()
        for number, job in enumerate(jobs):
            is_first = (repeat + number) % 2 == 0
            early = _timed_loop(loop, job, report.loop) if is_first else None
            started = time.perf_counter()
            theirs = run_jobs(engine, [job])[0].tokens
            report.engine.add(len(theirs), time.perf_counter() - started)
            ours = _timed_loop(loop, job, report.loop) if early is None else early
            report.num_compared += 1
            report.num_identical += ours == theirs
            done = repeat * len(jobs) + number + 1
            on_progress(f"prompts, repeat {repeat + 1}", done, setting.repeats * len(jobs))
    return report


class BareLoop:
    """Greedy decoding of one prompt at a time on a KV cache of its own."""

    def __init__(self, llm: LLM, num_tokens: int) -> None:
        """Reserve a cache for `num_tokens` over the weights of `llm`."""
        size = llm.config.block_size
        self._target = llm.new_target(num_tokens)
        self._blocks = [BlockId(i) for i in range(-(-num_tokens // size))]
        self._chunk = llm.config.max_num_batched_tokens
        self._stop_tokens = llm.spec.stop_token_ids

    def run(self, job: Job) -> list[int]:
        """Decode until a stop token or `max_tokens`."""
        prompt = list(job.prompt)
        stops = frozenset() if job.params.ignore_eos else self._stop_tokens
        for start in range(0, len(prompt) - self._chunk, self._chunk):
            self._next_token(prompt[start : start + self._chunk], start)
        start = (len(prompt) - 1) // self._chunk * self._chunk
        output = [self._next_token(prompt[start:], start)]
        while len(output) < job.params.max_tokens and output[-1] not in stops:
            output.append(self._next_token(output[-1:], len(prompt) + len(output) - 1))
        return output

    def _next_token(self, tokens: list[int], kv_len: int) -> int:
        span = Span(tokens, kv_len, self._blocks, num_judged=1)
        return int(self._target.score_spans([span]).logits[-1].argmax())


def _timed_loop(loop: BareLoop, job: Job, timing: Timing) -> list[int]:
    started = time.perf_counter()
    tokens = loop.run(job)
    timing.add(len(tokens), time.perf_counter() - started)
    return tokens
