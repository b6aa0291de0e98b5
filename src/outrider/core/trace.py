"""Traces: what every step of a run did and took, as JSON Lines that outlive the run.

The first line says what was run, each further line is a step. A version is in the first line;
readers refuse a version they do not know.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from outrider.core.ids import RequestId
from outrider.core.reading import Reading
from outrider.core.rounds import Round
from outrider.errors import ConfigError

VERSION: Final = 1
FORMAT: Final = "outrider trace"


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What was run: names as the user gave them."""

    model: str
    backend: str
    drafter: str | None
    max_draft_len: int
    verify_rule: str
    length_policy: str

    def to_line(self) -> str:
        """Write the first line."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step, and what was expected of it before the forward.

    `predicted_tokens` are emitted tokens; `predicted_seconds` is None without a cost table. `drift`
    is predicted minus observed accepted tokens per verified draft token, lately; NaN at first.
    """

    draft: float = 0.0
    forward: float = 0.0
    total: float = 0.0
    predicted_tokens: float = 0.0
    predicted_seconds: float | None = None
    drift: float = math.nan


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step. `num_tokens` are the rows of the forward, `context_len` the tokens a row saw."""

    num_requests: int
    num_tokens: int
    context_len: float
    times: StepTimes
    rounds: tuple[Round, ...]

    def to_line(self) -> str:
        """Write the step as one line."""
        record = asdict(self)
        if math.isnan(self.times.drift):
            record["times"]["drift"] = None
        return json.dumps(record, allow_nan=False)


def read_trace(lines: Iterable[str], source: str) -> tuple[TraceHeader, Iterator[StepTrace]]:
    """Read the header and, as they are asked for, the steps.

    Raises:
        ConfigError: A line cannot be read, also later, while steps are taken; the message names
            `source` and the line.
    """
    numbered = enumerate(lines, start=1)
    first = next(numbered, None)
    if first is None:
        raise ConfigError(f"{source} is empty; a trace has a header and a line per step")
    record = _parsed(first[1], f"{source}, line 1")
    if record.pop("format", None) != FORMAT:
        raise ConfigError(f"{source} is not a trace; record one with --trace")
    version = record.pop("version", None)
    if version != VERSION:
        raise ConfigError(f"{source} is a trace of version {version!r}; this reads {VERSION}")
    try:
        header = TraceHeader(**record)
    except TypeError as error:
        raise ConfigError(f"{source}, line 1: damaged ({error}); record it again") from error
    return header, _steps(numbered, source)


def _steps(numbered: Iterator[tuple[int, str]], source: str) -> Iterator[StepTrace]:
    for number, line in numbered:
        if not line.strip():
            continue
        place = f"{source}, line {number}"
        record = _parsed(line, place)
        try:
            times, rounds = record.pop("times"), record.pop("rounds")
            if times["drift"] is None:
                times["drift"] = math.nan
            yield StepTrace(**record, times=StepTimes(**times), rounds=tuple(map(_round, rounds)))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{place}: damaged ({error}); record the trace again") from error


def _round(record: dict[str, Any]) -> Round:
    for name in ("confidence", "survival", "sources"):
        if record.get(name) is not None:
            record[name] = tuple(record[name])
    if record.get("reading") is not None:
        own = record["reading"]
        record["reading"] = Reading(own["texture"], tuple(own["kinds"]))
    record["request_id"] = RequestId(record["request_id"])
    return Round(**record)


def _parsed(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{place}: not JSON ({error}); record the trace again") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: no object; record the trace again")
    return record
