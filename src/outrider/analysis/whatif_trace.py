"""Traces as logs: what a drafter of any kind would have had accepted at other lengths.

A trace has no text, but it says at which output positions drafts began and how far they held. A
draft that begins where a recorded one began is that draft, and is exact. One that begins inside a
recorded draft is taken for the rest of it: at the recorded rejection it is rejected as well, and a
draft that held to its end, cut by the longest length, goes on with the next recorded one, its
unseen token accepted at the rate seen at that position.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Final

from outrider.analysis.whatif_clock import LoggedRequest
from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import VerifyRule
from outrider.core.rounds import Round
from outrider.core.step_cost import BatchTimings, StepCostTable, Timing
from outrider.core.trace import StepTrace, TraceHeader, read_trace
from outrider.errors import ConfigError
from outrider.sampling.noise import Purpose, uniform
from outrider.schedule.cost import StepCost
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps

WRONG, RIGHT, LAST = 0, 1, 2
"""Stand-ins for tokens: drafts are right or wrong, and the last of an ended output is a stop."""
UNSEEN: Final = 0.5


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, taken apart into requests; `rounds[i]` belong to `requests[i]`, in order."""

    header: TraceHeader
    requests: tuple[LoggedRequest, ...]
    rounds: tuple[tuple[Round, ...], ...]
    steps: tuple[StepTrace, ...]

    @property
    def conditional_rates(self) -> list[float]:
        """How often a draft token held once those before it did, by position."""
        counts = Acceptance()
        for each in chain.from_iterable(self.rounds):
            counts.record(
                drafted=each.drafted,
                verified=each.verified,
                accepted=each.accepted,
                delivered=each.delivered,
            )
        return [rate if rate == rate else 0.0 for rate in counts.conditional_accept_rates]

    @property
    def num_cut(self) -> int:
        """Rounds whose draft was cut although all that was verified held."""
        return sum(
            each.accepted == each.verified < each.drafted
            for each in chain.from_iterable(self.rounds)
        )


def recorded(lines: Iterable[str], source: str) -> Recorded:
    """Read a trace.

    Raises:
        ConfigError: It cannot be read, or has no request from its beginning on.
    """
    header, stepped = read_trace(lines, source)
    steps = tuple(stepped)
    rounds: dict[tuple[RequestId, int], list[Round]] = {}
    prompts: dict[tuple[RequestId, int], int] = {}
    turns: defaultdict[RequestId, int] = defaultdict(int)
    read = 0.0
    for step in steps:
        known = step.num_tokens - sum(each.verified for each in step.rounds)
        begun = [each for each in step.rounds if each.num_output == 0]
        # What is not one token per running request was read from prompts.
        read += known - (len(step.rounds) - len(begun))
        for each in step.rounds:
            turns[each.request_id] += each.num_output == 0
            key = (each.request_id, turns[each.request_id])
            if each.num_output == 0:
                prompts[key] = max(1, round(read / len(begun)))
            if key in prompts:
                rounds.setdefault(key, []).append(each)
        read = 0.0 if begun else read
    if not rounds:
        raise ConfigError(f"{source} has no request from its beginning on; record a whole run")
    requests = tuple(
        _request(f"{name}.{turn}", prompts[name, turn], own) for (name, turn), own in rounds.items()
    )
    return Recorded(header, requests, tuple(map(tuple, rounds.values())), steps)


def _request(name: str, prompt_len: int, rounds: Sequence[Round]) -> LoggedRequest:
    length = rounds[-1].num_output + rounds[-1].delivered
    most = max(each.num_output + each.drafted + 1 for each in rounds)
    is_ended = most > length
    output = (RIGHT,) * (length - is_ended) + (LAST,) * is_ended
    tail = (RIGHT,) * max(0, most - length)
    return LoggedRequest(name, "", (RIGHT,) * prompt_len, output, max(most, length), tail)


