"""The report of `acceptance_eval` as JSON and as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.analysis.acceptance_eval import EvalReport, EvalRun, PromptTally
from outrider.analysis.numbers import acceptance_record, finite
from outrider.analysis.tables import table
from outrider.core.acceptance import Acceptance

CONVENTIONS = {
    "mean_accept_length": "tokens per round, the target's own token included",
    "mean_accepted_tokens": "draft tokens accepted per round, the target's own token left out",
    "acceptance_length_histogram": "entry i counts the rounds that accepted i draft tokens",
    "conditional_accept_rates": "of the rounds that accepted everything before a position",
    "marginal_accept_rates": "of the rounds that sent a position",
    "interval": "95 % bootstrap over prompts, within domains",
    "rounds": "those that start within max_tokens, without the one that ends the prompt",
    "mean_accept_length_over_domains": "mean of the domains' figures, each weighing the same",
}


def eval_record(report: EvalReport) -> dict[str, Any]:
    """Give everything as one JSON object; the figures at the top are the first temperature's."""
    first = run_record(report.runs[0])
    domains = {name: record["mean_accept_length"] for name, record in first["domains"].items()}
    top = (
        "mean_accept_length",
        "mean_accept_length_interval",
        "mean_accepted_tokens",
        "mean_accept_length_over_domains",
        "mean_accept_length_over_domains_interval",
    )
    return {
        **{name: first[name] for name in top},
        "mean_accept_length_by_domain": domains,
        "conditional_accept_rates": first["conditional_accept_rates"],
        "marginal_accept_rates": first["marginal_accept_rates"],
        "acceptance_length_histogram": first["acceptance_length_histogram"],
        "runs": [run_record(run) for run in report.runs],
        "conventions": CONVENTIONS,
    }


def run_record(run: EvalRun) -> dict[str, Any]:
    """One temperature: the whole, by domain, looping and other outputs apart, and by prompt."""
    looping, other = run.only(lambda p: p.is_looping), run.only(lambda p: not p.is_looping)
    return {
        "temperature": run.temperature,
        **_figures(run),
        **_over_domains(run),
        "domains": {name: _figures(run.of_domain(name)) for name in run.domains},
        "not_looping": _figures(other) | _over_domains(other),
        "looping": _figures(looping),
        "prompts": [prompt.record() for prompt in run.prompts],
    }


def _figures(run: EvalRun) -> dict[str, Any]:
    counts = run.counts
    return {
        "mean_accept_length": finite(counts.acceptance_length),
        "mean_accept_length_interval": run.length_interval,
        "mean_accepted_tokens": finite(counts.acceptance_length - 1),
        "num_prompts": len(run.prompts),
        "num_looping": sum(prompt.is_looping for prompt in run.prompts),
        **acceptance_record(counts),
        "conditional_accept_rate_intervals": _rate_intervals(run, "reached_at"),
        "marginal_accept_rate_intervals": _rate_intervals(run, "verified_at"),
        "mean_confidences": _mean_confidences(run.prompts),
        "acceptance_length_histogram": _histogram(run.prompts),
        "sources": _sources(run, counts),
    }


def _sources(run: EvalRun, counts: Acceptance) -> dict[str, dict[str, Any]]:
    record: dict[str, dict[str, Any]] = acceptance_record(counts)["sources"]
    led = run.led
    return {
        name: {
            **own,
            "rounds": led[name].rounds if name in led else 0,
            "mean_accept_length": led[name].acceptance_length if name in led else None,
        }
        for name, own in record.items()
    }


def _over_domains(run: EvalRun) -> dict[str, Any]:
    """The mean over domains; None where a domain has no round."""
    lengths = [run.of_domain(name).counts.acceptance_length for name in run.domains]
    accepted = [prompt.counts.accepted for prompt in run.prompts]
    rounds = [prompt.counts.rounds for prompt in run.prompts]
    found = run.draws.mean_ratio(accepted, rounds) if run.prompts else None
    return {
        "mean_accept_length_over_domains": finite(float(np.mean(lengths))) if lengths else None,
        "mean_accept_length_over_domains_interval": (
            None if found is None else (1 + found[0], 1 + found[1])
        ),
    }


