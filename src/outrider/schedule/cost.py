"""Step cost tables made usable: checked for faults, smoothed, interpolated.

Medians are believed unless many of them spread or more rows seem far faster than fewer: then other
work has slowed measurements down, and the fastest times are the ones that can be compared.

Between measured rows and contexts the cost is a straight line; beyond the last ones it goes on with
the slope of their upper half, and `is_extrapolated` says so.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Final

from outrider.core.step_cost import BatchTimings, StepCostTable, Timing

# A spread above this share of the median makes a point noisy. From this share of noisy points on
# the fastest times are used, which takes this many measurements of each.
NOISY: Final = 0.25
MOST_NOISY_POINTS: Final = 0.25
ENOUGH_FOR_FASTEST: Final = 5
# More rows that are faster by this share are noise and are smoothed away; by the second share, the
# measurement was disturbed.
DROP: Final = 0.05
DISTURBED: Final = 0.3
# A table over this range of rows must rise by this share, or the rows were not what was timed.
FLAT_RANGE: Final = 16
FLAT: Final = 0.02
FEWEST_POINTS: Final = 4
# Contexts are rounded to this before a curve is made for them.
CONTEXT_STEP: Final = 32


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a table; a fatal one makes it worse than no table."""

    kind: str
    sentence: str
    is_fatal: bool


def faults_of(table: StepCostTable) -> list[Fault]:
    """Look for what would mislead a length policy."""
    faults = _truncation(table)
    for context, timings in zip(table.contexts, table.forward, strict=True):
        where = f"at context {context}"
        faults += _noise(table.rows, timings, where)
        seconds = believed(timings)
        faults += _drops(table.rows, seconds, where)
        faults += _flatness(table.rows, seconds, where)
    return faults


def believed(timings: Sequence[Timing]) -> list[float]:
    """Give the seconds that are believed: medians, or the fastest where those were disturbed."""
    medians = [own.seconds for own in timings]
    if _num_noisy(timings) <= MOST_NOISY_POINTS * len(timings) and not _fall(medians):
        return medians
    return [own.seconds if own.fastest is None else own.fastest for own in timings]


def _fall(seconds: Sequence[float]) -> bool:
    """Whether more rows took far less time than fewer."""
    slowest = accumulate(seconds, max)
    return any(own < most * (1 - DISTURBED) for own, most in zip(seconds, slowest, strict=True))


def _num_noisy(timings: Sequence[Timing]) -> int:
    return sum(own.spread > NOISY * own.seconds for own in timings)


def _truncation(table: StepCostTable) -> list[Fault]:
    if len(table.rows) < FEWEST_POINTS or table.rows[0] != 1 or not table.host:
        sentence = (
            f"rows {list(table.rows)} were measured, but a table starts at 1 row, has at least "
            f"{FEWEST_POINTS} sizes and says what a step costs besides the forward"
        )
        return [Fault("truncated", sentence, is_fatal=True)]
    return []


def _noise(rows: Sequence[int], timings: Sequence[Timing], where: str) -> list[Fault]:
    noisy = [n for n, own in zip(rows, timings, strict=True) if own.spread > NOISY * own.seconds]
    if not noisy:
        return []
    is_many = _num_noisy(timings) > MOST_NOISY_POINTS * len(timings)
    has_fastest = all(
        own.fastest is not None and own.count >= ENOUGH_FOR_FASTEST for own in timings
    )
    remedy = "; the fastest times stand for them" if is_many and has_fastest else ""
    sentence = (
        f"{where} the times of {noisy} rows spread by more than {NOISY:.0%} of their median{remedy}"
    )
    return [Fault("noisy", sentence, is_fatal=is_many and not has_fastest)]


def _drops(rows: Sequence[int], seconds: Sequence[float], where: str) -> list[Fault]:
    faults, slowest, at = [], seconds[0], rows[0]
    for num_rows, own in zip(rows, seconds, strict=True):
        if own < slowest * (1 - DROP):
            share = 1 - own / slowest
            sentence = f"{where} {num_rows} rows took {share:.0%} less than {at} rows"
            faults.append(Fault("non-monotone", sentence, is_fatal=share > DISTURBED))
        if own > slowest:
            slowest, at = own, num_rows
    return faults


