"""Records rounds with whole drafts verified, fits, and judges prompts by what others fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outrider.analysis.calibration_fit import drafts_of, fit
from outrider.analysis.calibration_report import HeldOut, Judged, held_out, joined, judge
from outrider.analysis.closed_loop import Completed, jobs_of, run_jobs
from outrider.analysis.prompts import PromptRow
from outrider.core.calibration import Calibration, Method
from outrider.core.ids import RequestId
from outrider.core.request import SamplingParams
from outrider.core.rounds import Round
from outrider.engine.llm import LLM
from outrider.errors import ConfigError

FEWEST_PROMPTS = 2
Step = list[tuple[str, Round]]
"""The rounds of a step with their domains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSetting:
    """What is run and how it is fitted."""

    method: Method = "logistic"
    temperatures: tuple[float, ...] = (0.0,)
    concurrency: int = 16
    max_tokens: int = 128
    seed: int = 0
    raw: bool = False
    """Leave the chat template out."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration and, by kind of request, its scores on prompts that it was not fitted to."""

    calibration: Calibration
    data: Mapping[str, HeldOut]
    judged: Mapping[str, list[Judged]]


def calibrate(
    llm: LLM,
    rows: Sequence[PromptRow],
    setting: CalibrateSetting,
    given: Calibration | None = None,
) -> Calibrated:
    """Calibrate the drafter of `llm`, which must verify whole drafts.

    Each half of the prompts is judged by what the other half fits, and all of them fit what is
    returned. With a `given` calibration nothing is fitted, and all are judged by it.

    Raises:
        ConfigError: There are too few prompts, nothing was drafted, or without confidence, or two
            temperatures are of one kind.
        RequestError: A prompt cannot be served or failed.
    """
    assert llm.config.length_policy == "fixed", "drafts that are cut hide their late positions"
    names = llm.scheduling_names
    assert names is not None, "an engine that drafts nothing has no confidence"
    num_positions = llm.engine.max_draft_len
    runs = {
        kind: _record(llm, rows, setting, temperature)
        for kind, temperature in _kinds(llm, setting.temperatures).items()
    }

    def fitted(found: Mapping[str, Iterable[Step]]) -> Calibration:
        return Calibration(
            model=names[0],
            drafter=names[1],
            num_positions=num_positions,
            method=setting.method,
            temperatures=_kinds(llm, setting.temperatures),
            kinds={
                kind: fit(drafts_of(_rounds(steps), num_positions), setting.method)
                for kind, steps in found.items()
            },
        )

    data = {}
    for kind, run in runs.items():
        if given is not None:
            data[kind] = held_out(run.steps, given, kind, num_positions)
            continue
        halves = run.halves()
        data[kind] = joined(
            held_out(own, fitted({kind: other}), kind, num_positions)
            for own, other in (halves, halves[::-1])
        )
    calibration = given or fitted({kind: run.steps for kind, run in runs.items()})
    return Calibrated(calibration, data, {kind: judge(own) for kind, own in data.items()})


def _kinds(llm: LLM, temperatures: Sequence[float]) -> dict[str, float]:
    """Name the kind of request of each temperature."""
    kinds: dict[str, float] = {}
    for temperature in temperatures:
        kind = "greedy" if temperature == 0 else llm.config.verify_rule
        if kind in kinds:
            raise ConfigError(
                f"temperatures {kinds[kind]:g} and {temperature:g} would share what is fitted for "
                f"{kind} requests; name 0 and one other at most"
            )
        kinds[kind] = temperature
    return kinds


@dataclass(frozen=True, slots=True)
class _Run:
    """Rounds by step, and which half each request belongs to."""

    steps: list[Step]
    half_of: Mapping[RequestId, int]

    def halves(self) -> tuple[list[Step], list[Step]]:
        """Split the prompts; steps that none of a half's took part in fall out."""
        first, second = (
            [
                kept
                for step in self.steps
                if (kept := [pair for pair in step if self.half_of[pair[1].request_id] == half])
            ]
            for half in (0, 1)
        )
        return first, second


def _record(
    llm: LLM, rows: Sequence[PromptRow], setting: CalibrateSetting, temperature: float
) -> _Run:
    params = SamplingParams(
        temperature=temperature, max_tokens=setting.max_tokens, seed=setting.seed
    )
    jobs = jobs_of(llm, rows, params, raw=setting.raw)
    made: list[Sequence[Round]] = []
    done = run_jobs(llm, jobs, concurrency=setting.concurrency, on_rounds=made.append)
    owner = {each.request_id: one for one in done for each in one.rounds[:1]}
    steps = [
        [(owner[each.request_id].job.domain, each) for each in rounds] for rounds in made if rounds
    ]
    return _Run(steps, _halves(done))


def _halves(done: Sequence[Completed]) -> dict[RequestId, int]:
    """Deal prompts out, alternating within each domain."""
    halves = {}
    for domain in dict.fromkeys(one.job.domain for one in done):
        own = [one for one in done if one.job.domain == domain]
        if len(own) < FEWEST_PROMPTS:
            raise ConfigError(
                f"domain {domain!r} has {len(own)} prompt, but each half is judged by the other; "
                f"give {FEWEST_PROMPTS} or more"
            )
        for number, one in enumerate(own):
            for each in one.rounds[:1]:
                halves[each.request_id] = number % 2
    return halves


def _rounds(steps: Iterable[Step]) -> list[Round]:
    return [each for step in steps for _, each in step]
