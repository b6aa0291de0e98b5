"""Measuring step costs, and what an engine makes of tables that fit, do not fit, or are damaged."""

import itertools
import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.calibration import Calibration, Curve, SourceFit
from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.price import FREE, DraftPrice
from outrider.core.request import SamplingParams, VerifyRule
from outrider.core.step_cost import BatchTimings, MeasuredOn, StepCostTable, Timing
from outrider.core.trace import read_trace
from outrider.engine.config import EngineConfig, LengthPolicyName
from outrider.engine.llm import LLM
from outrider.engine.profile import HOST_STEPS, ProfileSetting, measure, measure_host
from outrider.engine.resolve import resolve
from outrider.engine.scheduling import (
    CalibratedFor,
    Surroundings,
    calibration_in_use,
    scheduling,
    table_path,
)
from outrider.errors import ConfigError
from outrider.schedule.cost import faults_of
from outrider.schedule.lengths import Fixed, Off, Threshold, Throughput
from outrider.tensor.batch import Batch
from outrider.tensor.window import Proposal, Scores, Taps
from outrider.testing.scripted import random_drafter
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked

PLACE = MeasuredOn("a machine", "a model", "native", 2)


def table_of(*seconds: float, place: MeasuredOn = PLACE) -> StepCostTable:
    return StepCostTable(
        measured_on=place,
        rows=(1, 2, 4, 8, 16, 32)[: len(seconds)],
        contexts=(64,),
        forward=(tuple(Timing(value, 0.0, 3) for value in seconds),),
        host=((1, Timing(0.1, 0.0, 3)),),
        drafting={"suffix, up to 4": ((1, Timing(0.1, 0.0, 3)),)},
    )


GOOD = table_of(1, 1.1, 1.2, 2, 4, 8)
FLAT = table_of(1, 1, 1, 1, 1, 1)


class Around:
    """Surroundings whose measurements are given and counted."""

    def __init__(self, folder: Path, *tables: StepCostTable, drafter: str = "") -> None:
        self.num_measured = 0
        self.num_drafting = 0
        self._tables = tables or (GOOD,)
        self.all = Surroundings(
            measured_on=PLACE,
            drafter=drafter or "suffix, up to 4",
            max_draft_len=4,
            rows=GOOD.rows,
            profiles=folder,
            measure=self._measure,
            measure_drafting=self._measure_drafting,
        )

    def _measure(self) -> StepCostTable:
        self.num_measured += 1
        return self._tables[min(self.num_measured, len(self._tables)) - 1]

    def _measure_drafting(self) -> tuple[BatchTimings, BatchTimings]:
        self.num_drafting += 1
        return GOOD.host, ((1, Timing(0.7, 0.0, 3)),)


def config_of(policy: LengthPolicyName = "throughput", **options: object) -> EngineConfig:
    return EngineConfig(model="m", length_policy=policy, **options)  # type: ignore[arg-type]


@unchecked()
def test_policies_by_name(tmp_path: Path) -> None:
    """Catches a name that leads to another policy, or a measurement nobody needs."""
    around = Around(tmp_path)
    assert scheduling(config_of(), None).lengths == Fixed(1 << 30)
    assert scheduling(config_of("off"), around.all).lengths == Off()
    assert isinstance(scheduling(config_of("fixed"), around.all).lengths, Fixed)
    threshold = scheduling(config_of("threshold", length_threshold=0.3), around.all)
    assert threshold.lengths == Threshold(0.3)
    assert threshold.estimator is not None
    assert around.num_measured == 0
    found = scheduling(config_of(), around.all)
    assert isinstance(found.lengths, Throughput)
    assert found.cost is not None
    assert found.cost.table == GOOD


