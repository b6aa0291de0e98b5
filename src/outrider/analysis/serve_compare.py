"""Two results of a benchmark side by side: their ratios, and whether the second is worse."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.analysis.tables import table
from outrider.core.paths import expanded
from outrider.errors import ConfigError, unknown_name

SERVE, RUN = "bench serve", "bench run"
_THROUGHPUTS = ("request_throughput", "request_goodput", "output_throughput")
_LATENCIES = tuple(
    f"{kind}_{name}_ms"
    for name in ("ttft", "tpot", "itl", "e2el")
    for kind in ("mean", "median", "p99")
)
_ACCEPTANCE = ("spec_decode_acceptance_length", "spec_decode_acceptance_rate")
_FIGURES = (*_THROUGHPUTS, *_LATENCIES, *_ACCEPTANCE)
_SETTINGS = {
    SERVE: (
        "model_id",
        "endpoint",
        "num_prompts",
        "max_concurrency",
        "request_rate",
        "burstiness",
        "max_tokens",
        "temperature",
        "goodput",
    ),
    RUN: ("model", "setting"),
}
GATED = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "median_e2el_ms")
"""What a threshold looks at unless it is told."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result file: what made it, what was set, and its figures by name."""

    name: str
    kind: str
    settings: dict[str, Any]
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both results."""

    name: str
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """After over before; None where there was nothing before."""
        return self.after / self.before if self.before else None

    @property
    def is_latency(self) -> bool:
        """Whether less is better."""
        return self.name.endswith("_ms")

    def loss(self) -> float:
        """How much worse it became, as a share of what it was; negative where it is better."""
        if not self.before:
            return 0.0
        share = (self.after - self.before) / self.before
        return share if self.is_latency else -share


def read_result(path: str | Path) -> Result:
    """Read a JSON file, or saved output whose last line is JSON, of one of the benchmarks.

    `vllm bench serve` writes the same names as `outrider bench serve`; its files are read too.

    Raises:
        ConfigError: It cannot be read, or nothing that is known made it.
    """
    file = expanded(path)
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"result file {str(path)!r} cannot be read ({error})") from error
    record = _parsed(text)
    if record is None:
        raise ConfigError(f"{path} is not JSON, and neither is its last line; give a result file")
    kind = _kind(record)
    if kind is None:
        raise ConfigError(
            f"{path} is no result of {SERVE!r} or {RUN!r}; make one with --json or --output"
        )
    settings = {name: record[name] for name in _SETTINGS[kind] if name in record}
    return Result(str(path), kind, settings, _figures(record, kind))


def _parsed(text: str) -> dict[str, Any] | None:
    for part in (text, text.rpartition("\n")[2]):
        try:
            record = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    return None


def _kind(record: Mapping[str, Any]) -> str | None:
    if "request_throughput" in record and "duration" in record:
        return SERVE
    if isinstance(record.get("plain"), dict) and "setting" in record:
        return RUN
    return None


def _figures(record: Mapping[str, Any], kind: str) -> dict[str, float]:
    if kind == SERVE:
        return _numbers(record, "")
    found = {
        name: value
        for side in ("plain", "speculative")
        for name, value in _numbers(record.get(side) or {}, f"{side}.").items()
    }
    speedup = record.get("speedup")
    return found | ({"speedup": float(speedup)} if speedup is not None else {})


def _numbers(record: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        prefix + name: float(value)
        for name in _FIGURES
        if isinstance(value := record.get(name), int | float)
    }


def compare(before: Result, after: Result) -> list[Change]:
    """Pair the figures that both have.

    Raises:
        ConfigError: The results are of different kinds.
    """
    if before.kind != after.kind:
        raise ConfigError(
            f"{before.name} is a result of {before.kind!r} and {after.name} of {after.kind!r}; "
            "compare results of one kind"
        )
    return [
        Change(name, value, after.figures[name])
        for name, value in before.figures.items()
        if name in after.figures
    ]


def differing_settings(before: Result, after: Result) -> list[str]:
    """Say what was set differently, in which case the ratios mean little."""
    names = [name for name in before.settings if name in after.settings]
    return [
        f"{name}: {before.settings[name]!r} and {after.settings[name]!r}"
        for name in names
        if before.settings[name] != after.settings[name]
    ]


def regressions(
    changes: Sequence[Change], threshold: float, metrics: Sequence[str] = GATED
) -> list[Change]:
    """Give the figures among `metrics` that are worse by more than the share `threshold`.

    A metric without a side's name stands for both sides of `bench run`.

    Raises:
        ConfigError: The results have no such figure.
    """
    known = [change.name for change in changes]
    plain_names = {name.rpartition(".")[2] for name in known}
    for metric in metrics:
        if metric not in known and metric not in plain_names and metrics is not GATED:
            raise ConfigError(unknown_name("figure", metric, known))
    return [
        change
        for change in changes
        if change.loss() > threshold
        and (change.name in metrics or change.name.rpartition(".")[2] in metrics)
    ]


def compare_lines(changes: Sequence[Change], worse: Sequence[Change]) -> list[str]:
    """Give the table; a figure that is worse by more than allowed is marked."""
    rows = [["", "before", "after", "ratio", ""]]
    for change in changes:
        ratio = "-" if change.ratio is None else f"{change.ratio:.3f}"
        mark = "worse" if change in worse else ""
        rows.append([change.name, f"{change.before:.3f}", f"{change.after:.3f}", ratio, mark])
    return table(rows)
