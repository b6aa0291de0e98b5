"""The counterfactual of a trace for people and for JSON."""

from typing import Any

from outrider.analysis.counterfactual import Alternative, Counterfactual
from outrider.analysis.tables import table


def regret_lines(found: Counterfactual) -> list[str]:
    """Show tokens per second of every alternative beside the run."""
    plain = found.fixed[0].throughput
    listed = (*found.fixed, found.actual, found.oracle)
    head = ["verify length", "tokens/s", "over none", "tokens/round", "wasted rows"]
    body = [
        [
            each.name,
            f"{each.throughput:.1f}",
            f"{each.throughput / plain:.3f}",
            f"{each.tokens / found.rounds:.2f}",
            f"{each.wasted:.0%}",
        ]
        for each in listed
    ]
    lines = [
        *table([head, *body]),
        "",
        f"regret {found.regret:.1%} of the oracle's tokens per second; the best fixed length "
        f"({found.best_fixed.name}) reaches {found.best_fixed.throughput:.1f} tokens/s",
        f"{found.rounds} rounds in {found.num_steps} steps, priced by the step cost table",
    ]
    if found.censored:
        lines.append(
            f"{found.censored} rounds were cut while all held: longer lengths are estimates there"
        )
    if found.prediction_error is not None:
        lines.append(
            f"median error of the predicted seconds of a step: {found.prediction_error:.1%}"
        )
    return lines


def regret_record(found: Counterfactual) -> dict[str, Any]:
    """Give everything as one JSON object."""
    return {
        "fixed": [_record(each) for each in found.fixed],
        "actual": _record(found.actual),
        "oracle": _record(found.oracle),
        "regret": found.regret,
        "num_steps": found.num_steps,
        "rounds": found.rounds,
        "censored": found.censored,
        "prediction_error": found.prediction_error,
    }


def _record(each: Alternative) -> dict[str, Any]:
    return {
        "name": each.name,
        "output_throughput": each.throughput,
        "tokens": each.tokens,
        "seconds": each.seconds,
        "verified": each.verified,
        "wasted": each.wasted,
    }
