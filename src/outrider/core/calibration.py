"""Calibration: from a drafter's raw confidence to the chance that a token is really accepted.

One curve per source of draft tokens and draft position, fitted by `outrider calibrate` from rounds
in which whole drafts were verified, for one verify rule and temperature.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, get_args

from outrider.errors import ConfigError, unknown_name

VERSION: Final = 1
FORMAT: Final = "outrider calibration"
Method = Literal["sequential", "logistic", "isotonic"]
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """The curves of every source by draft position, and what they were fitted for."""

    model: str
    drafter: str
    verify_rule: str
    temperature: float
    method: Method
    curves: Mapping[str, tuple[Curve, ...]]

    @property
    def num_positions(self) -> int:
        """Draft positions that every source has a curve for."""
        return min(map(len, self.curves.values()), default=0)

    def curve(self, source: str, position: int) -> Curve:
        """Give a curve; a source that was never seen keeps its confidence."""
        own = self.curves.get(source, ())
        return own[position] if position < len(own) else IDENTITY

    def to_json(self) -> str:
        """Write the calibration; `from_json` reads it."""
        record = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(record, indent=1) + "\n"

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
                verify_rule=str(record["verify_rule"]),
                temperature=float(record["temperature"]),
                method=record["method"],
                curves={name: tuple(map(_curve, own)) for name, own in record["curves"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{source} is a damaged calibration ({type(error).__name__}: {error}); make a new "
                f"one with {_MAKE}"
            ) from error


_MAKE = "`outrider calibrate`"


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