@unchecked()
def test_a_table_is_measured_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Catches a cache that is not read, not written, or believed when it is damaged."""
    around = Around(tmp_path)
    for _ in range(2):
        assert scheduling(config_of(), around.all).cost is not None
    assert around.num_measured == 1
    path = table_path(around.all)
    path.write_text(path.read_text()[:-30])
    with caplog.at_level(logging.WARNING):
        scheduling(config_of(), around.all)
    assert around.num_measured == 2
    assert "damaged step cost table" in caplog.text


@unchecked()
def test_a_new_drafter_is_measured_into_the_table(tmp_path: Path) -> None:
    """Catches sweeps that are repeated for another drafter, or its cost read as none."""
    scheduling(config_of(), Around(tmp_path).all)
    other = Around(tmp_path, drafter="ngram, up to 5")
    cost = scheduling(config_of(), other.all).cost
    assert (other.num_measured, other.num_drafting) == (0, 1)
    assert cost is not None
    assert cost.drafting(1) == 0.7
    kept = StepCostTable.from_json(table_path(other.all).read_text(), "f")
    assert set(kept.drafting) == {"suffix, up to 4", "ngram, up to 5"}


@unchecked()
def test_a_small_table_is_measured_anew_for_more_requests(tmp_path: Path) -> None:
    """Catches a table of one request that serves thirty-two."""
    scheduling(config_of(), Around(tmp_path).all)
    larger = Around(tmp_path)
    larger.all = replace(larger.all, rows=(*GOOD.rows, 64))
    scheduling(config_of(), larger.all)
    assert larger.num_measured == 1


@unchecked()
def test_a_disturbed_measurement_is_made_once_more(tmp_path: Path) -> None:
    """Catches one burst of other work that switches the policy off for the engine's life."""
    around = Around(tmp_path, table_of(1, 9, 2, 3, 4, 9), GOOD)
    found = scheduling(config_of(), around.all)
    assert found.cost is not None
    assert found.cost.table == GOOD
    assert around.num_measured == 2


@unchecked()
def test_a_flat_measurement_falls_back_and_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches a policy that trims nothing and does not say why."""
    around = Around(tmp_path, FLAT)
    with caplog.at_level(logging.WARNING):
        assert scheduling(config_of(), around.all).lengths == Fixed(1 << 30)
    assert len(caplog.records) == 1
    assert "all that is drafted is verified" in caplog.text
    assert not table_path(around.all).exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (table_of(1, 2, 3, 4, place=replace(PLACE, threads=4)).to_json(), "threads 4 instead of 2"),
        (
            table_of(1, 2, 3, 4, place=replace(PLACE, model="other")).to_json(),
            "model 'other' instead of 'a model'",
        ),
        (FLAT.to_json(), "would mislead"),
        ("{}", "damaged"),
        ("", "damaged"),
    ],
    ids=["threads", "model", "flat", "empty-object", "empty"],
)
@unchecked()
def test_a_named_table_that_does_not_fit_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Catches numbers of another machine that are used because the user named the file."""
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        scheduling(config_of(cost_table=str(path)), Around(tmp_path).all)
    with pytest.raises(ConfigError, match="cannot be read"):
        scheduling(config_of(cost_table=str(tmp_path / "none")), Around(tmp_path).all)


@unchecked()
def test_a_named_table_that_fits_is_used(tmp_path: Path) -> None:
    """Catches a file that is ignored."""
    path, around = tmp_path / "table.json", Around(tmp_path)
    path.write_text(GOOD.to_json())
    assert scheduling(config_of(cost_table=str(path)), around.all).cost is not None
    assert around.num_measured == 0


@unchecked()
def test_calibrations_fit_or_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Catches curves of another drafter, and positions that would have none."""
    path = tmp_path / "calibration.json"
    config = config_of("threshold", calibration=str(path))
    around = Around(tmp_path).all

    def write(positions: int, drafter: str = "suffix, up to 4") -> None:
        kinds = {"greedy": {"": SourceFit((Curve(slope=0.0),) * positions)}}
        found = Calibration("a model", drafter, positions, "isotonic", {"greedy": 0.0}, kinds)
        path.write_text(found.to_json())

    write(4)
    decided = scheduling(config, around).estimator
    assert decided is not None
    write(3)
    with caplog.at_level(logging.WARNING):
        assert scheduling(config, around).estimator is not None
    assert "has 3 positions, but drafts have up to 4" in caplog.text
    write(4, "ngram, up to 4")
    with pytest.raises(ConfigError, match="is for ngram, up to 4 on a model, not for suffix"):
        scheduling(config, around)


@unchecked()
def test_a_shipped_calibration_is_used_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches one that stops an engine nobody configured by hand, or that is used and does not fit.

    The name of the model's file is not part of what must fit, and neither is the length of drafts.
    """
    path = tmp_path / "calibration.json"
    around = CalibratedFor("file.gguf abc", "combined tiny, up to 4", 4, path)

    def found(model: str, drafter: str) -> Calibration | None:
        kinds = {"greedy": {"": SourceFit((Curve(slope=0.0),) * 7)}}
        own = Calibration(model, drafter, 7, "isotonic", {"greedy": 0.0}, kinds)
        path.write_text(own.to_json())
        return calibration_in_use(config_of(), around)

    assert found("other.gguf abc", "combined tiny, up to 7") is not None
    assert calibration_in_use(config_of(), replace(around, shipped=None)) is None
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert found("file.gguf abd", "combined tiny, up to 7") is None
        assert found("file.gguf abc", "combined other, up to 7") is None
        path.write_text("{}")
        assert calibration_in_use(config_of(), around) is None
    assert len(caplog.records) == 3
    assert all("as the drafter gives them" in each.message for each in caplog.records)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = tiny_spec(vocab_size=64, max_context_len=400)
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", spec, seed=1))