class TraceDrafter:
    """Says again what a trace says was said; see the module."""

    taps: Taps = ()

    def __init__(
        self,
        record: Recorded,
        served: Sequence[tuple[RequestId, LoggedRequest]],
        max_draft_len: int,
        *,
        seed: int = 0,
    ) -> None:
        """Draft for `served`, whose requests are those of `record`."""
        self.max_draft_len = max_draft_len
        place = {request.id: index for index, request in enumerate(record.requests)}
        self._index = {name: place[request.id] for name, request in served}
        self._rounds = record.rounds
        self._starts = [[each.num_output for each in own] for own in record.rounds]
        self._outputs = [request.output for request in record.requests]
        self._recorded_len = record.header.max_draft_len
        self._rates = record.conditional_rates
        self._seed = seed

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """See `Drafter`."""
        assert rule == "matching", "the recorded verdicts are those of equality"
        return Proposal(
            tuple(self._row(row) if row.max_draft_len else NO_PROPOSAL for row in batch)
        )

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Learn nothing."""

    def forget(self, request_id: RequestId) -> None:
        """Keep nothing."""

    def _row(self, row: BatchRow) -> RowProposal:
        index = self._index[row.sequence.id]
        start = row.sequence.num_output
        number = bisect_right(self._starts[index], start) - 1
        draft = _Draft([], [], [])
        position = start
        while number >= 0:
            one = self._rounds[index][number]
            draft.take(one, position - one.num_output)
            end = one.num_output + one.verified
            goes_on = (
                one.accepted == one.verified == self._recorded_len
                and number + 1 < len(self._rounds[index])
                and len(draft.holds) < row.max_draft_len
            )
            if not goes_on:
                break
            place = min(end - start, len(self._rates) - 1)
            chance = self._rates[place] if self._rates else 0.0
            draws = uniform(self._seed, Purpose.DRAFT, index, end)
            draft.add(holds=draws < chance, confidence=chance, source=None)
            if draws >= chance:
                break
            number += 1
            position = end + 1
        return draft.proposal(self._outputs[index][start:], row.max_draft_len)


@dataclass(slots=True)
class _Draft:
    """A draft made of pieces of recorded ones."""

    holds: list[bool]
    confidence: list[float | None]
    sources: list[str | None]

    def add(self, *, holds: bool, confidence: float | None, source: str | None) -> None:
        self.holds.append(holds)
        self.confidence.append(confidence)
        self.sources.append(source)

    def take(self, one: Round, first: int) -> None:
        """Add what the round verified, from its draft token `first` on."""
        length = one.verified if one.accepted == one.verified else one.drafted
        for place in range(first, length):
            confidence = source = None
            if one.confidence is not None:
                confidence = one.confidence[min(place, len(one.confidence) - 1)]
            if one.sources is not None:
                source = one.sources[min(place, len(one.sources) - 1)]
            self.add(holds=place < one.accepted, confidence=confidence, source=source)

    def proposal(self, coming: Sequence[int], most: int) -> RowProposal:
        """Put stand-ins for tokens in: what comes where the draft holds, a wrong one elsewhere."""
        length = min(most, len(self.holds))
        if not length:
            return NO_PROPOSAL
        tokens = [
            (coming[place] if place < len(coming) else RIGHT) if self.holds[place] else WRONG
            for place in range(length)
        ]
        confidence = sources = None
        if any(each is not None for each in self.confidence):
            confidence = tuple(UNSEEN if c is None else c for c in self.confidence[:length])
        if any(each is not None for each in self.sources):
            sources = tuple(each or "unseen" for each in self.sources[:length])
        return RowProposal(tuple(tokens), None, confidence, sources)


@dataclass(frozen=True, slots=True)
class Fit:
    """A table that takes, for the steps of a trace, as long in all as they took.

    `rest` and `drafting` are what it was multiplied by; `drafting` is None where the drafting costs
    are the trace's own, because the table had none.
    """

    table: StepCostTable
    rest: float
    drafting: float | None


def fitted(table: StepCostTable, drafter: str | None, steps: Sequence[StepTrace]) -> Fit:
    """Scale a table to a trace.

    Raises:
        ConfigError: The trace has no times.
    """
    cost = StepCost(table, drafter)
    judged = [step for step in steps if step.rounds]
    rest = sum(step.times.total - step.times.draft for step in judged)
    told = sum(cost.step(step.num_tokens, len(step.rounds), step.context_len) for step in judged)
    if not (rest > 0 and told > 0):
        raise ConfigError("the trace says of no step how long it took, so no cost can be fitted")
    scale = rest / told
    drafted = [step for step in judged if any(each.drafted for each in step.rounds)]
    seconds = sum(step.times.draft for step in judged)
    told = sum(cost.drafting(len(step.rounds)) for step in drafted)
    name = drafter or ""
    own = _scaled(table.drafting[name], seconds / told) if told > 0 else _drafting_of(drafted)
    changed = replace(
        table,
        forward=tuple(tuple(_times(each, scale) for each in by) for by in table.forward),
        host=_scaled(table.host, scale),
        drafting={**table.drafting, name: own},
    )
    return Fit(changed, scale, seconds / told if told > 0 else None)


def _times(timing: Timing, factor: float) -> Timing:
    fastest = None if timing.fastest is None else timing.fastest * factor
    return Timing(timing.seconds * factor, timing.spread * factor, timing.count, fastest)


def _scaled(timings: BatchTimings, factor: float) -> BatchTimings:
    return tuple((batch, _times(own, factor)) for batch, own in timings)


def _drafting_of(steps: Sequence[StepTrace]) -> BatchTimings:
    """Mean seconds of drafting by number of requests."""
    by_batch: defaultdict[int, list[float]] = defaultdict(list)
    for step in steps:
        by_batch[len(step.rounds)].append(step.times.draft)
    return tuple(
        (batch, Timing(fmean(own), 0.0, len(own))) for batch, own in sorted(by_batch.items())
    )
