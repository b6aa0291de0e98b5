"""The report of `predictability` as JSON, as text and as a figure of four panels."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from outrider.analysis.benefit import ConstantCost, MeasuredRates, Regime, outlook
from outrider.analysis.numbers import finite
from outrider.analysis.plots import Panel, Series, figure
from outrider.analysis.predictability import (
    CERTAIN,
    COPY_LEN,
    Predictability,
    Text,
    certain_length,
    copying_length,
    survivals,
)
from outrider.analysis.tables import table

SMOOTHING = 8
LONGEST_DRAFT = 16
BINS = 50
_DIGITS = 6

DEFINITIONS = {
    "entropy": "-sum p ln p in nats, of the raw distribution a token was taken from",
    "top_prob": "the greatest probability of that distribution, p1",
    "surprise": "-ln p of the token that was taken, in nats",
    "certain_share": f"share of tokens with p1 > {CERTAIN}",
    "certain_runs": "lengths of stretches of consecutive certain tokens",
    "copy_rate": f"share of tokens in passages of {COPY_LEN} or more that the prompt has too",
    "repetition": f"share of tokens in passages of {COPY_LEN} or more that the output had before",
    "ceilings": "tokens per round, the target's own included: ngram and suffix replayed on the "
    "text; certain: guessing exactly the certain tokens; p1: a drafter right with chance p1",
}


def predictability_record(found: Predictability) -> dict[str, Any]:
    """Give everything as one JSON object, every token included."""
    return {
        **_figures(found),
        "domains": {name: _with_loops_apart(found.of_domain(name)) for name in found.domains},
        "definitions": DEFINITIONS,
        "outputs": [
            {
                "id": text.id,
                "domain": text.domain,
                "looping": text.is_looping,
                "token_ids": list(text.tokens),
                "entropies": _rounded(text.entropies),
                "top_probs": _rounded(text.top_probs),
                "surprises": _rounded(text.surprises),
            }
            for text in found.texts
        ],
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, _DIGITS) for value in values]


def _with_loops_apart(found: Predictability) -> dict[str, Any]:
    return _figures(found) | {"not_looping": _figures(found.only(lambda t: not t.is_looping))}


def _figures(found: Predictability) -> dict[str, Any]:
    texts, draft_len = found.texts, found.setting.draft_len
    num_tokens = sum(len(text.tokens) for text in texts)
    runs = [run for text in texts for run in text.certain_runs]
    probs = _pooled(texts, lambda text: text.top_probs)
    return {
        "num_outputs": len(texts),
        "num_tokens": num_tokens,
        "num_looping": sum(text.is_looping for text in texts),
        "entropy": _summary(_pooled(texts, lambda text: text.entropies)),
        "top_prob": _summary(probs),
        "surprise": _summary(_pooled(texts, lambda text: text.surprises)),
        "certain_share": float(np.mean(probs > CERTAIN)) if num_tokens else None,
        "certain_runs": {"num": len(runs), **_summary(np.array(runs, dtype=np.float64))},
        "copy_rate": _share(sum(text.copied for text in texts), num_tokens),
        "repetition": _share(sum(text.repeated for text in texts), num_tokens),
        "ceilings": {
            "ngram": copying_length(texts, "ngram"),
            "suffix": copying_length(texts, "suffix"),
            "certain": certain_length(texts, draft_len) if num_tokens else None,
            "p1": 1 + sum(survivals(texts, draft_len)) if num_tokens else None,
        },
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _pooled(
    texts: Sequence[Text], values: Callable[[Text], Sequence[float]]
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([value for text in texts for value in values(text)], dtype=np.float64)


def _summary(values: "np.ndarray[Any, np.dtype[np.float64]]") -> dict[str, float | None]:
    names = ("mean", "median", "p90", "max")
    if not len(values):
        return dict.fromkeys(names)
    numbers = (values.mean(), np.median(values), np.quantile(values, 0.9), values.max())
    return {name: finite(float(number)) for name, number in zip(names, numbers, strict=True)}


def predictability_lines(found: Predictability) -> list[str]:
    """Give the table by domain: how certain, how much copied, and the ceilings."""
    rows = [
        ["", "outputs", "looping", "mean H", "median H", f"p1 > {CERTAIN}", "mean run",
         "median", "longest", "copied", "repeated", "ngram", "suffix", "certain", "p1"]
    ]  # fmt: skip
    parts = [(name, found.of_domain(name)) for name in found.domains]
    for name, own in [*parts, ("all", found)]:
        record = _figures(own)
        runs, ceilings = record["certain_runs"], record["ceilings"]
        rows.append(
            [
                name,
                str(record["num_outputs"]),
                str(record["num_looping"]),
                _number(record["entropy"]["mean"]),
                _number(record["entropy"]["median"]),
                _number(record["certain_share"]),
                _number(runs["mean"], 1),
                _number(runs["median"], 1),
                _number(runs["max"], 0),
                *(_number(record[key]) for key in ("copy_rate", "repetition")),
                *(_number(ceilings[key]) for key in ("ngram", "suffix", "certain", "p1")),
            ]
        )
    draft_len = found.setting.draft_len
    note = f"H in nats; the last four: tokens per round with drafts of up to {draft_len}"
    return [*table(rows), note]


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def token_lines(text: Text, spelled: Sequence[str], limit: int) -> list[str]:
    """Give the first tokens with their numbers, one a line."""
    rows = [
        [repr(piece), f"H={entropy:.3f}", f"p1={prob:.3f}", "certain" if prob > CERTAIN else ""]
        for piece, entropy, prob in zip(spelled, text.entropies, text.top_probs, strict=True)
    ]
    return table(rows[:limit]) if rows else []


def predictability_figure(found: Predictability, *, draft_cost: float) -> str:
    """Draw the four panels as SVG; a draft token is taken to cost `draft_cost` plain steps."""
    return figure(
        [
            _entropy_panel(found),
            _run_panel(found),
            _prob_panel(found),
            _speed_panel(found, draft_cost),
        ]
    )


def _entropy_panel(found: Predictability) -> Panel:
    series = []
    for name in found.domains:
        texts = found.of_domain(name).texts
        longest = max((len(text.tokens) for text in texts), default=0)
        means = [
            float(np.mean([t.entropies[i] for t in texts if i < len(t.entropies)]))
            for i in range(longest)
        ]
        series.append(Series(name, _smoothed(means), [float(i) for i in range(longest)]))
    return Panel(
        title=f"Entropy along the output (mean of {SMOOTHING} positions)",
        x_label="output position (tokens)",
        y_label="entropy (nats)",
        series=series,
    )


def _smoothed(values: Sequence[float]) -> list[float]:
    """Mean over the last SMOOTHING positions, fewer at the start."""
    sums = [0.0, *accumulate(values)]
    return [
        (sums[i + 1] - sums[max(0, i + 1 - SMOOTHING)]) / min(i + 1, SMOOTHING)
        for i in range(len(values))
    ]


def _run_panel(found: Predictability) -> Panel:
    summaries = [_figures(found.of_domain(name))["certain_runs"] for name in found.domains]
    names = (("mean", "mean"), ("median", "median"), ("90th percentile", "p90"))
    return Panel(
        title=f"Certain runs: consecutive tokens with p1 > {CERTAIN}",
        x_label="domain",
        y_label="length (tokens)",
        series=[Series(label, [own[key] or 0.0 for own in summaries]) for label, key in names],
        groups=found.domains,
    )


def _prob_panel(found: Predictability) -> Panel:
    places = [i / BINS for i in range(BINS + 1)]
    series = []
    for name in found.domains:
        probs = _pooled(found.of_domain(name).texts, lambda text: text.top_probs)
        series.append(Series(name, [float(np.mean(probs <= x)) for x in places], places))
    return Panel(
        title="Distribution of p1",
        x_label="top-1 probability p1",
        y_label="share of tokens below",
        series=series,
    )


def _speed_panel(found: Predictability, draft_cost: float) -> Panel:
    regime = Regime("", ConstantCost(draft_per_token=draft_cost))
    series = []
    for name in found.domains:
        chances = tuple(survivals(found.of_domain(name).texts, LONGEST_DRAFT))
        model = MeasuredRates(chances, (1.0,) * len(chances))
        speedups = outlook(model, regime, LONGEST_DRAFT).speedups
        series.append(Series(name, speedups, [float(n) for n in range(len(speedups))]))
    return Panel(
        title=f"Speedup if right with chance p1 (c = {draft_cost:g}, v = 1)",
        x_label="draft tokens per round",
        y_label="speedup",
        series=series,
        mark=1.0,
    )
