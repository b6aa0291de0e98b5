"""What a log would have taken under another drafter, length policy, load or machine.

A log, prompts and outputs, is served once more by the real engine on a clock that a step cost table
moves (see `whatif_clock`). Under matching, the verdict on a draft token is equality with the log,
so acceptance is not modelled but counted; only time is predicted.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from outrider.analysis.bench import Run, runs_record
from outrider.analysis.closed_loop import Completed, Job
from outrider.analysis.numbers import latency_record
from outrider.analysis.whatif_clock import LoggedRequest, LogTarget, PricedDrafter, VirtualClock
from outrider.core.ids import RequestId
from outrider.core.request import Request
from outrider.drafters.base import Drafter
from outrider.engine.commit import StopRules
from outrider.engine.engine import Engine, EngineParts
from outrider.errors import ConfigError
from outrider.kvcache.blocks import BlockAllocator
from outrider.schedule.admission import Limits
from outrider.schedule.confidence import Estimator
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import Fixed, LengthPolicy, Off, Threshold, Throughput
from outrider.verify.verifier import RuleVerifier

PLAIN: Final = "plain"
ROUNDS_PER_SEAT: Final = 4
"""Requests per seat in a closed loop, so that filling up and running dry weigh little."""

NewDrafter = Callable[[Sequence[tuple[RequestId, LoggedRequest]]], Drafter]
"""Makes a drafter that remembers nothing, for the requests that will be served."""


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come: `concurrency` at a time, or `rate` a second at random (Poisson).

    With a rate, `concurrency` is the most that run at a time; the others wait.
    """

    concurrency: int
    rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no load.

        Raises:
            ConfigError: Nobody runs, or the rate is not above 0.
        """
        if self.concurrency < 1:
            raise ConfigError(f"concurrency is {self.concurrency}, but one request must run")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ConfigError(f"the rate is {self.rate}, but requests a second are above 0")

    @property
    def name(self) -> str:
        """How reports call it."""
        return f"{self.concurrency} at a time" if self.rate is None else f"{self.rate:g} a second"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who drafts and how much is verified; no drafter is plain decoding.

    `policy` is off, fixed, threshold or throughput; `threshold` is of the third.
    """

    name: str
    new_drafter: NewDrafter | None
    cost: StepCost
    policy: str = "fixed"
    threshold: float = 0.5

    def lengths(self) -> LengthPolicy:
        """Give the length policy."""
        if self.policy == "throughput":
            return Throughput(self.cost)
        if self.policy == "threshold":
            return Threshold(self.threshold)
        return Off() if self.policy == "off" else Fixed(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The rest of a simulation. `num_requests` None: the log once, or `ROUNDS_PER_SEAT` a seat."""

    max_num_batched_tokens: int = 512
    num_requests: int | None = None
    seed: int = 0
    """Of the arrivals."""

    def count(self, log: Sequence[LoggedRequest], load: Load) -> int:
        """Requests to serve; the log is repeated as needed."""
        if self.num_requests is not None:
            return self.num_requests
        if load.rate is not None:
            return max(len(log), 200)
        return max(len(log), ROUNDS_PER_SEAT * load.concurrency)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario at one load."""

    scenario: str
    load: Load
    outputs: tuple[Completed, ...]
    is_extrapolated: bool = False
    """Whether some step that read no prompt had more rows than the table was measured for."""

    @property
    def seconds(self) -> float:
        """From the first arrival to the last token."""
        return max(one.token_times[-1] for one in self.outputs) - self.outputs[0].arrival

    @property
    def throughput(self) -> float:
        """Generated tokens per second."""
        return sum(len(one.tokens) for one in self.outputs) / self.seconds

    def record(self) -> dict[str, Any]:
        """Give the numbers for JSON, under the names of `bench run` and of its peers.

        `tpot` is the time per token after the first, `ttft` counts from the arrival and so has the
        queue in it, and so has `token_latency`, the whole time over all tokens.
        """
        runs = [Run(self.scenario, 0, "", self.seconds, self.outputs)]
        latency = [one.seconds / len(one.tokens) for one in self.outputs]
        record = runs_record(runs)
        histogram = Counter(each.accepted for one in self.outputs for each in one.rounds)
        longest = max(histogram)
        return {
            "scenario": self.scenario,
            "concurrency": self.load.concurrency,
            "request_rate": self.load.rate,
            "is_extrapolated": self.is_extrapolated,
            **record,
            **latency_record("token_latency", latency),
            "mean_accept_length": record["acceptance_length"],
            "acceptance_length_histogram": [histogram[n] for n in range(longest + 1)],
        }


def simulate(
    log: Sequence[LoggedRequest], scenario: Scenario, load: Load, setting: Setting
) -> Outcome:
    """Serve the log; times are seconds of the virtual clock from 0 on.

    Raises:
        ConfigError: The log is empty.
    """
    if not log:
        raise ConfigError("the log has no request; record one, or name another file")
    number = setting.count(log, load)
    served = [(RequestId(f"{n}"), log[n % len(log)]) for n in range(number)]
    clock = VirtualClock()
    cost, context = scenario.cost, max(len(r.prompt) + r.params.max_tokens for r in log) + 1
    vocabulary = 1 + max(max((*r.prompt, *r.output)) for r in log)
    target = LogTarget(cost, clock, vocabulary, context)
    drafter = None
    if scenario.new_drafter is not None:
        drafter = PricedDrafter(scenario.new_drafter(served), cost, clock)
    weighs = scenario.policy in ("threshold", "throughput")
    engine = Engine(
        EngineParts(
            target=target,
            drafter=drafter,
            lengths=scenario.lengths(),
            verifier=RuleVerifier("matching", frozenset(), target.sampler),
            # One block holds a whole request: memory is not what is asked about.
            allocator=BlockAllocator(load.concurrency, context, prefix_caching=False),
            limits=Limits(
                load.concurrency, max(load.concurrency, setting.max_num_batched_tokens), context
            ),
            rules=StopRules(frozenset(), context),
            cost=cost if scenario.policy == "throughput" else None,
            estimator=Estimator() if weighs else None,
            clock=clock,
        )
    )
    traffic = _Traffic(engine, target, clock)
    outputs = traffic.serve(served, _arrivals(number, load, setting.seed), load)
    return Outcome(scenario.name, load, tuple(outputs), target.most_rows > cost.max_rows)


def _arrivals(number: int, load: Load, seed: int) -> list[float]:
    if load.rate is None:
        return [0.0] * number
    generator = np.random.Generator(np.random.PCG64(seed))
    gaps = generator.exponential(1 / load.rate, number)
    return [float(time) for time in np.cumsum(gaps) - gaps[0]]


class _Traffic:
    """Brings requests to an engine when they are due and notes when their tokens come."""

    def __init__(self, engine: Engine, target: LogTarget, clock: VirtualClock) -> None:
        self._engine, self._target, self._clock = engine, target, clock
        self._running: dict[RequestId, Completed] = {}

    def serve(
        self,
        served: Sequence[tuple[RequestId, LoggedRequest]],
        arrivals: Sequence[float],
        load: Load,
    ) -> list[Completed]:
        """Serve everything, to the end."""
        waiting = deque(zip(served, arrivals, strict=True))
        done: list[Completed] = []
        while waiting or self._running:
            if not self._running and waiting[0][1] > self._clock.now:
                self._clock.advance(waiting[0][1] - self._clock.now)
            while waiting and self._is_due(waiting[0][1], load):
                (request_id, logged), due = waiting.popleft()
                # In a closed loop a request comes when a seat is free.
                arrival = self._clock.now if load.rate is None else due
                self._running[request_id] = self._add(request_id, logged, arrival)
            done += self._step()
        return sorted(done, key=lambda one: int(one.job.id))

    def _is_due(self, arrival: float, load: Load) -> bool:
        if load.rate is None:
            return len(self._running) < load.concurrency
        return arrival <= self._clock.now

    def _add(self, request_id: RequestId, logged: LoggedRequest, arrival: float) -> Completed:
        params = logged.params
        self._target.outputs[request_id] = logged.output + logged.tail
        sequence = self._engine.add(Request(request_id, logged.prompt, params, seed=0))
        return Completed(Job(request_id, logged.domain, logged.prompt, params), arrival, sequence)

    def _step(self) -> list[Completed]:
        report = self._engine.step()
        done = []
        for each in report.rounds:
            self._running[each.request_id].rounds.append(each)
        for delta in report.deltas:
            one = self._running[delta.request_id]
            if delta.tokens:
                one.token_times.append(self._clock.now)
            if delta.finish is not None:
                done.append(self._running.pop(delta.request_id))
                del self._target.outputs[delta.request_id]
        return done
