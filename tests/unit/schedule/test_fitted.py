"""Chances by all evidence: what they depend on, what is learnt, what is dropped."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.calibration import Calibration, Effect, SourceFit, log_odds, sigmoid
from outrider.core.ids import RequestId
from outrider.core.reading import Kind, Reading
from outrider.schedule.confidence import Estimator, Said
from outrider.schedule.fitted import MOST

A, B = RequestId("a"), RequestId("b")
KINDS: Sequence[Kind] = ("word", "inside", "mark", "line", "figure")
FITS = {
    "text": SourceFit(
        effects={
            "": Effect(0.8, 0.1, -0.05),
            "in code": Effect(0.1, 0.4, 0.0),
            "age 0": Effect(0.0, -0.3, 0.0),
            "first": Effect(0.0, 0.2, 0.0),
            "after net": Effect(0.0, -0.6, 0.0),
            "sure 2": Effect(0.0, 0.3, 0.0),
            "behind line": Effect(-0.2, -0.8, 0.0),
        },
        by_share={"text": Effect(0.5, 1.5, 0.0)},
    ),
    "net": SourceFit(effects={"": Effect(1.1, -0.2, 0.0)}),
}


def estimator(*, learns: bool = True) -> Estimator:
    calibration = Calibration("m", "d", 7, "logistic", {"greedy": 0.0}, {"greedy": FITS})
    return Estimator(calibration, learns=learns)


def said_of(confidence: Sequence[float], **changes: object) -> Said:
    num = len(confidence)
    word: Kind = "word"
    reading = Reading("code", (word,) * num)
    said = Said(num, confidence, "greedy", ("text",) * num, reading, num_output=9)
    return replace(said, **changes)  # type: ignore[arg-type]


def test_a_chance_by_hand() -> None:
    """Catches an effect that is left out, counted twice, or of another token or source."""
    said = said_of(
        [0.9, 0.7], sources=("net", "text"), reading=Reading("code", ("line", "line")), num_output=0
    )
    first, both = estimator().survival(said)
    assert first == pytest.approx(sigmoid(1.1 * log_odds(0.9) - 0.2))
    slope, shift = 0.8 + 0.1 - 0.2, 0.1 + 0.4 - 0.3 - 0.6 + 0.3 - 0.8 - 0.05
    assert both / first == pytest.approx(sigmoid(slope * log_odds(0.7) + shift))


def test_what_was_not_fitted_stays_as_it_is() -> None:
    """Catches a source or a kind of requests that is taken for another."""
    confidence = [0.9, 0.8, 0.5]
    expected = [0.9, 0.72, 0.36]
    other = said_of(confidence, sources=("new",) * 3)
    assert estimator().survival(other) == pytest.approx(expected, abs=0.001)
    rule = said_of(confidence, kind="rejection")
    assert estimator().survival(rule) == pytest.approx(expected, abs=0.01)


tokens = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["text", "net", "new"]), st.sampled_from(KINDS)),
    min_size=1,
    max_size=9,
)


def drawn(draft: Sequence[tuple[float, str, Kind]]) -> Said:
    confidence, sources, kinds = zip(*draft, strict=True)
    return said_of(confidence, sources=sources, reading=Reading("words", kinds))


@given(tokens, tokens, st.integers(0, 9))
def test_nothing_looks_ahead(
    draft: list[tuple[float, str, Kind]], other: list[tuple[float, str, Kind]], length: int
) -> None:
    """Catches an estimate that depends on later tokens of its draft, or on its own verdict."""
    one, two = estimator(), estimator()
    said, changed = drawn(draft), drawn([*draft[:length], *other])
    same = min(length, len(draft))
    assert one.survival(said, A)[:same] == two.survival(changed, A)[:same]
    survival = one.survival(said, A)
    assert one.survival(said, A) == survival
    for before, after in zip([1.0, *survival], survival, strict=False):
        assert 0 <= after <= before
    one.learn(said, len(draft), min(length, len(draft)), A)
    for before, after in zip([1.0, *one.survival(said, A)], one.survival(said, A), strict=False):
        assert 0 <= after <= before


def test_offsets_follow_what_is_accepted_here() -> None:
    """Catches a workload the fit does not suit and that is never followed, or without bound."""
    own, numbers = estimator(), random.Random(3)
    said = said_of([0.9])
    before = own.survival(said, A)[0]
    for _ in range(2500):
        own.learn(said, 1, int(numbers.random() < before - 0.07), B)
        own.forget(B)
    assert own.survival(said, A)[0] == pytest.approx(before - 0.07, abs=0.03)
    for _ in range(9000):
        own.learn(said, 1, 0, B)
    fixed = estimator(learns=False)
    lowest = sigmoid(log_odds(before) - MOST)
    assert own.survival(said, A)[0] == pytest.approx(lowest, abs=1e-6)
    fixed.learn(said, 1, 0, B)
    assert fixed.survival(said, A)[0] == before


def test_a_request_has_a_record_of_its_own() -> None:
    """Catches a record that reaches other requests, or outlives its own."""
    own = estimator(learns=False)
    said = said_of([0.6] * 5)
    before = own.survival(said, A)
    for _ in range(20):
        own.learn(said, 5, 5, A)
    assert own.survival(said, A)[0] > before[0] + 0.1
    assert own.survival(said, B) == before
    own.forget(A)
    assert own.survival(said, A) == before
    own.forget(A)


def test_short_verify_lengths_do_not_look_like_text_that_cannot_be_drafted() -> None:
    """Catches a record of what was verified instead of what could be drafted: it feeds itself."""
    said = said_of([0.95] * 6)
    whole, cut, none, rejected = (estimator(learns=False) for _ in range(4))
    for _ in range(20):
        whole.learn(said, 6, 6, A)
        cut.learn(said, 2, 2, A)
        none.learn(said, 0, 0, A)
        rejected.learn(said, 2, 0, A)
    first = [each.survival(said, A)[0] for each in (rejected, none, cut, whole)]
    assert first == sorted(first)
    assert first[0] < first[1] - 0.02
    assert first[3] - first[1] < 0.02


def test_only_judged_tokens_teach() -> None:
    """Catches tokens behind the first rejected one that count as rejected."""
    once, all_rejected = estimator(), estimator()
    said = said_of([0.9] * 4)
    once.learn(said, 1, 0, A)
    all_rejected.learn(said, 4, 0, A)
    assert once.survival(said, B) == all_rejected.survival(said, B)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.1, 1.5])
def test_confidence_that_is_none_is_replaced(bad: float, caplog: pytest.LogCaptureFixture) -> None:
    """Catches a NaN that reaches a plan, or a crash in learning from it."""
    own, said = estimator(), said_of([bad, 0.5])
    assert own.survival(said, A) == pytest.approx([0.5, 0.25])
    own.learn(said, 2, 1, A)
    assert all(0 <= chance <= 1 for chance in own.survival(said, A))
    assert len(caplog.records) == 1
