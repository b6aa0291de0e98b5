"""Which drafter, length policy and limits to run, from acceptance, step costs, loads and targets.

A trace is simulated (see `whatif`), so latencies are 99th percentiles, and the length policy
`throughput` is among the candidates. A record of `eval` or `bench run` has no rounds: it is priced
by the arithmetic of `benefit`, and latencies are means. Uncertainty is that of the requests: they
are drawn again, with replacement.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np

from outrider.analysis.benefit import Regime
from outrider.analysis.bootstrap import Interval, Resamples
from outrider.analysis.estimate import Measured, table_regimes
from outrider.analysis.whatif import PLAIN, Load, Outcome, Scenario, Setting, simulate
from outrider.analysis.whatif_trace import Recorded, TraceDrafter
from outrider.core.step_cost import StepCostTable
from outrider.errors import ConfigError
from outrider.schedule.cost import StepCost

OFF, FIXED, THROUGHPUT = "off", "fixed", "throughput"
MILLISECONDS: Final = 1000.0
TAIL: Final = 99
RESAMPLES: Final = 1000
CLOSE: Final = 0.01
"""A simpler setting within this share of the best is preferred."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting. `length` is the longest draft, 0 for none."""

    drafter: str
    policy: str
    length: int

    @property
    def name(self) -> str:
        """How reports call it."""
        if self.policy == OFF:
            return "no drafts"
        suffix = "" if self.policy == FIXED else f", {self.policy}"
        return f"{self.drafter} {self.length}{suffix}"


NO_DRAFTS: Final = Candidate("", OFF, 0)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a candidate gives at one load. Times in milliseconds; None where nobody could tell."""

    candidate: Candidate
    concurrency: int
    throughput: float
    speedup: float
    interval: Interval | None
    tpot_ms: float | None
    ttft_ms: float | None


class Evidence(Protocol):
    """What is known of one drafter."""

    @property
    def drafter(self) -> str:
        """Its method."""
        ...

    @property
    def config(self) -> Mapping[str, Any] | None:
        """Its options, where they are known."""
        ...

    @property
    def statistic(self) -> str:
        """What its latencies are: p99 or mean."""
        ...

    def expect(self, concurrency: int) -> list[Expected]:
        """Give every candidate at one load, the one without drafts first."""
        ...


class TracedEvidence:
    """A trace, simulated at every length and with the throughput policy."""

    statistic = "p99"

    def __init__(
        self,
        record: Recorded,
        cost: StepCost,
        lengths: Sequence[int],
        setting: Setting,
        *,
        drafter: str,
    ) -> None:
        """Simulate `record` on `cost` at `lengths`, none beyond the recorded one."""
        self.drafter = drafter
        self.config: Mapping[str, Any] | None = None
        self._record, self._cost, self._setting = record, cost, setting
        longest = record.header.max_draft_len
        self._lengths = sorted({min(length, longest) for length in lengths})

    def expect(self, concurrency: int) -> list[Expected]:
        """See `Evidence`."""
        load = Load(concurrency)
        plain = self._run(NO_DRAFTS, load)
        candidates = [Candidate(self.drafter, FIXED, length) for length in self._lengths]
        candidates.append(Candidate(self.drafter, THROUGHPUT, self._lengths[-1]))
        runs = [(NO_DRAFTS, plain), *((each, self._run(each, load)) for each in candidates)]
        return [
            Expected(
                each,
                concurrency,
                run.throughput,
                run.throughput / plain.throughput,
                self._interval(plain, run),
                _tail([_time_per_token(one.token_times, len(one.tokens)) for one in run.outputs]),
                _tail([one.token_times[0] - one.arrival for one in run.outputs]),
            )
            for each, run in runs
        ]

    def _run(self, candidate: Candidate, load: Load) -> Outcome:
        if candidate.policy == OFF:
            scenario = Scenario(PLAIN, None, self._cost, OFF)
        else:
            scenario = Scenario(
                candidate.name,
                lambda served: TraceDrafter(self._record, served, candidate.length),
                self._cost,
                candidate.policy,
            )
        return simulate(self._record.requests, scenario, load, self._setting)

    def _interval(self, plain: Outcome, run: Outcome) -> Interval | None:
        """Of the ratio of all requests' times: in a closed loop that of the throughputs."""
        sums: list[defaultdict[int, float]] = [defaultdict(float), defaultdict(float)]
        for place, outcome in enumerate((plain, run)):
            for number, one in enumerate(outcome.outputs):
                sums[place][number % len(self._record.requests)] += one.seconds
        keys = sorted(sums[0])
        draws = Resamples.draw([""] * len(keys), num=RESAMPLES, seed=self._setting.seed)
        before, after = ([own[key] for key in keys] for own in sums)
        return draws.ratio(before, after)


