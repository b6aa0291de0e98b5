"""Logistic regression of acceptance on the confidence and on all other evidence, by source.

Each piece of evidence (`core.evidence`) has an effect on the slope over the log-odds of the
confidence, on the shift, and on how the shift grows with the draft position. They are found
together, by Newton's method on the likelihood; a ridge holds those that few tokens speak for near
none, and the whole near the identity.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outrider.core.calibration import Effect, SourceFit, log_odds
from outrider.core.evidence import ALWAYS, Record, evidence_of, places_of, row_of
from outrider.core.ids import RequestId
from outrider.core.rounds import Round
from outrider.schedule.fitted import LAST_POSITION

Floats = NDArray[np.float64]

RIDGE: Final = 5.0
"""How many tokens' worth of belief there is in every effect being none."""
NEWTON_STEPS: Final = 30
DIGITS: Final = 4
"""Decimals of effects."""
SHARE: Final = "share of "
_POSITION_SCALE: Final = 1 / 3
"""Positions are divided so that the ridge weighs their effects like the others."""


class _Token(NamedTuple):
    """A judged token: evidence by name with its value, log-odds, position and outcome."""

    evidence: Mapping[str, float]
    logit: float
    position: int
    accepted: bool


def fit_logistic(rounds: Sequence[Round]) -> dict[str, SourceFit]:
    """Fit every source to rounds; those of a request must be in the order they were made."""
    by_source: dict[str, list[_Token]] = {}
    records: dict[RequestId, Record] = {}
    for each in rounds:
        record = records.setdefault(each.request_id, Record())
        for source, token in _tokens(each, record):
            by_source.setdefault(source, []).append(token)
        record.add(each.sources or ("",) * each.verified, each.accepted)
    return {source: _fit_source(by_source[source]) for source in sorted(by_source)}


def _tokens(each: Round, record: Record) -> Iterator[tuple[str, _Token]]:
    """Give the judged tokens of a round with their sources."""
    assert each.confidence is not None
    sources = each.sources or ("",) * each.verified
    row = row_of(each.reading, each.num_output).evidence()
    places = places_of(each.confidence, sources, each.reading)
    shares = {SHARE + name: share for name, share in record.shares().items()}
    for place in range(min(each.verified, each.accepted + 1)):
        names = (ALWAYS, *row, *evidence_of(places[place]))
        yield (
            sources[place],
            _Token(
                dict.fromkeys(names, 1.0) | shares,
                log_odds(each.confidence[place]),
                min(place, LAST_POSITION),
                place < each.accepted,
            ),
        )


def _fit_source(tokens: Sequence[_Token]) -> SourceFit:
    names = list(dict.fromkeys(name for token in tokens for name in token.evidence))
    place_of = {name: place for place, name in enumerate(names)}
    evidence = np.zeros((len(tokens), len(names)))
    for row, token in enumerate(tokens):
        for name, value in token.evidence.items():
            evidence[row, place_of[name]] = value
    base = np.array([(t.logit, 1.0, _POSITION_SCALE * t.position) for t in tokens])
    design = (evidence[:, :, None] * base[:, None, :]).reshape(len(tokens), -1)
    accepted = np.array([token.accepted for token in tokens], np.float64)
    middle = np.zeros((len(names), 3))
    middle[place_of[ALWAYS], 0] = 1.0
    weights = _maximise(design, accepted, middle.reshape(-1)).reshape(-1, 3)
    effects = {
        name: Effect(
            round(float(slope), DIGITS),
            round(float(shift), DIGITS),
            round(float(growth) * _POSITION_SCALE, DIGITS),
        )
        for name, (slope, shift, growth) in zip(names, weights, strict=True)
    }
    return SourceFit(
        effects={name: own for name, own in effects.items() if not name.startswith(SHARE)},
        by_share={
            name.removeprefix(SHARE): own for name, own in effects.items() if name.startswith(SHARE)
        },
    )


def _maximise(design: Floats, accepted: Floats, middle: Floats) -> Floats:
    """Maximise the likelihood, held near `middle`."""
    weights = middle.copy()
    for _ in range(NEWTON_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (accepted - chances) - RIDGE * (weights - middle)
        spread = chances * (1 - chances)
        hessian = (design * spread[:, None]).T @ design + RIDGE * np.eye(len(weights))
        step = np.linalg.solve(hessian, gradient)
        weights = weights + step
        if float(np.abs(step).max()) < 1 / (1 << 17):
            break
    return weights
