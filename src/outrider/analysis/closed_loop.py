"""Drives an engine with a constant number of requests in flight and notes when tokens came."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from outrider.analysis.prompts import PromptRow
from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.outcome import FinishReason
from outrider.core.request import Request, SamplingParams
from outrider.core.rounds import Round
from outrider.core.sequence import Sequence as Tokens
from outrider.engine.continuation import continuation_seed
from outrider.engine.llm import LLM
from outrider.engine.report import Delta
from outrider.errors import ConfigError, RequestError, RequestFailed, RequestRejected


@dataclass(frozen=True, slots=True)
class Job:
    """A tokenized prompt and how to continue it. `params.seed` fixes its noise."""

    id: str
    domain: str
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(slots=True)
class Completed:
    """A finished job. Times are seconds on the monotonic clock, `token_times` one per step.

    `rounds` are in the order they were made.
    """

    job: Job
    arrival: float
    sequence: Tokens
    token_times: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the request to its last token."""
        return self.token_times[-1] - self.arrival if self.token_times else 0.0

    @property
    def tokens(self) -> list[int]:
        """The generated tokens."""
        return list(self.sequence.output)

    @property
    def acceptance(self) -> Acceptance:
        """The job's counters."""
        return self.sequence.acceptance

    @property
    def ending(self) -> tuple[str, int | str | None]:
        """Finish reason and what it was: the stop token or string."""
        finish = self.sequence.finish
        return ("", None) if finish is None else (finish.reason.value, finish.detail)


OnDone = Callable[[Completed], None]
OnDelta = Callable[[Delta], None]
OnRounds = Callable[[Sequence[Round]], None]


def encode_prompt(llm: LLM, text: str, *, raw: bool) -> tuple[int, ...]:
    """Tokenize as a user's chat message, or as it is if `raw` or the model has no chat template."""
    if raw or llm.tokenizer.chat_template is None:
        return tuple(llm.tokenizer.encode(text))
    return tuple(llm.chat_prompt([{"role": "user", "content": text}]))


def jobs_of(
    llm: LLM, rows: Sequence[PromptRow], params: SamplingParams, *, raw: bool = False
) -> list[Job]:
    """Make one job per prompt, the i-th with seed `params.seed` + i."""
    first_seed = params.seed or 0
    return [
        Job(
            row.id,
            row.domain,
            encode_prompt(llm, row.text, raw=raw),
            replace(params, seed=first_seed + number),
        )
        for number, row in enumerate(rows)
    ]


def run_jobs(
    llm: LLM,
    jobs: Sequence[Job],
    *,
    concurrency: int = 1,
    on_done: OnDone = lambda _: None,
    on_delta: OnDelta = lambda _: None,
    on_rounds: OnRounds = lambda _: None,
) -> list[Completed]:
    """Run all jobs, `concurrency` at a time: the next one enters when one has finished.

    The results are in the order of the jobs. `on_rounds` hears the rounds of every step. The engine
    must have nothing else to do.

    Raises:
        ConfigError: The engine is serving other requests.
        RequestRejected: A job cannot be served; the message names its prompt.
        RequestFailed: A job failed while running.
    """
    if llm.engine.has_work:
        raise ConfigError(
            "the engine is serving other requests; measure when they are done, or on a sibling"
        )
    waiting = deque(enumerate(jobs))
    running: dict[RequestId, tuple[int, Completed]] = {}
    done: dict[int, Completed] = {}
    try:
        while waiting or running:
            while waiting and len(running) < concurrency:
                number, job = waiting.popleft()
                running[RequestId(f"job-{number}")] = (number, _add(llm, job, number))
            report = llm.engine.step()
            now = time.perf_counter()
            on_rounds(report.rounds)
            for each in report.rounds:
                running[each.request_id][1].rounds.append(each)
            for delta in report.deltas:
                number, one = running[delta.request_id]
                if delta.tokens:
                    one.token_times.append(now)
                on_delta(delta)
                if delta.finish is not None:
                    del running[delta.request_id]
                    _require_success(one)
                    done[number] = one
                    on_done(one)
    finally:
        for request_id in running:
            llm.engine.abort(request_id)
    return [done[number] for number in range(len(jobs))]


def _add(llm: LLM, job: Job, number: int) -> Completed:
    seed = continuation_seed(job.params.seed or 0)
    request = Request(RequestId(f"job-{number}"), job.prompt, job.params, seed)
    arrival = time.perf_counter()
    try:
        return Completed(job, arrival, llm.engine.add(request))
    except RequestError as error:
        raise RequestRejected(f"prompt {job.id}: {error}") from error


def _require_success(one: Completed) -> None:
    finish = one.sequence.finish
    if finish is not None and finish.reason is FinishReason.ERROR:
        raise RequestFailed(
            f"prompt {one.job.id} failed after {one.sequence.num_output} tokens: {finish.detail}"
        )
