"""Two results side by side: what is read, what is refused, what counts as worse."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.analysis.serve_compare import (
    Change,
    compare,
    compare_lines,
    differing_settings,
    read_result,
    regressions,
)
from outrider.errors import ConfigError

SERVE: dict[str, Any] = {
    "duration": 1.0,
    "request_throughput": 2.0,
    "request_goodput": None,
    "output_throughput": 100.0,
    "median_ttft_ms": 50.0,
    "median_tpot_ms": 10.0,
    "p99_tpot_ms": 20.0,
    "model_id": "m",
    "max_concurrency": 4,
}
RUN: dict[str, Any] = {
    "plain": {"output_throughput": 50.0},
    "speculative": {"output_throughput": 100.0, "median_tpot_ms": 10.0},
    "speedup": 2.0,
    "setting": {"max_tokens": 5},
}


def write(folder: Path, name: str, record: Any, before: str = "") -> Path:
    path = folder / name
    path.write_text(before + json.dumps(record))
    return path


def test_results_are_paired_by_figure(tmp_path: Path) -> None:
    """Catches a ratio upside down, and a figure without a value taken for zero."""
    first = read_result(write(tmp_path, "a", SERVE))
    later = SERVE | {"output_throughput": 150.0, "median_tpot_ms": 8.0, "max_concurrency": 8}
    second = read_result(write(tmp_path, "b", later, before="requests  3 completed\n"))
    changes = {each.name: each for each in compare(first, second)}
    assert changes["output_throughput"].ratio == 1.5
    assert changes["median_tpot_ms"].ratio == 0.8
    assert "request_goodput" not in changes
    assert differing_settings(first, second) == ["max_concurrency: 4 and 8"]


def test_results_of_paired_runs_are_read(tmp_path: Path) -> None:
    """Catches a comparison that knows one benchmark only."""
    result = read_result(write(tmp_path, "a", RUN))
    assert result.figures == {
        "plain.output_throughput": 50.0,
        "speculative.output_throughput": 100.0,
        "speculative.median_tpot_ms": 10.0,
        "speedup": 2.0,
    }


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Catches a traceback, and ratios between figures that mean different things."""
    serve, run = (
        read_result(write(tmp_path, name, each)) for name, each in [("a", SERVE), ("b", RUN)]
    )
    with pytest.raises(ConfigError, match="of one kind"):
        compare(serve, run)
    for text in ("", "no json", "[1]", '"x"'):
        (tmp_path / "c").write_text(text)
        with pytest.raises(ConfigError, match="is not JSON"):
            read_result(tmp_path / "c")
    with pytest.raises(ConfigError, match="no result of"):
        read_result(write(tmp_path, "c", {"accepted": 1}))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_result(tmp_path / "missing")


def test_worse_is_slower_or_later() -> None:
    """Catches a gain called a loss: throughputs should grow, latencies shrink."""
    slower = Change("output_throughput", 100.0, 90.0)
    later = Change("median_tpot_ms", 10.0, 11.0)
    faster = Change("median_ttft_ms", 10.0, 5.0)
    unasked = Change("p99_tpot_ms", 10.0, 100.0)
    changes = [slower, later, faster, unasked]
    assert regressions(changes, 0.05) == [slower, later]
    assert regressions(changes, 0.2) == []
    assert regressions(changes, 0.2, ["p99_tpot_ms"]) == [unasked]
    assert [line.endswith("worse") for line in compare_lines(changes, [slower])][1:] == [
        True,
        False,
        False,
        False,
    ]


def test_sides_are_meant_by_their_common_name() -> None:
    """Catches a gate that never closes because figures carry the side's name."""
    changes = [Change("plain.output_throughput", 10.0, 5.0), Change("speedup", 2.0, 1.0)]
    assert regressions(changes, 0.1) == changes[:1]
    assert regressions(changes, 0.1, ["speedup"]) == changes[1:]
    with pytest.raises(ConfigError, match=r"unknown figure 'spedup'.*did you mean 'speedup'"):
        regressions(changes, 0.1, ["spedup"])


def test_a_figure_that_was_zero_has_no_ratio() -> None:
    """Catches a division by zero where everything failed before."""
    change = Change("output_throughput", 0.0, 5.0)
    assert change.ratio is None
    assert regressions([change], 0.0) == []
