"""Calibration: from a drafter's raw confidence to the chance that a token is really accepted.

Fitted by `outrider calibrate` from rounds in which whole drafts were verified, for greedy requests
and for those judged by a verify rule apart. Either there is a curve per source of draft tokens and
draft position, or, for each source, the effects of what else is known of a token (`core.evidence`).
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from outrider.errors import ConfigError, unknown_name

VERSION: Final = 2
FORMAT: Final = "outrider calibration"
Method = Literal["logistic", "sequential", "isotonic"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)

# Log-odds of a confidence of 0 or 1 would be infinite.
EDGE: Final = 1e-4


def log_odds(chance: float) -> float:
    """Give the logit of a chance, at most that of `EDGE` from 0 or 1."""
    inside = min(max(chance, EDGE), 1 - EDGE)
    return math.log(inside / (1 - inside))


def sigmoid(value: float) -> float:
    """Invert `log_odds`."""
    return 1 / (1 + math.exp(-value))


@dataclass(frozen=True, slots=True)
class Curve:
    """A non-decreasing map of confidences.

    Without knots it is sigmoid(slope · log_odds(c) + shift): a temperature T is slope 1/T and no
    shift. With knots it interpolates (confidence, chance) pairs.
    """

    slope: float = 1.0
    shift: float = 0.0
    knots: tuple[tuple[float, float], ...] = ()

    def __call__(self, confidence: float) -> float:
        """Give the calibrated confidence, in [0, 1]."""
        if not self.knots:
            return sigmoid(self.slope * log_odds(confidence) + self.shift)
        right = bisect_right(self.knots, (confidence, math.inf))
        if right == 0:
            return self.knots[0][1]
        if right == len(self.knots):
            return self.knots[-1][1]
        (x0, y0), (x1, y1) = self.knots[right - 1], self.knots[right]
        return y0 + (confidence - x0) / (x1 - x0) * (y1 - y0)


IDENTITY: Final = Curve()


class Effect(NamedTuple):
    """What a piece of evidence adds to a logistic curve.

    The chance of a token is sigmoid(slope · log_odds(c) + shift + growth · position), each summed
    over the evidence there is.
    """

    slope: float
    shift: float
    growth: float


NO_EFFECT: Final = Effect(0.0, 0.0, 0.0)
UNTOUCHED: Final = Effect(1.0, 0.0, 0.0)
"""Leaves a confidence as it is."""


@dataclass(frozen=True, slots=True)
class SourceFit:
    """How the tokens of one source are calibrated: `curves` by position, or `effects` by evidence.

    `by_share` are effects per share of the request's recent text that a source gave.
    """

    curves: tuple[Curve, ...] = ()
    effects: Mapping[str, Effect] = field(default_factory=dict)
    by_share: Mapping[str, Effect] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was fitted for a target and a drafter: by kind of request, then by source.

    The kind is `greedy` or a verify rule; `temperatures` says what each was fitted at.
    """

    model: str
    drafter: str
    num_positions: int
    method: Method
    temperatures: Mapping[str, float]
    kinds: Mapping[str, Mapping[str, SourceFit]]

    def curve(self, kind: str, source: str, position: int) -> Curve:
        """Give a curve; what was never seen keeps its confidence."""
        own = self.kinds.get(kind, {}).get(source)
        return own.curves[position] if own is not None and position < len(own.curves) else IDENTITY

    def to_json(self) -> str:
        """Write the calibration; `from_json` reads it."""
        record = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(record) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str) -> Self:
        """Read a calibration.

        Raises:
            ConfigError: It is none, of another version, or a curve in it is no map into [0, 1]; the
                message names `source`.
        """
        try:
            record: Any = json.loads(text)
            if record["format"] != FORMAT or record["version"] != VERSION:
                raise ConfigError(
                    f"{source} is not a calibration of version {VERSION}; make one with {_MAKE}"
                )
            if record["method"] not in METHODS:
                raise ConfigError(unknown_name("calibration method", record["method"], METHODS))
            return cls(
                model=str(record["model"]),
                drafter=str(record["drafter"]),
                num_positions=int(record["num_positions"]),
                method=record["method"],
                temperatures={kind: float(t) for kind, t in record["temperatures"].items()},
                kinds={
                    kind: {name: _source_fit(own) for name, own in sources.items()}
                    for kind, sources in record["kinds"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{source} is a damaged calibration ({type(error).__name__}: {error}); make a new "
                f"one with {_MAKE}"
            ) from error


_MAKE = "`outrider calibrate`"


def _source_fit(record: Mapping[str, Any]) -> SourceFit:
    return SourceFit(
        curves=tuple(map(_curve, record["curves"])),
        effects={name: _effect(own) for name, own in record["effects"].items()},
        by_share={name: _effect(own) for name, own in record["by_share"].items()},
    )


def _effect(record: Sequence[Any]) -> Effect:
    slope, shift, growth = map(float, record)
    if not all(map(math.isfinite, (slope, shift, growth))):
        raise ValueError(f"{record} is no effect")
    return Effect(slope, shift, growth)


def _curve(record: Mapping[str, Any]) -> Curve:
    slope, shift = float(record["slope"]), float(record["shift"])
    knots = tuple((float(x), float(y)) for x, y in record["knots"])
    if not (math.isfinite(slope) and math.isfinite(shift) and slope >= 0):
        raise ValueError(f"slope {slope} and shift {shift} are no curve")
    places, chances = [x for x, _ in knots], [y for _, y in knots]
    if places != sorted(set(places)) or chances != sorted(chances) or not _within(chances):
        raise ValueError("the knots of a curve must rise within [0, 1]")
    return Curve(slope, shift, knots)


def _within(chances: Sequence[float]) -> bool:
    return all(0 <= chance <= 1 for chance in chances)
