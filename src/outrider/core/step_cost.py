"""The step cost table: what a step takes on one machine, as measured. Written by engine/profile.py.

A step of `num_requests` judged requests and `rows` window rows costs

    drafting(num_requests) + forward(rows, context_len) + host(num_requests)

seconds: the drafter, the target's forward, and everything else the engine does around them.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Self

from outrider.errors import ConfigError

VERSION = 1
FORMAT = "outrider step cost table"


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of `count` measurements and the distance between their quartiles.

    What disturbs a measurement makes it longer, so the `fastest` one is the least disturbed.
    """

    seconds: float
    spread: float
    count: int
    fastest: float | None = None

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Sum up samples; there must be one."""
        ordered = sorted(samples)
        quarter = len(ordered) // 4
        spread = ordered[-1 - quarter] - ordered[quarter]
        return cls(median(ordered), spread, len(ordered), ordered[0])


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """Where a table holds: a table says nothing about a place that differs in any of these."""

    machine: str
    model: str
    backend: str
    threads: int


BatchTimings = tuple[tuple[int, Timing], ...]
"""Timings by number of requests, ascending."""


@dataclass(frozen=True, slots=True)
class StepCostTable:
    """See the module. `forward[i][j]` is the forward of `rows[j]` rows that see `contexts[i]`."""

    measured_on: MeasuredOn
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    forward: tuple[tuple[Timing, ...], ...]
    host: BatchTimings
    drafting: Mapping[str, BatchTimings] = field(default_factory=dict)
    """By drafter; a name stands for the drafter and its options."""
    measured_at: str = ""

    def to_json(self) -> str:
        """Write the table; `from_json` reads it."""
        record = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(record, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str) -> Self:
        """Read a table.

        Raises:
            ConfigError: It is no table, of another version, or a number in it cannot be a time; the
                message names `source`.
        """
        try:
            record: Any = json.loads(text)
            if record["format"] != FORMAT:
                raise ConfigError(f"{source} is not a step cost table; make one with {_MAKE}")
            if record["version"] != VERSION:
                raise ConfigError(
                    f"{source} is a step cost table of version {record['version']}, but this is "
                    f"version {VERSION}; make a new one with {_MAKE}"
                )
            table = cls(
                measured_on=MeasuredOn(**record["measured_on"]),
                rows=_ascending(record["rows"]),
                contexts=_ascending(record["contexts"]),
                forward=tuple(tuple(map(_timing, each)) for each in record["forward"]),
                host=_by_batch(record["host"]),
                drafting={name: _by_batch(own) for name, own in record["drafting"].items()},
                measured_at=str(record["measured_at"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{source} is a damaged step cost table ({type(error).__name__}: {error}); make a "
                f"new one with {_MAKE}"
            ) from error
        if [len(each) for each in table.forward] != [len(table.rows)] * len(table.contexts):
            raise ConfigError(f"{source} is a truncated step cost table; make one with {_MAKE}")
        return table


_MAKE = "`outrider profile`"


def _ascending(values: Sequence[object]) -> tuple[int, ...]:
    numbers = tuple(_integer(value) for value in values)
    if not numbers or numbers != tuple(sorted(set(numbers))) or numbers[0] < 0:
        raise ValueError(f"{numbers} should be ascending numbers of 0 or more")
    return numbers


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} should be an integer")
    return value


def _timing(record: Mapping[str, Any]) -> Timing:
    fastest = record.get("fastest")
    timing = Timing(
        float(record["seconds"]),
        float(record["spread"]),
        _integer(record["count"]),
        None if fastest is None else float(fastest),
    )
    for value in (timing.seconds, timing.spread, timing.fastest or 0.0):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{value} is no duration")
    return timing


def _by_batch(entries: Sequence[Any]) -> BatchTimings:
    timings = tuple((_integer(batch), _timing(own)) for batch, own in entries)
    if timings:
        _ascending([batch for batch, _ in timings])
    return timings


Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""
