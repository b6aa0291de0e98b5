"""What a calibration is worth on prompts it was not fitted on: tables, JSON, a reliability plot.

Three predictions are judged: the drafter's own confidence, the calibrated one, and what the engine
would have planned with: the calibrated one corrected by the verdicts of all steps so far.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from outrider.analysis.calibration_fit import Drafts, Floats, drafts_of
from outrider.analysis.numbers import finite
from outrider.analysis.plots import Panel, Series, figure
from outrider.analysis.reliability import Reliability, reliability, reliability_points
from outrider.analysis.tables import table
from outrider.core.calibration import Calibration
from outrider.core.rounds import Round
from outrider.schedule.confidence import Estimator, Said

RAW, FITTED, LIVE = "raw", "calibrated", "live"
ALL: Final = "all"
PLOTTED_POSITIONS: Final = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class Judged:
    """Scores of one prediction at one position in one domain."""

    domain: str
    position: int
    prediction: str
    conditional: Reliability
    cumulative: Reliability


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Drafts of held-out prompts and what each prediction said of them."""

    drafts: Drafts
    domains: np.ndarray[Any, np.dtype[np.str_]]
    chances: Mapping[str, Floats]


def held_out(
    steps: Sequence[Sequence[tuple[str, Round]]],
    calibration: Calibration,
    kind: str,
    num_positions: int,
) -> HeldOut:
    """Apply the predictions to the rounds of each step, given with their domains."""
    drafted = [(domain, each) for step in steps for domain, each in step if each.drafted]
    drafts = drafts_of([each for _, each in drafted], num_positions)
    return HeldOut(
        drafts=drafts,
        domains=np.array([domain for domain, _ in drafted]),
        chances={
            RAW: drafts.confidence,
            FITTED: _predicted(steps, calibration, kind, num_positions, learns=False),
            LIVE: _predicted(steps, calibration, kind, num_positions, learns=True),
        },
    )


def _predicted(
    steps: Sequence[Sequence[tuple[str, Round]]],
    calibration: Calibration,
    kind: str,
    num_positions: int,
    *,
    learns: bool,
) -> Floats:
    """Conditional chances as an engine would have had them, each step before its verdicts.

    What a request's own record says is evidence, which is there also where nothing else is learnt.
    """
    estimator = Estimator(calibration, learns=learns)
    rows = []
    for step in steps:
        said = [
            Said(e.verified, e.confidence, kind, e.sources, e.reading, e.num_output)
            for _, e in step
            if e.drafted
        ]
        drafted = [each for _, each in step if each.drafted]
        estimates = [
            estimator.survival(own, each.request_id)
            for own, each in zip(said, drafted, strict=True)
        ]
        for estimate, each in zip(estimates, drafted, strict=True):
            survival = np.array([1.0, *estimate])
            row = np.full(num_positions, np.nan)
            row[: each.verified] = np.minimum(survival[1:] / np.maximum(survival[:-1], 1e-12), 1.0)
            rows.append(row)
        for own, estimate, each in zip(said, estimates, drafted, strict=True):
            estimator.learn(own, each.verified, each.accepted, each.request_id, estimate)
    return np.array(rows)


def joined(parts: Iterable[HeldOut]) -> HeldOut:
    """Put parts together that were judged by different fits."""
    found = list(parts)
    drafts = [part.drafts for part in found]
    return HeldOut(
        drafts=Drafts(
            rounds=sum((each.rounds for each in drafts), ()),
            confidence=np.concatenate([each.confidence for each in drafts]),
            sources=sum((each.sources for each in drafts), ()),
            lengths=np.concatenate([each.lengths for each in drafts]),
            accepted=np.concatenate([each.accepted for each in drafts]),
        ),
        domains=np.concatenate([part.domains for part in found]),
        chances={
            name: np.concatenate([part.chances[name] for part in found])
            for name in (RAW, FITTED, LIVE)
        },
    )


def judge(data: HeldOut) -> list[Judged]:
    """Score every prediction, by domain and over all, at every position that has drafts."""
    found = []
    for domain in (*dict.fromkeys(data.domains.tolist()), ALL):
        own = np.ones(len(data.domains), bool) if domain == ALL else data.domains == domain
        for name, chances in data.chances.items():
            products = np.nancumprod(chances, axis=1)
            for position in range(data.drafts.num_positions):
                present = own & data.drafts.present(position)
                if not present.any():
                    continue
                reached = own & data.drafts.reached(position)
                survived = data.drafts.survived(position).astype(np.float64)
                found.append(
                    Judged(
                        domain,
                        position,
                        name,
                        reliability(chances[reached, position], survived[reached]),
                        reliability(products[present, position], survived[present]),
                    )
                )
    return found


def calibration_lines(judged: Sequence[Judged]) -> list[str]:
    """Show, per domain and position, the error of each prediction."""
    lines: list[str] = []
    for domain in dict.fromkeys(each.domain for each in judged):
        own = [each for each in judged if each.domain == domain]
        head = ["position", "drafts", "survival"]
        for name in (RAW, FITTED, LIVE):
            head += [f"{name}: ECE", "by chance", "RMS", "Brier", "AUC"]
        head += [f"{name}: conditional ECE" for name in (RAW, FITTED, LIVE)]
        body = [
            _row(position, [each for each in own if each.position == position])
            for position in sorted({each.position for each in own})
        ]
        lines += ["", domain, *table([head, *body])]
    return lines[1:]


def _row(position: int, judged: Sequence[Judged]) -> list[str]:
    by_name = {each.prediction: each for each in judged}
    first = by_name[RAW].cumulative
    cells = [str(position + 1), str(first.num), _percent(first.observed)]
    for name in (RAW, FITTED, LIVE):
        scores = by_name[name].cumulative
        cells += [_percent(scores.ece), _percent(scores.ece_floor), _percent(scores.rms)]
        cells += [_number(scores.brier), _number(scores.auc)]
    return cells + [_percent(by_name[name].conditional.ece) for name in (RAW, FITTED, LIVE)]


def _percent(value: float) -> str:
    return "-" if finite(value) is None else f"{value:.1%}"


def _number(value: float) -> str:
    return "-" if finite(value) is None else f"{value:.3f}"


def calibration_record(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Give all scores for JSON; positions count from 1."""
    return [
        {
            "domain": each.domain,
            "position": each.position + 1,
            "prediction": each.prediction,
            "conditional": _finite(each.conditional),
            "cumulative": _finite(each.cumulative),
        }
        for each in judged
    ]


def _finite(scores: Reliability) -> dict[str, float | None]:
    return {name: finite(value) for name, value in asdict(scores).items()}


def reliability_plot(data: HeldOut) -> str:
    """Draw observed against predicted survival at some positions, as SVG."""
    panels = []
    for position in PLOTTED_POSITIONS:
        rows = data.drafts.present(position)
        if position >= data.drafts.num_positions or not rows.any():
            continue
        survived = data.drafts.survived(position)[rows].astype(np.float64)
        series = [Series("ideal", [0.0, 1.0], [0.0, 1.0])]
        for name, chances in data.chances.items():
            predicted = np.nancumprod(chances, axis=1)[rows, position]
            points = reliability_points(predicted, survived)
            series.append(Series(name, [y for _, y, _ in points], [x for x, _, _ in points]))
        panels.append(
            Panel(
                title=f"Survival of draft position {position + 1}",
                x_label="predicted",
                y_label="observed",
                series=series,
            )
        )
    return figure(panels)
