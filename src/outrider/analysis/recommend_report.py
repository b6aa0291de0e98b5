"""A recommendation for people and for JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from outrider.analysis.bootstrap import Interval
from outrider.analysis.recommend import Expected, Recommendation
from outrider.analysis.recommend_flags import VERSIONS
from outrider.analysis.tables import table


def recommend_lines(found: Recommendation, spoken: Mapping[str, str]) -> list[str]:
    """Say what to run, what it brings at each load, and the options for every engine."""
    statistic = found.evidence.statistic
    head = ["", "tokens/s", "without", "speedup", "95 %", f"TPOT ms, {statistic}", "TTFT ms"]
    body = [
        [
            f"{one.concurrency} at a time",
            f"{one.throughput:.1f}",
            f"{base.throughput:.1f}",
            f"{one.speedup:.3f}",
            _spread(one.interval),
            _cell(one.tpot_ms),
            _cell(one.ttft_ms),
        ]
        for one, base in zip(found.by_load, found.plain, strict=True)
    ]
    best = ", ".join(f"{length} at {load}" for load, length in found.schedule)
    lines = [
        f"run: {found.choice.name}",
        f"over the mix {found.gain:.3f} times plain decoding ({_spread(found.interval)})",
        f"best fixed lengths of {found.evidence.drafter} by requests at a time: {best}",
        "",
        *table([head, *body]),
    ]
    if found.unmet:
        loads = ", ".join(map(str, found.unmet))
        most = "none does" if found.limit is None else f"{found.limit} at a time do"
        lines.append(f"the targets are missed by every setting at {loads} at a time; {most}")
    lines.append("")
    for engine, text in spoken.items():
        version = f" ({VERSIONS[engine]})" if engine in VERSIONS else ""
        lines += [f"{engine}{version}:", *(f"  {line}" for line in text.splitlines())]
    return lines


def recommend_record(found: Recommendation, spoken: Mapping[str, str]) -> dict[str, Any]:
    """Give everything as one JSON object."""
    return {
        "choice": asdict(found.choice),
        "gain": found.gain,
        "gain_interval": found.interval,
        "max_concurrency": found.limit,
        "unmet": list(found.unmet),
        "schedule": [list(pair) for pair in found.schedule],
        "latency_statistic": found.evidence.statistic,
        "expected": [_record(one) for one in found.by_load],
        "candidates": [_record(one) for one in found.everything],
        "flags": dict(spoken),
        "versions": VERSIONS,
    }


def _record(one: Expected) -> dict[str, Any]:
    return {**asdict(one), "name": one.candidate.name}


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _spread(interval: Interval | None) -> str:
    return "uncertainty unknown" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
