"""Records rounds with whole drafts verified, fits on every other prompt, judges on the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.analysis.calibration_fit import drafts_of, fit
from outrider.analysis.calibration_report import HeldOut, Judged, held_out, judge
from outrider.analysis.closed_loop import Completed, jobs_of, run_jobs
from outrider.analysis.prompts import PromptRow
from outrider.core.calibration import Calibration, Method
from outrider.core.request import SamplingParams
from outrider.core.rounds import Round
from outrider.engine.llm import LLM
from outrider.errors import ConfigError

FEWEST_PROMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSetting:
    """What is run and how it is fitted."""

    method: Method = "sequential"
    temperature: float = 0.0
    concurrency: int = 16
    max_tokens: int = 128
    seed: int = 0
    raw: bool = False
    """Leave the chat template out."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The calibration and its scores on prompts that were held out."""

    calibration: Calibration
    data: HeldOut
    judged: list[Judged]


def calibrate(llm: LLM, rows: Sequence[PromptRow], setting: CalibrateSetting) -> Calibrated:
    """Calibrate the drafter of `llm`, which must verify whole drafts.

    Raises:
        ConfigError: There are too few prompts, nothing was drafted, or without confidence.
        RequestError: A prompt cannot be served or failed.
    """
    assert llm.config.length_policy == "fixed", "drafts that are cut hide their late positions"
    names = llm.scheduling_names
    assert names is not None, "an engine that drafts nothing has no confidence"
    params = SamplingParams(
        temperature=setting.temperature, max_tokens=setting.max_tokens, seed=setting.seed
    )
    jobs = jobs_of(llm, rows, params, raw=setting.raw)
    done = run_jobs(llm, jobs, concurrency=setting.concurrency)
    fitted, others = _halves(done)
    num_positions = llm.engine.max_draft_len
    model, drafter = names
    calibration = Calibration(
        model=model,
        drafter=drafter,
        verify_rule=llm.config.verify_rule,
        temperature=setting.temperature,
        method=setting.method,
        curves=fit(drafts_of([each for _, each in fitted], num_positions), setting.method),
    )
    kind = "greedy" if params.is_greedy else llm.config.verify_rule
    data = held_out(others, calibration, kind, num_positions)
    return Calibrated(calibration, data, judge(data))


Rounds = list[tuple[str, Round]]


def _halves(done: Sequence[Completed]) -> tuple[Rounds, Rounds]:
    """Split prompts, alternating within each domain; rounds come with their domains."""
    halves: tuple[Rounds, Rounds] = ([], [])
    for domain in dict.fromkeys(one.job.domain for one in done):
        own = [one for one in done if one.job.domain == domain]
        if len(own) < FEWEST_PROMPTS:
            raise ConfigError(
                f"domain {domain!r} has {len(own)} prompt, but one half is fitted and the other "
                f"judged; give {FEWEST_PROMPTS} or more"
            )
        for number, one in enumerate(own):
            halves[number % 2].extend((domain, each) for each in one.rounds)
    return halves
