"""Simulated scenarios for people, for JSON and as a figure."""

from collections.abc import Sequence
from typing import Any

from outrider.analysis.plots import Panel, Series, figure
from outrider.analysis.tables import table
from outrider.analysis.whatif import PLAIN, Outcome

_HEAD = [
    "load",
    "",
    "tokens/s",
    "over plain",
    "TPOT ms",
    "p99",
    "TTFT ms",
    "p99",
    "tokens/round",
]
_LATENCIES = ("mean_tpot_ms", "p99_tpot_ms", "mean_ttft_ms", "p99_ttft_ms")


def whatif_records(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Give every outcome, with its tokens per second over those of plain decoding at that load."""
    plain = {one.load: one.throughput for one in outcomes if one.scenario == PLAIN}
    return [{**one.record(), "over_plain": one.throughput / plain[one.load]} for one in outcomes]


def whatif_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Show every scenario at every load, and the best of each load."""
    records = whatif_records(outcomes)
    body = [
        [
            one.load.name,
            one.scenario,
            f"{record['output_throughput']:.1f}",
            f"{record['over_plain']:.3f}",
            *("-" if record[key] is None else f"{record[key]:.2f}" for key in _LATENCIES),
            f"{record['mean_accept_length']:.2f}",
        ]
        for one, record in zip(outcomes, records, strict=True)
    ]
    lines = [*table([_HEAD, *body]), ""]
    for load in dict.fromkeys(one.load for one in outcomes):
        best = max((one for one in outcomes if one.load == load), key=lambda one: one.throughput)
        lines.append(f"{load.name}: most tokens per second with {best.scenario}")
    if any(one.is_extrapolated for one in outcomes):
        names = dict.fromkeys(one.load.name for one in outcomes if one.is_extrapolated)
        lines.append(
            f"beyond the rows that were measured, so extrapolated: {', '.join(names)}; measure "
            "with a higher --concurrency"
        )
    return lines


def whatif_figure(outcomes: Sequence[Outcome]) -> str:
    """Draw tokens per second and times per token against load, one line per scenario, as SVG."""
    is_rate = outcomes[0].load.rate is not None
    label = "requests a second" if is_rate else "requests at a time"
    panels = [
        _panel(outcomes, "Tokens per second", "tokens/s", "output_throughput", label),
        _panel(outcomes, "Over plain decoding", "speedup", "over_plain", label),
        _panel(outcomes, "Time per output token, mean", "ms", "mean_tpot_ms", label),
        _panel(outcomes, "Time per output token, 99th percentile", "ms", "p99_tpot_ms", label),
    ]
    return figure(panels)


def _panel(outcomes: Sequence[Outcome], title: str, unit: str, key: str, label: str) -> Panel:
    records = whatif_records(outcomes)
    series = []
    for name in dict.fromkeys(one.scenario for one in outcomes):
        own = [
            (one.load.concurrency if one.load.rate is None else one.load.rate, record[key])
            for one, record in zip(outcomes, records, strict=True)
            if one.scenario == name and record[key] is not None
        ]
        series.append(Series(name, [y for _, y in own], [float(x) for x, _ in own]))
    return Panel(
        title=title,
        x_label=label,
        y_label=unit,
        series=series,
        mark=1.0 if key == "over_plain" else None,
        is_log_x=True,
    )
