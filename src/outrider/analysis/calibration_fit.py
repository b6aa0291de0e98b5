"""Fits calibrations: from what a drafter said of its tokens to how often they were accepted.

The data are rounds in which whole drafts were verified; a run that cuts drafts short would censor
the late positions of exactly the drafts it believed least. Three methods: sequential temperature
scaling (DSpark, arXiv 2607.05147, §3.2.1), which keeps the order of confidences and makes the
*product* up to each position right; isotonic regression (Zadrozny and Elkan 2002), per source and
position; and logistic regression (Platt 1999) on the confidence and all other evidence, per source
(`calibration_logistic`). The last two are fitted to tokens whose predecessors were all accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outrider.analysis.calibration_logistic import fit_logistic
from outrider.analysis.reliability import expected_calibration_error
from outrider.core.calibration import Curve, Method, SourceFit, log_odds
from outrider.core.rounds import Round
from outrider.errors import ConfigError

Floats = NDArray[np.float64]

TEMPERATURES: Final = np.geomspace(0.2, 5.0, 65)
FEWEST_SAMPLES: Final = 40
"""Tokens a curve needs; where a position has fewer, all later ones of the source join it."""
ONE_SOURCE: Final = ""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts as arrays of one row per draft and one column per position.

    `confidence` is NaN behind a draft's end. `accepted` and `lengths` count tokens per draft.
    """

    rounds: tuple[Round, ...]
    confidence: Floats
    sources: tuple[tuple[str, ...], ...]
    lengths: NDArray[np.int64]
    accepted: NDArray[np.int64]

    @property
    def num_positions(self) -> int:
        """Positions of the longest draft."""
        return int(self.confidence.shape[1])

    def present(self, position: int) -> NDArray[np.bool_]:
        """Drafts that have this position."""
        return self.lengths > position

    def reached(self, position: int) -> NDArray[np.bool_]:
        """Drafts that have this position and whose tokens before it were all accepted."""
        return self.present(position) & (self.accepted >= position)

    def survived(self, position: int) -> NDArray[np.bool_]:
        """Whether everything up to this position was accepted."""
        return self.accepted > position

    def of_source(self, name: str, position: int) -> NDArray[np.bool_]:
        """Drafts whose token at this position came from the source."""
        return np.array([len(own) > position and own[position] == name for own in self.sources])


def drafts_of(rounds: Sequence[Round], num_positions: int) -> Drafts:
    """Collect rounds that drafted something.

    Raises:
        ConfigError: A draft was cut before it was verified, a confidence is missing, or there is
            no draft at all.
    """
    drafted = [each for each in rounds if each.drafted]
    if not drafted:
        raise ConfigError("nothing was drafted, so nothing can be calibrated; use other prompts")
    if any(each.verified < each.drafted for each in drafted):
        raise ConfigError(
            "drafts were cut before they were verified, which hides the late positions; record "
            "with length policy 'fixed'"
        )
    if any(each.confidence is None for each in drafted):
        raise ConfigError(
            "this drafter gives no confidence; its tokens are counted online, by position"
        )
    confidence = np.full((len(drafted), num_positions), np.nan)
    for row, each in enumerate(drafted):
        confidence[row, : each.verified] = each.confidence
    return Drafts(
        rounds=tuple(drafted),
        confidence=confidence,
        sources=tuple(each.sources or (ONE_SOURCE,) * each.verified for each in drafted),
        lengths=np.array([each.verified for each in drafted]),
        accepted=np.array([each.accepted for each in drafted]),
    )


def fit(drafts: Drafts, method: Method) -> dict[str, SourceFit]:
    """Fit every source."""
    if method == "logistic":
        return fit_logistic(drafts.rounds)
    names = sorted({name for own in drafts.sources for name in own})
    if method == "sequential":
        shared = SourceFit(curves=_sequential(drafts))
        return dict.fromkeys(names, shared)
    positions = range(drafts.num_positions)
    return {
        name: SourceFit(curves=tuple(_isotonic(*_samples(drafts, name, p)) for p in positions))
        for name in names
    }


def _sequential(drafts: Drafts) -> tuple[Curve, ...]:
    """Choose a temperature per position, in order, by the error of the product so far."""
    survival = np.ones(len(drafts.lengths))
    curves: list[Curve] = []
    for position in range(drafts.num_positions):
        rows = drafts.present(position)
        if rows.sum() < FEWEST_SAMPLES:
            curves += [curves[-1] if curves else Curve()] * (drafts.num_positions - position)
            break
        logits = np.array([log_odds(c) for c in drafts.confidence[rows, position]])
        survived = drafts.survived(position)[rows].astype(np.float64)
        products = [survival[rows] / (1 + np.exp(-logits / t)) for t in TEMPERATURES]
        errors = [expected_calibration_error(each, survived) for each in products]
        best = int(np.argmin(errors))
        survival[rows] = products[best]
        curves.append(Curve(slope=1 / float(TEMPERATURES[best])))
    return tuple(curves)


def _samples(drafts: Drafts, name: str, position: int) -> tuple[Floats, Floats]:
    """Confidences and outcomes of a source at a position, with later ones if they are few."""
    confidence: list[Floats] = []
    accepted: list[Floats] = []
    for place in range(position, drafts.num_positions):
        rows = drafts.reached(place) & drafts.of_source(name, place)
        confidence.append(drafts.confidence[rows, place])
        accepted.append(drafts.survived(place)[rows].astype(np.float64))
        if sum(map(len, confidence)) >= FEWEST_SAMPLES:
            break
    return np.concatenate(confidence), np.concatenate(accepted)


def _isotonic(confidence: Floats, accepted: Floats) -> Curve:
    """Fit the nearest non-decreasing steps, and draw lines between their middles."""
    if not len(confidence):
        return Curve()
    order = np.argsort(confidence, kind="stable")
    pools: list[tuple[float, float, int]] = []
    for place, outcome in zip(confidence[order], accepted[order], strict=True):
        x, y, size = float(place), float(outcome), 1
        while pools and (pools[-1][1] >= y or pools[-1][0] == x):
            before_x, before_y, count = pools.pop()
            x = (x * size + before_x * count) / (size + count)
            y = (y * size + before_y * count) / (size + count)
            size += count
        pools.append((x, y, size))
    knots: list[tuple[float, float]] = []
    for x, y, size in pools:
        # A step of few tokens is not certain of 0 or 1.
        doubted = (y * size + 0.5) / (size + 1)
        knots.append((x, max(doubted, knots[-1][1]) if knots else doubted))
    return Curve(knots=tuple(knots))