@unchecked()
def test_every_size_is_measured(model: str) -> None:
    """Catches windows of other sizes than the table says, and contexts that do not fit.

    The clock counts readings, so every forward takes one tick and so does every stage of a step.
    """
    plan = resolve(EngineConfig(model=model, dtype="float32", threads=1))
    ticks = itertools.count()
    setting = ProfileSetting(
        measured_on=PLACE,
        max_num_seqs=3,
        max_context_len=400,
        block_size=16,
        max_num_batched_tokens=512,
        seconds=0.0,
    )
    found = measure(
        plan.backend.load(plan.checkpoint),
        random_drafter(2, 64),
        "random",
        setting,
        lambda: float(next(ticks)),
    )
    assert found.rows == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
    assert found.contexts == (64, 368)
    assert [batch for batch, _ in found.host] == [1, 2, 3]
    assert [batch for batch, _ in found.drafting["random"]] == [1, 2, 3]
    assert all(timing.seconds == 1 and timing.count == 5 for own in found.forward for timing in own)
    assert {fault.kind for fault in faults_of(found)} == {"flat"}
    assert StepCostTable.from_json(found.to_json(), "f") == found


class Noting:
    """A drafter that notes what it is told of prices."""

    max_draft_len = 2
    taps: Taps = ()

    def __init__(self) -> None:
        self.prices: list[DraftPrice | None] = []

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        self.prices.append(batch.price)
        return Proposal.nothing(batch)

    def observe(self, outcome: Outcome, scores: Scores) -> None: ...

    def forget(self, request_id: RequestId) -> None: ...


@unchecked()
def test_what_is_measured_is_a_whole_draft(model: str) -> None:
    """Catches a cost without the network, which a drafter does not ask where copying does."""
    plan = resolve(EngineConfig(model=model, dtype="float32", threads=1))
    setting = ProfileSetting(
        measured_on=PLACE,
        max_num_seqs=2,
        max_context_len=400,
        block_size=16,
        max_num_batched_tokens=512,
    )
    noting = Noting()
    measure_host(plan.backend.load(plan.checkpoint), noting, setting, time.perf_counter)
    assert len(noting.prices) > 2 * HOST_STEPS
    assert set(noting.prices) == {FREE}


@unchecked()
def test_an_engine_measures_plans_and_traces(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a policy that is wired to nothing: predictions, trace and output must be there."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    trace = tmp_path / "trace.jsonl"
    llm = LLM(
        model,
        dtype="float64",
        threads=1,
        max_num_seqs=2,
        length_policy="throughput",
        speculative_config={"method": "suffix", "num_speculative_tokens": 4},
        trace=str(trace),
    )
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = llm.generate([[3, 4, 5, 3, 4, 5, 3], [9, 9, 9, 9]], params)
    plain = llm.sibling(length_policy="fixed").generate(
        [[3, 4, 5, 3, 4, 5, 3], [9, 9, 9, 9]], params
    )
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    own = llm.sibling(drafter=random_drafter(2, 64))
    again = own.generate([[3, 4, 5, 3, 4, 5, 3], [9, 9, 9, 9]], params)
    assert [o.outputs[0].token_ids for o in again] == [o.outputs[0].token_ids for o in plain]
    with trace.open(encoding="utf-8") as lines:
        header, steps = read_trace(lines, str(trace))
        steps = list(steps)  # type: ignore[assignment]
    assert (header.drafter, header.max_draft_len, header.length_policy) == (
        "suffix",
        4,
        "throughput",
    )
    rounds = [each for step in steps for each in step.rounds]
    assert sum(each.delivered for each in rounds) == 48
    for step in steps:
        assert step.times.total >= step.times.forward > 0
        assert step.times.predicted_tokens >= 0
    for each in rounds:
        assert len(each.survival or ()) == each.verified
    for path in (tmp_path / "profiles").glob("*.json"):
        assert json.loads(path.read_text())["version"] == 1
