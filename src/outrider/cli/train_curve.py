"""The curve of a training run: its metrics file as an SVG figure beside it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.analysis.plots import Panel, Series, figure

CURVE_FILE = "curve.svg"
_FEWEST_POINTS = 2


def write_curve(metrics_file: Path) -> Path | None:
    """Draw loss, overlap per slot and held-out acceptance over millions of slots.

    Returns the figure's path; None, and no figure, of a run too short for a line.
    """
    lines = [json.loads(line) for line in metrics_file.read_text("utf-8").splitlines()]
    steps = [line for line in lines if "held_out" not in line]
    held_out = [line["held_out"] for line in lines if "held_out" in line]
    panels = []
    if len(steps) >= _FEWEST_POINTS:
        panels += [_loss(steps), _overlap(steps)]
    if len(held_out) >= _FEWEST_POINTS:
        panels += [_acceptance(held_out), _rates(held_out)]
    if not panels:
        return None
    path = metrics_file.with_name(CURVE_FILE)
    path.write_text(figure(panels), encoding="utf-8")
    return path


def _loss(steps: Sequence[dict[str, Any]]) -> Panel:
    xs = _millions(steps)
    return _panel(
        "Loss, mean of 20 steps",
        "loss",
        [Series(name, [step[name] for step in steps], xs) for name in ("loss", "l1", "confidence")],
    )


def _overlap(steps: Sequence[dict[str, Any]]) -> Panel:
    return _slots("Overlap with the target, training", steps, "overlap")


def _acceptance(held_out: Sequence[dict[str, Any]]) -> Panel:
    lengths = [found["mean_accept_length"] for found in held_out]
    return _panel(
        "Acceptance length, held-out text",
        "tokens per round",
        [Series("greedy", lengths, _millions(held_out))],
    )


def _rates(held_out: Sequence[dict[str, Any]]) -> Panel:
    return _slots("Conditional acceptance, held-out text", held_out, "conditional_accept_rates")


def _slots(title: str, records: Sequence[dict[str, Any]], key: str) -> Panel:
    xs = _millions(records)
    columns = zip(*(record[key] for record in records), strict=True)
    lines = [Series(f"slot {slot}", ys, xs) for slot, ys in enumerate(columns, 1)]
    return _panel(title, "probability", lines)


def _panel(title: str, y_label: str, series: Sequence[Series]) -> Panel:
    return Panel(title=title, x_label="slots, millions", y_label=y_label, series=series)


def _millions(records: Sequence[dict[str, Any]]) -> list[float]:
    return [record["slots"] / 1e6 for record in records]
