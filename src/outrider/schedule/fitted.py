"""Chances by what was fitted: a drafter's confidence and all other evidence, in one log-odds.

Nothing here looks ahead: a chance depends on its token's source and confidence, on the tokens and
confidences before it, and on earlier rounds. What was verified is remembered in two ways: each
request keeps a record of which sources its text came from, and each source, by texture of the text,
an offset that follows how often its tokens are accepted here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from outrider.core.calibration import EDGE, NO_EFFECT, UNTOUCHED, Effect, SourceFit
from outrider.core.evidence import (
    ALWAYS,
    Place,
    Record,
    Row,
    evidence_of,
    places_of,
    row_of,
)
from outrider.core.ids import RequestId
from outrider.core.reading import Reading

RATE: Final = 0.01
"""How far an offset moves with every token, in log-odds per unit of error."""
MOST: Final = 1.0
"""No offset grows beyond this."""
LAST_POSITION: Final = 7
"""Effects do not grow with the position from here on."""

TINY: Final = 1e-300
"""Stands for a survival that is too small for a number."""
FARTHEST: Final = -30.0
"""Log-odds below which chances are not told apart."""
LOWEST: Final = EDGE
HIGHEST: Final = 1 - EDGE
"""Confidences beyond these have the log-odds of these."""


class Fitted:
    """The chances of one kind of requests."""

    def __init__(self, sources: Mapping[str, SourceFit], *, learns: bool = True) -> None:
        """Start from what was fitted for each source; others keep their confidences.

        Offsets are only learnt if it `learns`; records of requests are evidence and always kept.
        """
        self._sources, self._learns = sources, learns
        self._of_place: dict[tuple[str, Place], Effect] = {}
        self._of_row: dict[tuple[str, Row], Effect] = {}
        self._offsets: dict[tuple[str, str], float] = {}
        self._records: dict[RequestId, Record] = {}

    def chances(
        self,
        request_id: RequestId,
        confidence: Sequence[float],
        sources: Sequence[str],
        reading: Reading | None,
        num_output: int,
    ) -> list[float]:
        """Give the chance of each draft token, if all before it are accepted."""
        row = row_of(reading, num_output)
        record = self._records.get(request_id)
        shares = {} if record is None else record.shares()
        bases: dict[str, tuple[float, float, float]] = {}
        chances = []
        places = places_of(confidence, sources, reading)
        for position, (own, source, place) in enumerate(
            zip(confidence, sources, places, strict=True)
        ):
            base = bases.get(source)
            if base is None:
                base = bases[source] = self._base(source, row, shares)
            here = self._of_place.get((source, place))
            if here is None:
                here = self._of_place[source, place] = self._sum(source, evidence_of(place))
            inside = LOWEST if own < LOWEST else HIGHEST if own > HIGHEST else own
            slope, shift, growth = here
            slope += base[0]
            grown = position if position < LAST_POSITION else LAST_POSITION
            value = shift + base[1] + (growth + base[2]) * grown
            if slope > 0:
                value += slope * math.log(inside / (1 - inside))
            chances.append(1 / (1 + math.exp(-(value if value > FARTHEST else FARTHEST))))
        return chances

    def learn(
        self,
        request_id: RequestId,
        survival: Sequence[float],
        sources: Sequence[str],
        reading: Reading | None,
        verified: int,
        accepted: int,
    ) -> None:
        """Learn from a draft with this survival, of which so many tokens were verified, or none."""
        texture = "" if reading is None else reading.texture
        before = 1.0
        for place in range(min(verified, accepted + 1) if self._learns else 0):
            key = sources[place], texture
            error = (place < accepted) - survival[place] / max(before, TINY)
            moved = self._offsets.get(key, 0.0) + RATE * error
            self._offsets[key] = max(-MOST, min(MOST, moved))
            before = survival[place]
        rest: Sequence[float] = ()
        if accepted == verified:
            reached = max(survival[verified - 1], TINY) if verified else 1.0
            rest = [each / reached for each in survival[verified:]]
        self._records.setdefault(request_id, Record()).add(sources, accepted, rest)

    def forget(self, request_id: RequestId) -> None:
        """Drop a request's record; harmless when there is none."""
        self._records.pop(request_id, None)

    def _base(
        self, source: str, row: Row, shares: Mapping[str, float]
    ) -> tuple[float, float, float]:
        """Add up what holds for every token of a row from one source."""
        found = self._of_row.get((source, row))
        if found is None:
            is_known = source in self._sources
            found = self._sum(source, (ALWAYS, *row.evidence())) if is_known else UNTOUCHED
            self._of_row[source, row] = found
        slope, shift, growth = found
        shift += self._offsets.get((source, row.texture), 0.0)
        if shares and source in self._sources:
            by_share = self._sources[source].by_share
            for name, share in shares.items():
                own_slope, own_shift, own_growth = by_share.get(name, NO_EFFECT)
                slope += share * own_slope
                shift += share * own_shift
                growth += share * own_growth
        return slope, shift, growth

    def _sum(self, source: str, names: Sequence[str]) -> Effect:
        """Add up the effects of evidence on the tokens of a source."""
        own = self._sources.get(source, SourceFit()).effects
        return Effect(*map(sum, zip(*(own.get(name, NO_EFFECT) for name in names), strict=True)))
