"""Who drafts at all: a request whose drafts do not pay for being made rests, and is probed again.

What a draft brings is known only after it was made, so the past decides: per request, a moving
average of the tokens its drafts were expected to gain (survival admitted, less what verifying them
cost) minus the tokens that the time for drafting would have given otherwise. A request below zero
rests; after a pause it drafts once more. Pauses double, up to a length at which probing costs
`PROBE_SHARE` of the time, and end at common steps, so that probes share a forward of the drafter.

Nothing here looks at a draft before deciding to make it, so no verify rule is biased.
"""

from dataclasses import dataclass
from typing import Final

from outrider.core.ids import RequestId

PROBE_SHARE: Final = 0.005
"""Part of a request's time that drafts made only to look may take."""
SHORTEST_PAUSE: Final = 2
LONGEST_PAUSE: Final = 64
EVIDENCE: Final = 3
"""Drafts of a request before it may be sent to rest."""
WEIGHT: Final = 0.2
"""Of the newest draft in the moving average."""


@dataclass(slots=True)
class _Record:
    """What drafting was worth to one request, in tokens per round."""

    net: float = 0.0
    num_drafts: int = 0
    pause: int = 1
    rests_until: int = 0


class Rationing:
    """Decides per request and step; forgets with the request."""

    def __init__(self) -> None:
        """Let everybody draft."""
        self._records: dict[RequestId, _Record] = {}
        self._step = 0

    def begin_step(self) -> None:
        """Count a step; pauses are measured in them."""
        self._step += 1

    def may_draft(self, request_id: RequestId) -> bool:
        """Whether the request should draft in this step."""
        record = self._records.get(request_id)
        return record is None or self._step >= record.rests_until

    @property
    def num_resting(self) -> int:
        """Requests that would not draft now."""
        return sum(self._step < record.rests_until for record in self._records.values())

    def learn(self, request_id: RequestId, gain: float, cost: float) -> None:
        """Hear what a draft was worth: tokens it is expected to gain, tokens its making cost."""
        record = self._records.setdefault(request_id, _Record())
        record.num_drafts += 1
        net = gain - cost
        if record.pause > 1 and net > 0:
            # A probe that pays ends the rest at once; the average starts again.
            record.net, record.pause = net, 1
        else:
            record.net += (net - record.net) * max(WEIGHT, 1 / record.num_drafts)
        if record.net < 0 and record.num_drafts >= EVIDENCE:
            longest = min(max(cost / PROBE_SHARE, SHORTEST_PAUSE), LONGEST_PAUSE)
            if record.pause < longest:
                record.pause *= 2
            record.rests_until = (self._step // record.pause + 1) * record.pause

    def forget(self, request_id: RequestId) -> None:
        """Drop the request; harmless when it is not there."""
        self._records.pop(request_id, None)