def _flatness(rows: Sequence[int], seconds: Sequence[float], where: str) -> list[Fault]:
    first, last = seconds[0], seconds[-1]
    if first <= 0:
        return [Fault("flat", f"{where} a forward of {rows[0]} rows took no time", is_fatal=True)]
    if rows[-1] >= FLAT_RANGE * rows[0] and last < first * (1 + FLAT):
        sentence = f"{where} {rows[-1]} rows took no longer than {rows[0]}"
        return [Fault("flat", sentence, is_fatal=True)]
    return []


def smoothed(seconds: Sequence[float]) -> list[float]:
    """Fit the nearest non-decreasing sequence: pool adjacent violators (Ayer et al. 1955)."""
    pools: list[tuple[float, int]] = []
    for own in seconds:
        mean, size = own, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean = (mean * size + before * count) / (size + count)
            size += count
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


class StepCost:
    """Seconds of a step, from a table without fatal faults."""

    def __init__(self, table: StepCostTable, drafter: str | None = None) -> None:
        """Read `table`; drafting costs what it says of `drafter`, 0 if it says nothing."""
        self.table = table
        self.max_rows = table.rows[-1]
        self._grid = [smoothed(believed(own)) for own in table.forward]
        # Asked for several times in every step.
        self._host = cache(partial(_at, table.host))
        self._drafting = cache(partial(_at, table.drafting.get(drafter or "", ())))
        self._curves: dict[tuple[int, int], list[float]] = {}

    def forward_curve(self, context_len: float, most_rows: int) -> Sequence[float]:
        """Give the seconds of a forward by rows, from 0 to at least `most_rows`.

        `context_len` is the number of tokens a row sees, on average over the rows; it is rounded.
        """
        step = round(context_len / CONTEXT_STEP)
        # Lengths in powers of two, so that few curves are ever made.
        length = max(self.max_rows, 1 << max(0, most_rows - 1).bit_length())
        key = (step, length)
        if key not in self._curves:
            self._curves[key] = [
                self._forward(rows, step * CONTEXT_STEP) for rows in range(length + 1)
            ]
        return self._curves[key]

    def host(self, num_requests: int) -> float:
        """Seconds a step takes besides drafting and the forward."""
        return self._host(num_requests)

    def drafting(self, num_requests: int) -> float:
        """Seconds a proposal for that many requests takes."""
        return self._drafting(num_requests)

    def step(self, rows: int, num_requests: int, context_len: float) -> float:
        """Seconds of a step without drafting."""
        return self.forward_curve(context_len, rows)[rows] + self.host(num_requests)

    def reading(self, num_known: int, num_judged: int, context_len: float) -> float:
        """Seconds of a forward that known tokens beyond one per judged row take: of prompts.

        They are work that must be done and yields no token, so they are no reason to hold drafts
        for cheap: policies leave them out of a step's price.
        """
        curve = self.forward_curve(context_len, num_known)
        return curve[num_known] - curve[num_judged]

    def is_extrapolated(self, rows: int, context_len: float) -> bool:
        """Whether no measurement lies beyond this point."""
        return rows > self.max_rows or context_len > self.table.contexts[-1]

    def _forward(self, rows: int, context_len: float) -> float:
        if rows == 0:
            return 0.0
        by_context = [_line(self.table.rows, own, rows) for own in self._grid]
        value = _line(self.table.contexts, by_context, context_len)
        # A line through noisy contexts must not promise a faster step than any that was seen.
        return max(value, min(by_context))


def _at(timings: BatchTimings, num_requests: int) -> float:
    if not timings or num_requests == 0:
        return 0.0
    batches = [batch for batch, _ in timings]
    return max(0.0, _line(batches, [own.seconds for _, own in timings], num_requests))


def _line(places: Sequence[int], values: Sequence[float], place: float) -> float:
    """Interpolate; flat before the first place, behind the last go on as the upper half rises."""
    if len(places) == 1 or place <= places[0]:
        return values[0]
    right = min(bisect_right(places, place), len(places) - 1)
    left = right - 1
    if place > places[-1]:
        # The last piece alone may be one noisy, or smoothed away, step.
        left = (len(places) - 1) // 2
        share = (place - places[-1]) / (places[-1] - places[left])
        return values[-1] + share * (values[-1] - values[left])
    share = (place - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])
