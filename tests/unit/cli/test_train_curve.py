"""The figure a training run leaves."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from outrider.cli.train_curve import write_curve


def step(slots: int) -> dict[str, Any]:
    terms = {"loss": 2.0 - slots / 1e7, "l1": 1.0, "confidence": 0.5, "overlap": [0.4, 0.3]}
    return {"slots": slots, **terms}


def held_out(slots: int) -> dict[str, Any]:
    found = {"mean_accept_length": 1 + slots / 1e7, "conditional_accept_rates": [0.5, 0.2]}
    return {"held_out": {"slots": slots, **found}}


def curve_of(directory: Path, lines: list[dict[str, Any]]) -> str | None:
    metrics = directory / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    path = write_curve(metrics)
    assert path is None or path.parent == directory
    return None if path is None else path.read_text("utf-8")


def test_a_run_is_drawn_with_a_line_per_slot(tmp_path: Path) -> None:
    """Catches held-out records read as steps, and slots mixed up with steps."""
    lines = [step(1_000_000), held_out(1_000_000), step(2_000_000), held_out(2_000_000)]
    text = curve_of(tmp_path, lines)
    assert text is not None
    ET.fromstring(text)
    for title in ("Loss", "Overlap", "Acceptance length", "Conditional acceptance"):
        assert title in text
    assert text.count(">slot 2<") == 2


def test_what_has_no_line_is_left_out(tmp_path: Path) -> None:
    """A run of a few steps has one look at held-out text, or no line of 20 steps."""
    only_steps = curve_of(tmp_path, [step(1), held_out(1), step(2)])
    assert only_steps is not None
    assert "Loss" in only_steps
    assert "held-out" not in only_steps
    assert curve_of(tmp_path, [step(1), held_out(1)]) is None