def _rate_intervals(run: EvalRun, wholes: str) -> list[tuple[float, float] | None]:
    positions = range(len(run.counts.verified_at))
    return [
        run.draws.ratio(
            [_at(prompt.counts.accepted_at, position) for prompt in run.prompts],
            [_at(getattr(prompt.counts, wholes), position) for prompt in run.prompts],
        )
        for position in positions
    ]


def _at(counts: Sequence[int], position: int) -> int:
    return counts[position] if position < len(counts) else 0


def _mean_confidences(prompts: Sequence[PromptTally]) -> list[float]:
    """What the drafter expected, position by position, of the rounds behind the conditional rate.

    Empty where it gives no confidences.
    """
    num = max((len(prompt.confident_at) for prompt in prompts), default=0)
    sums = [
        sum(p.confidence_at[i] for p in prompts if i < len(p.confidence_at)) for i in range(num)
    ]
    counts = [sum(_at(p.confident_at, i) for p in prompts) for i in range(num)]
    return [each / count for each, count in zip(sums, counts, strict=True)]


def _histogram(prompts: Sequence[PromptTally]) -> list[int]:
    longest = max((max(p.histogram) for p in prompts if p.histogram), default=-1)
    return [sum(p.histogram[length] for p in prompts) for length in range(longest + 1)]


def eval_lines(report: EvalReport) -> list[str]:
    """Give the tables: by domain, by position, by source."""
    lines: list[str] = []
    for run in report.runs:
        record = run_record(run)
        title = "greedy" if run.temperature == 0 else f"temperature {run.temperature:g}"
        lines += [f"{title}, drafts of up to {report.setting.draft_len}", *_domain_table(record)]
        lines += ["", *_position_table(record)]
        if record["sources"]:
            lines += ["", *_source_table(record)]
        lines.append("")
    return lines[:-1]


def _domain_table(record: dict[str, Any]) -> list[str]:
    rows = [["", "prompts", "acc. length", "95 %", "accepted", "acc. rate"]]
    rows += [_cells(name, own) for name, own in record["domains"].items()]
    rows.append(_cells("all", record))
    mean = record["mean_accept_length_over_domains"]
    if len(record["domains"]) > 1 and mean is not None:
        interval = record["mean_accept_length_over_domains_interval"]
        rows.append(["mean over domains", "", f"{mean:.3f}", _spread(interval), "", ""])
    if record["num_looping"]:
        rows.append(_cells("looping outputs", record["looping"]))
        rows.append(_cells("all others", record["not_looping"]))
    return table(rows)


def _cells(name: str, record: dict[str, Any]) -> list[str]:
    return [
        name,
        str(record["num_prompts"]),
        _number(record["mean_accept_length"]),
        _spread(record["mean_accept_length_interval"]),
        _number(record["mean_accepted_tokens"]),
        _number(record["acceptance_rate"]),
    ]


def _position_table(record: dict[str, Any]) -> list[str]:
    names = list(record["domains"])
    rows = [["position", "conditional", "95 %", "marginal", "expected", *names]]
    for position, rate in enumerate(record["conditional_accept_rates"]):
        confidences = record["mean_confidences"]
        rows.append(
            [
                str(position + 1),
                _number(rate),
                _spread(record["conditional_accept_rate_intervals"][position]),
                _number(record["marginal_accept_rates"][position]),
                _number(confidences[position] if position < len(confidences) else None),
                *(_number(_rate(record["domains"][name], position)) for name in names),
            ]
        )
    return table(rows)


def _rate(record: dict[str, Any], position: int) -> float | None:
    rates: list[float | None] = record["conditional_accept_rates"]
    return rates[position] if position < len(rates) else None


def _source_table(record: dict[str, Any]) -> list[str]:
    rows = [["source", "rounds", "acc. length", "tokens", "reached", "accepted", "acc. rate"]]
    for name, own in record["sources"].items():
        counts = [str(own[key]) for key in ("verified", "reached", "accepted")]
        rate = _number(own["accept_rate"])
        rows.append([name, str(own["rounds"]), _number(own["mean_accept_length"]), *counts, rate])
    return table(rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _spread(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
