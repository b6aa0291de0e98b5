"""Acceptance counters: added while running, divided in one place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class SourceCounts:
    """Draft tokens that one drafter proposed, where several took part.

    `verified` were sent to the target, `reached` of them stood behind accepted tokens only, and
    `accepted` of these held.
    """

    verified: int = 0
    reached: int = 0
    accepted: int = 0

    @property
    def accept_rate(self) -> float:
        """The chance to hold once everything before it did; NaN where none was reached."""
        return self.accepted / self.reached if self.reached else math.nan


@dataclass(slots=True)
class Acceptance:
    """Counts over rounds; the sum of two is the count over both.

    By draft position i, over the rounds that sent at least i+1 draft tokens to the target:
    `verified_at` counts them, `reached_at` those whose first i drafts were accepted, `accepted_at`
    those whose first i+1 were. `delivered` is less than `emitted` where a stop rule cut a run.
    `by_source` splits draft tokens by the drafter they came from, as far as drafters say.
    """

    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    emitted: int = 0
    delivered: int = 0
    accepted_at: list[int] = field(default_factory=list)
    verified_at: list[int] = field(default_factory=list)
    reached_at: list[int] = field(default_factory=list)
    by_source: dict[str, SourceCounts] = field(default_factory=dict)

    def record(
        self,
        *,
        drafted: int,
        verified: int,
        accepted: int,
        delivered: int,
        sources: Sequence[str] | None = None,
    ) -> None:
        """Count one round of one request; `sources` are those of the verified tokens."""
        self.rounds += 1
        self.drafted += drafted
        self.verified += verified
        self.accepted += accepted
        self.emitted += accepted + 1
        self.delivered += delivered
        for counts in (self.verified_at, self.reached_at, self.accepted_at):
            _grow(counts, verified)
        for position in range(verified):
            self.verified_at[position] += 1
            self.reached_at[position] += position <= accepted
            self.accepted_at[position] += position < accepted
        for position, source in enumerate(sources or ()):
            counts_of = self.by_source.setdefault(source, SourceCounts())
            counts_of.verified += 1
            counts_of.reached += position <= accepted
            counts_of.accepted += position < accepted

    def add(self, other: "Acceptance") -> None:
        """Add another count to this one."""
        for name in ("rounds", "drafted", "verified", "accepted", "emitted", "delivered"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("accepted_at", "verified_at", "reached_at"):
            mine, theirs = getattr(self, name), getattr(other, name)
            _grow(mine, len(theirs))
            for position, count in enumerate(theirs):
                mine[position] += count
        for source, counts in other.by_source.items():
            total_of = self.by_source.setdefault(source, SourceCounts())
            total_of.verified += counts.verified
            total_of.reached += counts.reached
            total_of.accepted += counts.accepted

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per round, the target's own token included; NaN before the first round."""
        return 1 + self.accepted / self.rounds if self.rounds else math.nan

    @property
    def acceptance_rate(self) -> float:
        """Accepted over verified draft tokens; NaN where none was verified."""
        return self.accepted / self.verified if self.verified else math.nan

    @property
    def marginal_accept_rates(self) -> list[float]:
        """Per position: the chance that a round which sent it accepts everything up to it."""
        return _divide(self.accepted_at, self.verified_at)

    @property
    def conditional_accept_rates(self) -> list[float]:
        """Per position: the chance to be accepted once everything before it was."""
        return _divide(self.accepted_at, self.reached_at)


def _grow(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))


def _divide(counts: Sequence[int], of: Sequence[int]) -> list[float]:
    return [a / b if b else math.nan for a, b in zip(counts, of, strict=True)]


def total(parts: Sequence[Acceptance]) -> Acceptance:
    """Sum counters."""
    result = Acceptance()
    for part in parts:
        result.add(part)
    return result
