"""Asks drafters at every position of a plain run what they would draft, and verifies nothing.

The output stays the target's own, whatever is drafted, so that several drafters answer for the same
positions, and every position counts instead of one per round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import torch
from torch import Tensor

from outrider.analysis.closed_loop import Completed
from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import SamplingParams, VerifyRule
from outrider.drafters.base import Drafter
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import Proposal, RowProposal, Scores, Taps

Key = TypeVar("Key")
_FEWEST: Final = 2


class Probe:
    """A drafter for the engine that lets `drafters` draft, keeps what they said and drafts nothing.

    `guesses[request][position]` is what the `main` one drafted, greedily, behind so many output
    tokens. `overlaps[name][request, position]` is Σ min(p, q) over target and drafter at
    temperature 1: the chance that a first draft token drawn from q is accepted. It is a number for
    every position where a token is only right or wrong, so that it tells small differences.
    """

    def __init__(self, drafters: Mapping[str, Drafter], main: str, hidden_size: int) -> None:
        """Ask `drafters`; features come `hidden_size` wide per layer."""
        self.max_draft_len = max(each.max_draft_len for each in drafters.values())
        self.taps: Taps = tuple(sorted({tap for each in drafters.values() for tap in each.taps}))
        self.guesses: dict[RequestId, dict[int, RowProposal]] = {}
        self.overlaps: dict[str, dict[tuple[RequestId, int], float]] = {
            name: {} for name in drafters
        }
        self._drafters = drafters
        self._main = main
        self._columns = {
            name: _columns(self.taps, each.taps, hidden_size) for name, each in drafters.items()
        }
        self._pending: dict[str, dict[RequestId, tuple[int, Tensor]]] = {}

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """Let all draft: the main one greedily, everyone a first token at temperature 1."""
        main = self._drafters[self._main]
        for row, proposal in zip(batch, main.propose(batch, rule).rows, strict=True):
            if proposal.tokens:
                own = self.guesses.setdefault(row.sequence.id, {})
                own[row.sequence.num_output] = proposal
        sampled = Batch(tuple(map(_sampled, batch)))
        for name, drafter in self._drafters.items():
            self._pending[name] = {
                row.sequence.id: (row.sequence.num_output, proposal.probs[0])
                for row, proposal in zip(
                    sampled, drafter.propose(sampled, "rejection").rows, strict=True
                )
                if proposal.probs is not None and len(proposal.probs)
            }
        return Proposal.nothing(batch)

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Compare with the target, and give everybody the features of the layers they tap."""
        for row, first in zip(outcome.rows, scores.first_row, strict=True):
            if first >= 0:
                self._compare(row.request_id, scores.logits[first])
        for name, drafter in self._drafters.items():
            features = scores.features
            if features is not None:
                features = features[:, self._columns[name]]
            drafter.observe(outcome, replace(scores, features=features))

    def forget(self, request_id: RequestId) -> None:
        """Pass it on; what was guessed stays."""
        for drafter in self._drafters.values():
            drafter.forget(request_id)

    def _compare(self, request_id: RequestId, logits: Tensor) -> None:
        target: Tensor | None = None
        for name, pending in self._pending.items():
            found = pending.pop(request_id, None)
            if found is None:
                continue
            position, drafted = found
            if target is None:
                target = torch.softmax(logits.double(), -1)
            overlap = torch.minimum(target, drafted.to(target)).sum()
            self.overlaps[name][request_id, position] = float(overlap)


def _sampled(row: BatchRow) -> BatchRow:
    """The same row, asked for one token at temperature 1."""
    request = row.sequence.request
    params = SamplingParams(temperature=1.0, max_tokens=request.params.max_tokens, ignore_eos=True)
    sequence = replace(row.sequence, request=replace(request, params=params))
    return replace(row, sequence=sequence, max_draft_len=min(1, row.max_draft_len))


