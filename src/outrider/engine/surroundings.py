"""Where an engine computes and what drafts in it: the key of its step costs and calibrations."""

import time
from functools import partial
from typing import Final

from outrider.core.step_cost import MeasuredOn
from outrider.drafters.base import Drafter
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.shipped import calibration_of, folder_of
from outrider.engine.backend import Backend, LoadedModel
from outrider.engine.config import EngineConfig
from outrider.engine.machine import available_cores, machine_name
from outrider.engine.profile import ProfileSetting, measure, measure_host
from outrider.engine.scheduling import Surroundings
from outrider.models.checkpoint import Checkpoint
from outrider.models.fingerprint import target_hash
from outrider.models.hub import cache_dir

PROFILES: Final = "profiles"
_HASH_DIGITS: Final = 12


def measured_on(config: EngineConfig, checkpoint: Checkpoint, backend: Backend) -> MeasuredOn:
    """Say where steps are timed; two engines that agree in it can share a table."""
    cores = available_cores()
    return MeasuredOn(
        machine=machine_name(config.device, cores),
        model=model_name(checkpoint),
        backend=f"{backend.name}, {backend.precision}, {config.weights}",
        threads=config.threads or cores,
    )


def model_name(checkpoint: Checkpoint) -> str:
    """Tell apart models whose steps take different times, or that accept different drafts."""
    return f"{checkpoint.path.name} {target_hash(checkpoint)[:_HASH_DIGITS]}"


def drafter_name(speculative: SpeculativeConfig | None, max_draft_len: int) -> str:
    """Tell drafters apart whose drafts cost or hold differently; None is a caller's own.

    A shipped one has the name of its folder, which is the same on every machine.
    """
    if speculative is None:
        return f"own, up to {max_draft_len}"
    folder = folder_of(speculative)
    own = speculative.model if folder is None else folder.name
    return f"{speculative.method}{f' {own}' if own else ''}, up to {max_draft_len}"


def surroundings(
    config: EngineConfig,
    checkpoint: Checkpoint,
    backend: Backend,
    model: LoadedModel,
    drafter: Drafter,
    max_context_len: int,
) -> Surroundings:
    """Describe what the length policy of an engine must fit."""
    name = drafter_name(config.speculative, drafter.max_draft_len)
    setting = ProfileSetting(
        measured_on=measured_on(config, checkpoint, backend),
        max_num_seqs=config.max_num_seqs,
        max_context_len=max_context_len,
        block_size=config.block_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    clock = time.perf_counter
    return Surroundings(
        measured_on=setting.measured_on,
        drafter=name,
        max_draft_len=drafter.max_draft_len,
        calibration=None if config.speculative is None else calibration_of(config.speculative),
        rows=setting.rows,
        profiles=cache_dir() / PROFILES,
        measure=partial(measure, model, drafter, name, setting, clock),
        measure_drafting=partial(measure_host, model, drafter, setting, clock),
    )
