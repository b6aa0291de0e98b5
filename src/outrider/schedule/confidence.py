"""From what a drafter says of its tokens to the chance that they are accepted, learning online.

A drafter may give a confidence per token, calibrated or not, or none at all. What was verified
corrects it: tokens of one source that got similar confidences are counted together, over all
positions and for each position, and the counts outweigh what the drafter said as they grow. Old
counts fade, so a change of text is followed and a class that is no longer verified returns to what
the drafter says of it.

Only tokens whose predecessors were all accepted are counted: the estimate is conditional, and so
it does not matter how far a length policy lets drafts be verified.

Where a calibration knows the effects of other evidence, `schedule.fitted` takes the place of all
this, for the kinds of requests that it was fitted for.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Final

from outrider.core.calibration import Calibration, log_odds
from outrider.core.ids import RequestId
from outrider.core.reading import Reading
from outrider.schedule.fitted import Fitted

logger = logging.getLogger(__name__)

LEVELS: Final = 256
"""Confidences are rounded to one in this many."""
UNKNOWN: Final = 0.5
"""Stands for the confidence of a drafter that gives none, until its tokens were counted."""
PRIOR: Final = 6.0
"""Tokens that what the drafter says is worth, against counts over all positions."""
POOLED_PRIOR: Final = 20.0
"""Tokens that counts over all positions are worth, against those of one position."""
MEMORY: Final = 0.998
"""What a count keeps of itself with every token counted."""
LAST_POSITION: Final = 7
"""Positions from this on are counted together."""
_CLASSES_PER_LOGIT: Final = 1.5
_BINS: Final = [
    round((log_odds(level / LEVELS) - log_odds(0.0)) * _CLASSES_PER_LOGIT)
    for level in range(LEVELS + 1)
]
_NUM_BINS: Final = _BINS[-1] + 1
_FIRST_LEVEL: Final = [
    next((level for level in range(LEVELS + 1) if _BINS[level] >= group), LEVELS + 1)
    for group in range(_NUM_BINS + 1)
]
_UNKNOWN_LEVEL: Final = round(UNKNOWN * LEVELS)
_STALE: Final = -1.0


@dataclass(slots=True)
class _Counts:
    """Of tokens alike, how many were reached and accepted; both fade."""

    reached: float = 0.0
    accepted: float = 0.0

    def add(self, *, accepted: bool) -> None:
        self.reached = MEMORY * self.reached + 1
        self.accepted = MEMORY * self.accepted + accepted

    def posterior(self, prior: float, weight: float) -> float:
        return (weight * prior + self.accepted) / (weight + self.reached)


@dataclass(slots=True)
class _Source:
    """Counts and prior of one source of draft tokens, per position and class of confidence.

    `values[position][level]` is the current estimate, `_STALE` until it is asked for again.
    """

    priors: list[list[float]]
    pooled: list[_Counts] = field(default_factory=lambda: [_Counts() for _ in range(_NUM_BINS)])
    counts: list[list[_Counts]] = field(
        default_factory=lambda: [
            [_Counts() for _ in range(_NUM_BINS)] for _ in range(LAST_POSITION + 1)
        ]
    )
    values: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = [list(own) for own in self.priors]

    def learn(self, position: int, level: int, *, accepted: bool) -> None:
        group = _BINS[level]
        self.pooled[group].add(accepted=accepted)
        self.counts[position][group].add(accepted=accepted)
        first, last = _FIRST_LEVEL[group], _FIRST_LEVEL[group + 1]
        for values in self.values:
            values[first:last] = [_STALE] * (last - first)

    def refresh(self, position: int, level: int) -> float:
        group = _BINS[level]
        shared = self.pooled[group].posterior(self.priors[position][level], PRIOR)
        value = self.counts[position][group].posterior(shared, POOLED_PRIOR)
        self.values[position][level] = value
        return value


@dataclass(frozen=True, slots=True)
class Said:
    """What a drafter says of the draft of one row.

    `kind` tells apart what cannot share counts: greedy, matching, rejection. `sources` names the
    source of each token where a drafter has several. `reading` is of the text around the draft, and
    `num_output` the number of output tokens before it.
    """

    num_drafted: int
    confidence: Sequence[float] | None
    kind: str = "greedy"
    sources: Sequence[str] | None = None
    reading: Reading | None = None
    num_output: int = 0


ANYBODY: Final = RequestId("")


class Estimator:
    """Estimates survival and learns from verdicts."""

    def __init__(self, calibration: Calibration | None = None, *, learns: bool = True) -> None:
        """Start from `calibration`, else from what the drafter says; correct it if it `learns`."""
        self._learns = learns
        self._calibration = calibration
        self._sources: dict[tuple[str, str], _Source] = {}
        self._fitted: dict[str, Fitted] = {}
        if calibration is not None:
            for kind, sources in calibration.kinds.items():
                if any(own.effects for own in sources.values()):
                    self._fitted[kind] = Fitted(sources, learns=learns)
        self._has_warned = False

    def survival(self, said: Said, request_id: RequestId = ANYBODY) -> list[float]:
        """Give the survival of every token of a draft: non-increasing, within [0, 1]."""
        if not said.num_drafted:
            return []
        chances = self._fitted_chances(said, request_id)
        if chances is not None:
            return list(accumulate(chances, mul))
        sources = said.sources
        source = self._source(said.kind, "" if sources is None else sources[0])
        running, survival = 1.0, []
        for place, level in enumerate(self._levels(said)):
            if sources is not None:
                source = self._source(said.kind, sources[place])
            position = place if place < LAST_POSITION else LAST_POSITION
            chance = source.values[position][level]
            running *= chance if chance >= 0 else source.refresh(position, level)
            survival.append(running)
        return survival

    def learn(
        self,
        said: Said,
        verified: int,
        accepted: int,
        request_id: RequestId = ANYBODY,
        survival: Sequence[float] | None = None,
    ) -> None:
        """Count the tokens of a draft whose predecessors were all accepted.

        `survival` is what was estimated of it; None estimates again.
        """
        fitted, own = self._fitted.get(said.kind), said.confidence
        if fitted is not None and own is not None and _are_chances(own, said.num_drafted):
            survival = self.survival(said, request_id) if survival is None else survival
            fitted.learn(request_id, survival, _sources(said), said.reading, verified, accepted)
            return
        if not self._learns or not verified:
            return
        levels = self._levels(said)
        for position in range(min(verified, accepted + 1)):
            source = "" if said.sources is None else said.sources[position]
            self._source(said.kind, source).learn(
                min(position, LAST_POSITION), levels[position], accepted=position < accepted
            )

    def forget(self, request_id: RequestId) -> None:
        """Drop what is known of a request; harmless when there is nothing."""
        for fitted in self._fitted.values():
            fitted.forget(request_id)

    def _fitted_chances(self, said: Said, request_id: RequestId) -> list[float] | None:
        """Give the chances by what was fitted; None where that is nothing or says nothing."""
        fitted = self._fitted.get(said.kind)
        own = said.confidence
        if fitted is None or own is None or not _are_chances(own, said.num_drafted):
            return None
        return fitted.chances(request_id, own, _sources(said), said.reading, said.num_output)

    def _levels(self, said: Said) -> list[int]:
        if said.confidence is None or not said.num_drafted:
            return [_UNKNOWN_LEVEL] * said.num_drafted
        try:
            levels = [int(chance * LEVELS + 0.5) for chance in said.confidence]
        except (ValueError, OverflowError):  # NaN or infinite.
            return self._refuse(said)
        if len(levels) != said.num_drafted or min(levels) < 0 or max(levels) > LEVELS:
            return self._refuse(said)
        return levels

    def _refuse(self, said: Said) -> list[int]:
        """Go on without a confidence that is none; say so once."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the drafter gave %r as confidence of %d draft tokens, but each must have a number "
                "within [0, 1]; drafts like this are judged by how often drafts are accepted",
                said.confidence,
                said.num_drafted,
            )
        return [_UNKNOWN_LEVEL] * said.num_drafted

    def _source(self, kind: str, name: str) -> _Source:
        source = self._sources.get((kind, name))
        if source is None:
            source = self._sources[kind, name] = _Source(self._priors(kind, name))
        return source

    def _priors(self, kind: str, name: str) -> list[list[float]]:
        raw = [level / LEVELS for level in range(LEVELS + 1)]
        if self._calibration is None:
            return [raw] * (LAST_POSITION + 1)
        return [
            list(map(self._calibration.curve(kind, name, position), raw))
            for position in range(LAST_POSITION + 1)
        ]


