"""Calibrations: curves that are fitted, scores that are computed, files that are read."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.analysis.calibration_fit import drafts_of, fit
from outrider.analysis.calibration_report import (
    FITTED,
    LIVE,
    RAW,
    Judged,
    calibration_lines,
    calibration_record,
    held_out,
    joined,
    judge,
    reliability_plot,
)
from outrider.analysis.reliability import (
    area_under_roc,
    debiased_error,
    expected_calibration_error,
    reliability,
)
from outrider.core.calibration import (
    METHODS,
    Calibration,
    Curve,
    Effect,
    Method,
    SourceFit,
    log_odds,
    sigmoid,
)
from outrider.core.ids import RequestId
from outrider.core.reading import Kind, Reading
from outrider.core.rounds import Round
from outrider.errors import ConfigError
from outrider.schedule.confidence import Estimator, Said
from tests.unchecked import unchecked

POSITIONS = 3


def overconfident(num: int, seed: int, *, source: str | None = None) -> list[Round]:
    """Drafts whose true log-odds are half of what they say, less one half."""
    numbers, rounds = random.Random(seed), []
    for _ in range(num):
        confidence = tuple(numbers.uniform(0.3, 0.99) for _ in range(POSITIONS))
        accepted = 0
        while accepted < POSITIONS and numbers.random() < sigmoid(
            0.5 * log_odds(confidence[accepted]) - 0.5
        ):
            accepted += 1
        rounds.append(round_of(confidence, accepted, source))
    return rounds


def round_of(
    confidence: tuple[float, ...] | None, accepted: int, source: str | None = None, drafted: int = 0
) -> Round:
    num = len(confidence or ())
    return Round(
        request_id=RequestId("r"),
        num_output=1,
        drafted=drafted or num,
        verified=num,
        accepted=accepted,
        delivered=accepted + 1,
        confidence=confidence,
        sources=None if source is None else (source,) * num,
    )


def calibration_of(fits: dict[str, SourceFit], method: Method = "logistic") -> Calibration:
    return Calibration("m", "suffix", POSITIONS, method, {"greedy": 0.0}, {"greedy": fits})


def scores(judged: list[Judged], prediction: str, position: int) -> Judged:
    (found,) = [
        each
        for each in judged
        if (each.domain, each.prediction, each.position) == ("all", prediction, position)
    ]
    return found


@pytest.mark.parametrize("method", METHODS)
@unchecked()
def test_every_method_mends_what_is_too_confident(method: Method) -> None:
    """Catches a fit of the wrong sign, on the wrong tokens, or that makes things worse."""
    fits = fit(drafts_of(overconfident(1500, seed=1), POSITIONS), method)
    steps = [[("code", each)] for each in overconfident(1500, seed=2)]
    judged = judge(held_out(steps, calibration_of(fits, method), "greedy", POSITIONS))
    for position in range(POSITIONS):
        before = scores(judged, RAW, position).cumulative
        after = scores(judged, FITTED, position).cumulative
        assert before.ece > 0.08
        # A temperature has no shift, so it cannot be right here; the other two can.
        assert after.ece < (0.8 if method == "sequential" else 0.5) * before.ece
        assert after.brier < before.brier
    assert scores(judged, LIVE, 2).cumulative.ece < 0.05


@unchecked()
def test_logistic_curves_find_slope_and_shift() -> None:
    """Catches censored tokens in the fit: only tokens that were reached follow the law."""
    found = fit(drafts_of(overconfident(6000, seed=3), POSITIONS), "logistic")
    estimator = Estimator(calibration_of(found))
    for confidence in (0.4, 0.7, 0.95):
        expected = sigmoid(0.5 * log_odds(confidence) - 0.5)
        survival = estimator.survival(Said(POSITIONS, [confidence] * POSITIONS))
        assert survival == pytest.approx([expected, expected**2, expected**3], abs=0.05)


@unchecked()
def test_evidence_is_told_apart() -> None:
    """Catches evidence that is ignored: the confidence is the same behind words and lines."""
    numbers, rounds = random.Random(6), []
    for _ in range(3000):
        kind: Kind = "line" if numbers.random() < 0.3 else "word"
        accepted = numbers.random() < (0.4 if kind == "line" else 0.8)
        rounds.append(replace(round_of((0.7,), int(accepted)), reading=Reading("words", (kind,))))
    own = Estimator(calibration_of(fit(drafts_of(rounds, POSITIONS), "logistic")))
    for kind, rate in (("line", 0.4), ("word", 0.8)):
        said = Said(1, [0.7], reading=Reading("words", (kind,)), num_output=1)
        assert own.survival(said) == pytest.approx([rate], abs=0.04)


@unchecked()
def test_shares_of_the_text_are_evidence() -> None:
    """Catches a record that is not kept while fitting, or kept for somebody else."""
    numbers, rounds = random.Random(7), []
    for number in range(60):
        request_id, rate = RequestId(str(number)), 0.95 if number % 2 else 0.4
        for _ in range(60):
            accepted = 0
            while accepted < POSITIONS and numbers.random() < rate:
                accepted += 1
            own_round = round_of((0.7,) * POSITIONS, accepted, "text")
            rounds.append(replace(own_round, request_id=request_id, num_output=200))
    own = Estimator(calibration_of(fit(drafts_of(rounds, POSITIONS), "logistic")), learns=False)
    said = Said(1, [0.7], sources=("text",), num_output=200)
    whole = Said(POSITIONS, [0.7] * POSITIONS, sources=("text",) * POSITIONS, num_output=200)
    for _ in range(30):
        own.learn(whole, POSITIONS, POSITIONS, RequestId("copies"))
        own.learn(whole, POSITIONS, 0, RequestId("does not"))
    assert own.survival(said, RequestId("copies"))[0] > 0.85
    assert own.survival(said, RequestId("does not"))[0] < 0.6


@unchecked()
def test_sources_get_curves_of_their_own() -> None:
    """Catches a good source that pays for a bad one."""
    good = [round_of((0.9,) * POSITIONS, POSITIONS, "good") for _ in range(200)]
    bad = [round_of((0.9,) * POSITIONS, 0, "bad") for _ in range(200)]
    curves = {
        name: own.curves
        for name, own in fit(drafts_of([*good, *bad], POSITIONS), "isotonic").items()
    }
    assert curves["good"][0](0.9) > 0.9
    assert curves["bad"][0](0.9) < 0.2
    # Nobody got beyond the first bad token: nothing is known, and the confidence stays.
    assert curves["bad"][1](0.9) == pytest.approx(0.9, abs=0.01)
    own = Estimator(calibration_of(fit(drafts_of([*good, *bad], POSITIONS), "logistic")))
    assert own.survival(Said(1, [0.9], sources=("good",), num_output=1))[0] > 0.9
    assert own.survival(Said(1, [0.9], sources=("bad",), num_output=1))[0] < 0.3


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        ([], "nothing was drafted"),
        ([round_of((0.5,), 0, drafted=3)], "cut before they were verified"),
        ([round_of(None, 0, drafted=0)], "nothing was drafted"),
    ],
)
@unchecked()
def test_records_that_cannot_be_fitted(rounds: list[Round], says: str) -> None:
    """Catches a fit on censored drafts, or on none."""
    with pytest.raises(ConfigError, match=says):
        drafts_of(rounds, POSITIONS)


@unchecked()
def test_scores_by_hand() -> None:
    """Catches bins that are not weighted, ties that count fully, an error that cancels."""
    predicted = np.array([0.9, 0.9, 0.1, 0.1])
    happened = np.array([1.0, 0.0, 0.0, 0.0])
    assert expected_calibration_error(predicted, happened) == pytest.approx((2 * 0.4 + 2 * 0.1) / 4)
    assert area_under_roc(predicted, happened) == pytest.approx((0.5 + 1 + 1) / 3)
    assert math.isnan(area_under_roc(predicted, np.ones(4)))
    found = reliability(predicted, happened)
    assert found.brier == pytest.approx((0.01 + 0.81 + 0.01 + 0.01) / 4)
    assert (found.num, found.predicted, found.observed) == (4, 0.5, 0.25)
    assert reliability(np.array([]), np.array([])).num == 0


@unchecked()
def test_the_error_by_chance_is_what_chance_does() -> None:
    """Catches a floor of the wrong size: exact predictions, 300 draws of 200 events each."""
    generator = np.random.default_rng(4)
    predicted = generator.uniform(0, 1, 200)
    errors = [
        expected_calibration_error(
            predicted, (generator.uniform(0, 1, 200) < predicted).astype(np.float64)
        )
        for _ in range(300)
    ]
    assert reliability(predicted, predicted).ece_floor == pytest.approx(np.mean(errors), rel=0.1)


@unchecked()
def test_chance_is_taken_out_of_the_error() -> None:
    """Catches a bias of the estimator: exact predictions, and ones that are off by a tenth."""
    generator = np.random.default_rng(5)
    exact, off = [], []
    for _ in range(40):
        predicted = generator.uniform(0.2, 0.8, 2000)
        happened = (generator.uniform(0, 1, 2000) < predicted).astype(np.float64)
        exact.append(debiased_error(predicted, happened) ** 2)
        off.append(debiased_error(predicted + 0.1, happened))
    assert np.mean(exact) < 0.02**2
    assert np.mean(off) == pytest.approx(0.1, abs=0.01)
    assert debiased_error(np.array([0.5]), np.array([1.0])) == 0.0


@unchecked()
def test_a_report_has_every_domain_and_draws() -> None:
    """Catches a domain that is dropped or NaN that reaches JSON, in parts put together."""
    steps = [[("code", each)] for each in overconfident(60, seed=4)]
    fits = calibration_of({"": SourceFit(curves=(Curve(),) * POSITIONS)})
    last: list[list[tuple[str, Round]]] = [[("chat", round_of((0.5, 0.5), 2))]]
    data = joined(held_out(part, fits, "greedy", POSITIONS) for part in (steps, last))
    judged = judge(data)
    assert {each.domain for each in judged} == {"code", "chat", "all"}
    assert "chat" in calibration_lines(judged)
    json.dumps(calibration_record(judged), allow_nan=False)
    assert reliability_plot(data).startswith("<svg")


# Plain numbers: curves are made in the tests, since the shape checker draws samples of its own.
numbers = st.tuples(st.floats(0, 4), st.floats(-4, 4), st.lists(st.floats(0, 1), max_size=6))


def curve_of(drawn: tuple[float, float, list[float]]) -> Curve:
    slope, shift, chances = drawn
    places = [(index + 1) / (len(chances) + 1) for index in range(len(chances))]
    return Curve(slope, shift, tuple(zip(places, sorted(chances), strict=True)))


@given(numbers, st.floats(0, 1), st.floats(0, 1))
def test_curves_rise_within_the_unit_interval(
    drawn: tuple[float, float, list[float]], a: float, b: float
) -> None:
    """Catches a curve that turns the order of confidences round or leaves [0, 1]."""
    curve = curve_of(drawn)
    low, high = curve(min(a, b)), curve(max(a, b))
    assert 0 <= low <= high + 1e-9 <= 1 + 2e-9


@given(st.dictionaries(st.sampled_from(["", "suffix"]), st.lists(numbers, max_size=3), max_size=2))
def test_a_calibration_survives_its_file(
    found: dict[str, list[tuple[float, float, list[float]]]],
) -> None:
    """Catches a curve that is lost or rounded on the way."""
    fits = {
        name: SourceFit(
            tuple(map(curve_of, own)),
            {"in code": Effect(own[0][0], own[0][1], 0.5)} if own else {},
            {"text": Effect(0.0, 1.5, -0.1)},
        )
        for name, own in found.items()
    }
    calibration = calibration_of(fits)
    assert Calibration.from_json(calibration.to_json(), "f") == calibration


def damaged(**change: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"curves": [], "effects": {}, "by_share": {}}
    return {"kinds": {"greedy": {"": whole | change}}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 1}, "not a calibration of version 2"),
        ({"format": "x"}, "not a calibration"),
        ({"method": "isotonc"}, "did you mean 'isotonic'"),
        (damaged(curves=[{"slope": -1, "shift": 0, "knots": []}]), "damaged"),
        (
            damaged(curves=[{"slope": 1, "shift": 0, "knots": [[0.2, 0.9], [0.5, 0.1]]}]),
            "damaged",
        ),
        (damaged(curves=[{"slope": 1, "shift": 0, "knots": [[0.2, 1.9]]}]), "damaged"),
        (damaged(effects={"first": [1.0, float("nan"), 0.0]}), "damaged"),
        (damaged(by_share={"text": [1.0, 0.0]}), "damaged"),
        ({"kinds": 3}, "damaged"),
    ],
    ids=str,
)
def test_damaged_calibrations_are_named(change: dict[str, Any], says: str) -> None:
    """Catches curves that fall or lead out of [0, 1], and a crash on a broken file."""
    record = json.loads(calibration_of({"": SourceFit((Curve(),))}).to_json()) | change
    with pytest.raises(ConfigError, match=says):
        Calibration.from_json(json.dumps(record), "f")