def _time_per_token(times: Sequence[float], tokens: int) -> float | None:
    """None for an output of one delivery, whose pace nobody saw."""
    return (times[-1] - times[0]) / (tokens - 1) if len(times) > 1 else None


def _tail(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return MILLISECONDS * float(np.percentile(known, TAIL)) if known else None


@dataclass(frozen=True)
class CountedEvidence:
    """Counts of a record, priced by S(gamma) at each load.

    `accepted_at` and `rounds` have one entry per prompt, for the uncertainty; both may be empty.
    """

    drafter: str
    config: Mapping[str, Any] | None
    measured: Measured
    table: StepCostTable
    priced_as: str
    lengths: tuple[float, float]
    longest: int
    accepted_at: tuple[tuple[int, ...], ...] = ()
    rounds: tuple[int, ...] = ()
    statistic: str = "mean"

    def expect(self, concurrency: int) -> list[Expected]:
        """See `Evidence`."""
        prompt, output = self.lengths
        regime = table_regimes(
            self.table,
            [concurrency],
            context_len=round(prompt + output / 2),
            drafter=self.priced_as,
            lengths=self.lengths,
        )[0]
        cost = StepCost(self.table, self.priced_as)
        step = cost.step(concurrency, concurrency, prompt + output / 2)
        plain = concurrency / (step * (1 + regime.reading))
        first = cost.step(round(prompt) + concurrency - 1, concurrency, prompt / 2)
        limits = [self.longest, self.measured.model.max_draft_len, regime.max_draft_len]
        most = min(limit for limit in limits if limit is not None)
        found = []
        for length in range(most + 1):
            speedup = regime.speedup(self.measured.model, length)
            candidate = Candidate(self.drafter, FIXED, length) if length else NO_DRAFTS
            found.append(
                Expected(
                    candidate,
                    concurrency,
                    plain * speedup,
                    speedup,
                    self._interval(regime, speedup, length),
                    MILLISECONDS * concurrency / (plain * speedup),
                    MILLISECONDS * first,
                )
            )
        return found

    @cached_property
    def _draws(self) -> Resamples:
        return Resamples.draw([""] * len(self.rounds), num=RESAMPLES, seed=0)

    def _interval(self, regime: Regime, speedup: float, length: int) -> Interval | None:
        """That of tokens per round, carried through the speedup."""
        if not length or not self.rounds:
            return None
        tokens = [
            rounds + sum(own[:length])
            for rounds, own in zip(self.rounds, self.accepted_at, strict=True)
        ]
        found = self._draws.ratio(tokens, self.rounds)
        if found is None:
            return None
        mean = sum(tokens) / sum(self.rounds)
        x = regime.reading
        decoding = 1 / ((1 + x) / speedup - x)
        low, high = ((1 + x) / (mean / (decoding * bound) + x) for bound in found)
        return low, high


@dataclass(frozen=True, slots=True)
class Targets:
    """Most milliseconds to the first token and per token after it; None for any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        """Refuse what nothing can meet.

        Raises:
            ConfigError: A target is not above 0.
        """
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value}, but it is a time above 0")

    def met_by(self, one: Expected) -> bool:
        """Whether the latencies are within the targets; what nobody could tell is."""
        pairs = ((self.ttft_ms, one.ttft_ms), (self.tpot_ms, one.tpot_ms))
        return all(most is None or own is None or own <= most for most, own in pairs)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The chosen setting.

    `by_load` are its numbers, `plain` those without drafts, `unmet` the loads at which it misses
    the targets, and so does everything else. Whatever was chosen, `schedule` has the drafter's best
    fixed length at each load, and `single` is the best for all of them; 0 is not to draft.
    """

    choice: Candidate
    by_load: tuple[Expected, ...]
    plain: tuple[Expected, ...]
    gain: float
    interval: Interval | None
    unmet: tuple[int, ...]
    schedule: tuple[tuple[int, int], ...]
    single: int
    everything: tuple[Expected, ...]
    evidence: Evidence

    @property
    def limit(self) -> int | None:
        """Most requests at a time that meet the targets; None if not even the least load does."""
        fine = [one.concurrency for one in self.by_load if one.concurrency not in self.unmet]
        return max(fine, default=None)


def recommend(
    evidence: Sequence[Evidence], loads: Mapping[int, float], targets: Targets
) -> Recommendation:
    """Choose for `loads`: the share of all tokens that is served at so many requests at a time.

    Among the candidates that meet the targets at the most loads, the one of the highest tokens per
    second over the mix; of those that are close, the simplest.

    Raises:
        ConfigError: There is no load, or a share is not above 0.
    """
    if not loads or not all(0 < share < float("inf") for share in loads.values()):
        raise ConfigError(f"the loads are {dict(loads)}; each needs a share above 0")
    found: dict[Candidate, list[Expected]] = defaultdict(list)
    owner: dict[Candidate, Evidence] = {}
    for load in sorted(loads):
        for number, each in enumerate(evidence):
            for one in each.expect(load):
                if one.candidate == NO_DRAFTS and number:
                    continue
                found[one.candidate].append(one)
                owner.setdefault(one.candidate, each)
    # A table that ends early says nothing of long drafts at high loads.
    complete = {name: own for name, own in found.items() if len(own) == len(loads)}
    plain = complete[NO_DRAFTS]
    choice = _best(complete, loads, targets)
    own = complete[choice]
    unmet = tuple(
        load for place, load in enumerate(sorted(loads)) if not targets.met_by(own[place])
    )
    gains = {name: _over(each, plain, loads) for name, each in complete.items()}
    drafting = [name for name in complete if name != NO_DRAFTS]
    drafter = choice if choice != NO_DRAFTS else max(drafting, key=gains.__getitem__)
    fixed = [n for n in drafting if (n.drafter, n.policy) == (drafter.drafter, FIXED)]
    single = max([NO_DRAFTS, *fixed], key=gains.__getitem__)
    return Recommendation(
        choice,
        tuple(own),
        tuple(plain),
        _over(own, plain, loads),
        _interval_over(own, plain, loads),
        unmet,
        _schedule(found, drafter.drafter),
        single.length,
        tuple(one for each in found.values() for one in each),
        owner[drafter],
    )


def _best(
    complete: Mapping[Candidate, list[Expected]], loads: Mapping[int, float], targets: Targets
) -> Candidate:
    plain = complete[NO_DRAFTS]
    met = {name: sum(map(targets.met_by, own)) for name, own in complete.items()}
    most = max(met.values())
    gains = {n: _over(own, plain, loads) for n, own in complete.items() if met[n] == most}
    best = max(gains.values())
    close = [name for name, gain in gains.items() if gain >= best * (1 - CLOSE)]
    return min(close, key=lambda name: (_effort(name), -gains[name]))


def _effort(candidate: Candidate) -> int:
    """No drafts are simpler than fixed ones, and those than a policy with a table."""
    return (OFF, FIXED, THROUGHPUT).index(candidate.policy)


def _over(own: Sequence[Expected], plain: Sequence[Expected], loads: Mapping[int, float]) -> float:
    """Speedup over the mix: each share of the tokens takes its time."""
    return _seconds(plain, loads) / _seconds(own, loads)


def _seconds(own: Sequence[Expected], loads: Mapping[int, float]) -> float:
    return sum(loads[one.concurrency] / one.throughput for one in own)


def _interval_over(
    own: Sequence[Expected], plain: Sequence[Expected], loads: Mapping[int, float]
) -> Interval | None:
    """Of the mix: the loads see the same requests, so their bounds come together."""
    bounds = [one.interval for one in own]
    if any(bound is None for bound in bounds):
        return None
    low, high = (
        _seconds(plain, loads)
        / sum(
            loads[one.concurrency] / (base.throughput * bound[side])
            for one, base, bound in zip(own, plain, bounds, strict=True)
            if bound is not None
        )
        for side in (0, 1)
    )
    return low, high


def _schedule(
    found: Mapping[Candidate, list[Expected]], drafter: str
) -> tuple[tuple[int, int], ...]:
    """Best fixed length of the drafter by load."""
    best: dict[int, Expected] = {}
    for candidate, own in found.items():
        if candidate != NO_DRAFTS and (candidate.policy, candidate.drafter) != (FIXED, drafter):
            continue
        for one in own:
            before = best.get(one.concurrency)
            if before is None or one.throughput > before.throughput:
                best[one.concurrency] = one
    return tuple((load, best[load].candidate.length) for load in sorted(best))
