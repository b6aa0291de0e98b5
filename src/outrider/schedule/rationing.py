"""Who drafts at all: a request whose drafts do not pay for being made rests, and is probed again.

What a draft brings is known only after it was made, so the past decides: per request, a moving
average of the tokens its drafts were expected to gain (survival admitted, less what verifying them
cost) minus the tokens that the time for drafting would have given otherwise. A request below zero
rests; after a pause it drafts once more. Pauses double, up to a length at which probing costs
`PROBE_SHARE` of the time, and end at common steps, so that probes share a forward of the drafter.

A row costs more the more requests there are. So a request that rests is asked at once when half of
them have gone, and a new request rests until its first probe where, at such a load, drafts of the
others did not pay.

Nothing here looks at a draft before deciding to make it, so no verify rule is biased.
"""

from dataclasses import dataclass
from typing import Final

from outrider.core.ids import RequestId

PROBE_SHARE: Final = 0.005
"""Part of a request's time that drafts made only to look may take."""
SHORTEST_PAUSE: Final = 2
FIRST_PAUSE: Final = 8
"""Of a new request where others rest."""
LONGEST_PAUSE: Final = 64
LEAST_EVIDENCE: Final = 3
MOST_EVIDENCE: Final = 64
EVIDENCE_COST: Final = 0.3
"""Tokens that a request's drafts may cost before it is sent to rest: from how many drafts that is,
within the bounds above. Drafts that cost little have time to show a gain that comes seldom."""
WEIGHT: Final = 0.2
"""Of the newest draft in the moving average, at most: one in as many as are evidence."""
COMMON_WEIGHT: Final = 0.02
"""The same for the average over all requests."""
COMMON_EVIDENCE: Final = 16
"""Drafts at a load before they say anything about a new request."""


@dataclass(slots=True)
class _Record:
    """What drafting was worth to one request, in tokens per round.

    `load` is the number of requests when it was sent to rest.
    """

    net: float = 0.0
    num_drafts: int = 0
    pause: int = 1
    rests_until: int = 0
    load: int = 0


@dataclass(slots=True)
class _Common:
    """What drafting was worth to all requests at loads alike, and its cost."""

    net: float = 0.0
    cost: float = 0.0
    num_drafts: int = 0

    def learn(self, net: float, cost: float) -> None:
        self.num_drafts += 1
        weight = max(COMMON_WEIGHT, 1 / self.num_drafts)
        self.net += (net - self.net) * weight
        self.cost += (cost - self.cost) * weight

    @property
    def is_bad(self) -> bool:
        return self.num_drafts >= COMMON_EVIDENCE and self.net < 0


class Rationing:
    """Decides per request and step; forgets with the request."""

    def __init__(self) -> None:
        """Let everybody draft."""
        self._records: dict[RequestId, _Record] = {}
        self._common: dict[int, _Common] = {}
        self._step = 0
        self._load = 1

    def begin_step(self, num_requests: int) -> None:
        """Count a step of so many requests; pauses are measured in steps."""
        self._step += 1
        self._load = num_requests

    def may_draft(self, request_id: RequestId) -> bool:
        """Whether the request should draft in this step."""
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = self._new_record()
        return not self._rests(record)

    @property
    def num_resting(self) -> int:
        """Requests that would not draft now."""
        return sum(map(self._rests, self._records.values()))

    def learn(self, request_id: RequestId, gain: float, cost: float) -> None:
        """Hear what a draft was worth: tokens it is expected to gain, tokens its making cost."""
        record = self._records.setdefault(request_id, _Record())
        record.num_drafts += 1
        net, evidence = gain - cost, _evidence(cost)
        self._alike().learn(net, cost)
        if record.pause > 1 and net > 0:
            # A probe that pays ends the rest at once; the average starts again.
            record.net, record.pause = net, 1
        else:
            weight = max(min(WEIGHT, 1 / evidence), 1 / record.num_drafts)
            record.net += (net - record.net) * weight
        if record.net < 0 and record.num_drafts >= evidence:
            if record.pause < _longest_pause(cost):
                record.pause *= 2
            self._send_to_rest(record)

    def forget(self, request_id: RequestId) -> None:
        """Drop the request; harmless when it is not there."""
        self._records.pop(request_id, None)

    def _rests(self, record: _Record) -> bool:
        return self._step < record.rests_until and 2 * self._load > record.load

    def _alike(self) -> _Common:
        return self._common.setdefault(self._load.bit_length(), _Common())

    def _new_record(self) -> _Record:
        common = self._alike()
        if not common.is_bad:
            return _Record()
        pause = SHORTEST_PAUSE
        while pause < min(FIRST_PAUSE, _longest_pause(common.cost)):
            pause *= 2
        record = _Record(num_drafts=_evidence(common.cost), pause=pause)
        self._send_to_rest(record)
        return record

    def _send_to_rest(self, record: _Record) -> None:
        record.load = self._load
        record.rests_until = (self._step // record.pause + 1) * record.pause


def _evidence(cost: float) -> int:
    """How many drafts at this cost a request may make before it is sent to rest."""
    if cost * MOST_EVIDENCE <= EVIDENCE_COST:
        return MOST_EVIDENCE
    return max(LEAST_EVIDENCE, round(EVIDENCE_COST / cost))


def _longest_pause(cost: float) -> float:
    return min(max(cost / PROBE_SHARE, SHORTEST_PAUSE), LONGEST_PAUSE)