def _columns(taps: Taps, own: Taps, hidden_size: int) -> Tensor:
    starts = [taps.index(tap) * hidden_size for tap in own]
    if not starts:
        return torch.empty(0, dtype=torch.int64)
    return torch.cat([torch.arange(start, start + hidden_size) for start in starts])


@dataclass(frozen=True, slots=True)
class Anchor:
    """What was drafted at one position: tokens compared, tokens right from the first on.

    `confidence` is that of the first draft token, None where the drafter gives none.
    """

    compared: int
    right: int
    confidence: float | None


@dataclass(slots=True)
class Answers:
    """One drafter's anchors by (output, position), and the rounds that decoding would make."""

    anchors: dict[tuple[int, int], Anchor] = field(default_factory=dict)
    rounds: int = 0
    accepted: int = 0
    tried_at: list[int] = field(default_factory=list)
    right_at: list[int] = field(default_factory=list)

    @property
    def mean_accept_length(self) -> float:
        """Tokens per round, the target's own included; 1 where nothing was drafted."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def conditional_accept_rates(self) -> list[float | None]:
        """By draft position, over all anchors, given that the tokens before were right."""
        return [
            right / tried if tried else None
            for right, tried in zip(self.right_at, self.tried_at, strict=True)
        ]

    @property
    def first_rate(self) -> float:
        """Share of anchors whose first draft token is right."""
        return self.right_at[0] / self.tried_at[0] if self.tried_at else 0.0

    def add(self, key: tuple[int, int], anchor: Anchor) -> None:
        """Count an anchor."""
        self.anchors[key] = anchor
        for position in range(min(anchor.right + 1, anchor.compared)):
            if position == len(self.tried_at):
                self.tried_at.append(0)
                self.right_at.append(0)
            self.tried_at[position] += 1
            self.right_at[position] += position < anchor.right


def answers(
    guesses: Mapping[RequestId, Mapping[int, RowProposal]], outputs: Sequence[Completed]
) -> Answers:
    """Compare guesses with what the target said; only what lies inside the outputs counts."""
    result = Answers()
    for number, output in enumerate(outputs):
        tokens = output.tokens
        own = guesses.get(output.sequence.id, {})
        for position, proposal in sorted(own.items()):
            said = tokens[position : position + len(proposal.tokens)]
            right = 0
            while right < len(said) and said[right] == proposal.tokens[right]:
                right += 1
            confidence = proposal.confidence[0] if proposal.confidence else None
            if said:
                result.add((number, position), Anchor(len(said), right, confidence))
        _walk(result, number, len(tokens))
    return result


def _walk(result: Answers, number: int, length: int) -> None:
    """Decode the output in rounds: each begins behind what the one before accepted."""
    position = 1
    while position < length:
        anchor = result.anchors.get((number, position))
        right = 0 if anchor is None else anchor.right
        result.rounds += 1
        result.accepted += right
        position += right + 1


def paired_gain(base: Mapping[Key, float], other: Mapping[Key, float]) -> tuple[float, float]:
    """Mean of `other` minus `base` over the keys of both, and that mean in standard errors."""
    gains = [other[key] - base[key] for key in base.keys() & other.keys()]
    count = len(gains)
    if count < _FEWEST:
        return 0.0, 0.0
    mean = math.fsum(gains) / count
    variance = math.fsum((gain - mean) ** 2 for gain in gains) / (count - 1)
    if variance == 0:
        return mean, math.copysign(math.inf, mean) if mean else 0.0
    return mean, mean / math.sqrt(variance / count)


def upper_bound(hits: int, tries: int, deviations: float) -> float:
    """Upper end of Wilson's interval of a rate (Wilson 1927); 1 where nothing was tried."""
    if not tries:
        return 1.0
    rate, square = hits / tries, deviations**2
    centre = rate + square / (2 * tries)
    spread = deviations * math.sqrt(rate * (1 - rate) / tries + square / (4 * tries**2))
    return (centre + spread) / (1 + square / tries)