def _sources(said: Said) -> Sequence[str]:
    return said.sources or ("",) * said.num_drafted


def _are_chances(confidence: Sequence[float], num_drafted: int) -> bool:
    """Whether there is a number within [0, 1] for every token; a sum with a NaN is one."""
    if len(confidence) != num_drafted or math.isnan(sum(confidence)):
        return False
    return min(confidence) >= 0 and max(confidence) <= 1


class Drift:
    """A live gauge: how much more drafts were predicted to be accepted than were.

    `gap` is predicted minus observed accepted tokens per verified draft token, over roughly the
    last thousand; positive is too confident.
    """

    MEMORY: Final = 0.999
    ENOUGH: Final = 200.0
    BAD: Final = 0.15
    GOOD: Final = 0.08

    def __init__(self) -> None:
        """Start without an opinion."""
        self._verified = 0.0
        self._excess = 0.0
        self.is_bad = False
        """Whether estimates should not be trusted; with a margin between coming and going."""

    @property
    def gap(self) -> float:
        """NaN before the first verified draft token."""
        return self._excess / self._verified if self._verified else math.nan

    def add(self, survival: Sequence[float], verified: int, accepted: int) -> None:
        """Count one draft of which `verified` tokens were sent to the target."""
        if not verified:
            return
        keep = self.MEMORY**verified
        self._verified = keep * self._verified + verified
        self._excess = keep * self._excess + sum(survival[:verified]) - accepted
        if self._verified >= self.ENOUGH:
            self.is_bad = abs(self.gap) > (self.GOOD if self.is_bad else self.BAD)


class PositionRates:
    """How often drafts were accepted up to each position, whatever their confidence."""

    def __init__(self) -> None:
        """Start without counts."""
        self._counts: list[_Counts] = []

    def add(self, verified: int, accepted: int) -> None:
        """Count one draft of which `verified` tokens were sent to the target."""
        while len(self._counts) < verified:
            self._counts.append(_Counts())
        for position in range(verified):
            self._counts[position].add(accepted=position < accepted)

    def __len__(self) -> int:
        """Positions that were ever verified."""
        return len(self._counts)

    def survival(self) -> list[float]:
        """Give the observed survival of each position, with a doubt that fades."""
        return [counts.posterior(0.0, 1.0) for counts in self._counts]
