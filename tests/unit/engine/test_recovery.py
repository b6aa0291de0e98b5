"""A request that breaks a step ends alone; those who shared the step go on unchanged."""

from collections.abc import Sequence

import pytest
import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import FinishReason
from outrider.core.request import Request, SamplingParams
from outrider.drafters.base import Drafter
from outrider.engine.engine import Engine
from outrider.engine.recovery import recover
from outrider.engine.report import Delta, StepReport
from outrider.testing.scripted import (
    TinyEngine,
    random_drafter,
    requests_of,
    run_all,
    table_drafter,
    tiny_engine,
)
from outrider.testing.table_target import SeededTable, TableTarget

PROMPTS = [[2, 3, 4], [5, 6], [7, 8, 9, 10]]


class Letters:
    """A decoder that breaks at one token, if it has one."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self._breaks_at = breaks_at

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if ids and ids[-1] == self._breaks_at:
            raise LookupError("no such letter")
        return "".join(chr(97 + token) for token in ids)


def engine_of(
    decoder: Letters | None = None, *, num_blocks: int = 64, drafter: Drafter | None = None
) -> Engine:
    target = TableTarget(
        SeededTable(26, seed=1, sharpness=3.0), 26, num_blocks=num_blocks, block_size=4
    )
    options = TinyEngine(num_blocks=num_blocks, decoder=decoder or Letters())
    return tiny_engine(target, drafter or random_drafter(3, 26, seed=2), options)


def serve(
    engine: Engine, requests: Sequence[Request]
) -> tuple[dict[str, list[Delta]], dict[str, str]]:
    """Step until nothing is left, as a server does: (deltas by id, reason by id given up)."""
    for request in requests:
        engine.add(request)
    deltas: dict[str, list[Delta]] = {request.id: [] for request in requests}
    given_up: dict[str, str] = {}

    def tell(report: StepReport) -> None:
        for delta in report.deltas:
            deltas[delta.request_id].append(delta)

    while engine.has_work:
        try:
            tell(engine.step())
        except LookupError as error:
            for outcome in recover(engine, error):
                if isinstance(outcome, StepReport):
                    tell(outcome)
                else:
                    engine.abort(outcome[0])
                    given_up[outcome[0]] = outcome[1]
    return deltas, given_up


def tokens_of(deltas: Sequence[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def broken_drafter() -> Drafter:
    """Drafts well, but raises for the second prompt once there are nine tokens."""
    table = SeededTable(26, seed=1, sharpness=2.0)

    def rows(prefix: tuple[int, ...]) -> torch.Tensor:
        if prefix[:2] == (5, 6) and len(prefix) >= 9:
            raise LookupError("the drafter is broken")
        return table(prefix)

    return table_drafter(3, rows)


@pytest.mark.parametrize("num_blocks", [64, 9], ids=["roomy", "tight"])
def test_a_request_that_breaks_its_step_ends_alone(num_blocks: int) -> None:
    """Catches a step's exception that takes its mates along, or that costs them a token."""
    good = SamplingParams(max_tokens=20, temperature=0.8)
    expected = run_all(engine_of(), requests_of(PROMPTS, good))
    engine = engine_of(num_blocks=num_blocks, drafter=broken_drafter())
    deltas, given_up = serve(engine, requests_of(PROMPTS, good))
    assert list(given_up) == ["r1"]
    assert "the drafter is broken" in given_up["r1"]
    for name, sequence in zip(("r0", "r2"), (expected[0], expected[2]), strict=True):
        assert tokens_of(deltas[name]) == list(sequence.output)
        assert "".join(delta.text for delta in deltas[name]) == sequence.text
    told = tokens_of(deltas["r1"])
    assert told == list(expected[1].output)[: len(told)]
    assert engine.cache.num_free == num_blocks


def test_text_that_cannot_be_made_fails_its_request_alone() -> None:
    """Catches a commit that stops half way when one row's text breaks."""
    params = SamplingParams(max_tokens=12, temperature=0.8)
    expected = run_all(engine_of(), requests_of(PROMPTS, params))
    outputs = [list(sequence.output) for sequence in expected]
    ends = {prompt[-1] for prompt in PROMPTS}
    broken = next(token for token in outputs[0][3:] if token not in {*outputs[1], *ends})
    engine = engine_of(Letters(breaks_at=broken))
    deltas, given_up = serve(engine, requests_of(PROMPTS, params))
    assert not given_up
    for number, output in enumerate(outputs):
        told, last = tokens_of(deltas[f"r{number}"]), deltas[f"r{number}"][-1]
        assert last.finish is not None
        if broken in output:
            assert last.finish.reason is FinishReason.ERROR
            assert "no such letter" in str(last.finish.detail)
            assert told == output[: len(told)]
            assert broken not in told
        else:
            assert told == output
    assert engine.cache.num_free == engine.cache.num_blocks


def test_tokens_of_a_step_that_could_not_report_come_with_the_next() -> None:
    """Catches tokens that were committed by a broken step and are lost to a stream."""
    params = SamplingParams(max_tokens=8, temperature=0.8)
    expected = run_all(engine_of(), requests_of(PROMPTS, params))
    engine = engine_of()
    observe = engine._drafter.observe  # type: ignore[union-attr]
    calls = []

    def breaks_once(outcome: object, scores: object) -> None:
        calls.append(outcome)
        if len(calls) == 3:
            raise LookupError("the drafter is broken")
        observe(outcome, scores)  # type: ignore[arg-type]

    engine._drafter.observe = breaks_once  # type: ignore[union-attr, method-assign]
    deltas, given_up = serve(engine, requests_of(PROMPTS, params))
    assert not given_up
    for number, sequence in enumerate(expected):
        assert tokens_of(deltas[f"r{number}"]) == list(sequence.output)


def test_a_request_can_be_failed_by_hand() -> None:
    """Catches a failure that leaves blocks behind, and one that is told twice."""
    engine = engine_of()
    engine.add(requests_of(PROMPTS, SamplingParams(max_tokens=20))[0])
    engine.step()
    delta = engine.fail(RequestId("r0"), "why not")
    assert delta is not None
    assert delta.finish is not None
    assert delta.finish.detail == "why not"
    assert not engine.has_work
    assert engine.cache.num_free == engine.cache.num_blocks
    assert engine.fail(RequestId("r0"), "again") is None
