"""A training run of a block drafter from names of files: made fresh, or taken up again."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from outrider.drafters.block.checkpoint import load_checkpoint, require_target
from outrider.engine.llm import LLM
from outrider.errors import ConfigError
from outrider.models.checkpoint import Checkpoint
from outrider.models.fingerprint import target_hash
from outrider.training.capture import reading
from outrider.training.checkpoint import LAST, Provenance, source_commit
from outrider.training.dataset import read_manifest
from outrider.training.forward import Trainee
from outrider.training.loop import LoopConfig, Trainer
from outrider.training.setup import (
    NetworkOptions,
    draft_vocabulary,
    new_config,
    new_network,
    require_data_of,
)
from outrider.training.teacher import load_teacher

BlockMethod = Literal["dflash", "dspark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to train, how, and in which precision products are taken.

    Losses in bfloat16 are computed by the native `machine`, without one by torch.
    """

    method: BlockMethod
    network: NetworkOptions
    loop: LoopConfig
    dtype: torch.dtype = torch.bfloat16
    machine: Any | None = None


def start_run(
    model: str, checkpoint: Checkpoint, data: Path, run: Path, options: RunOptions
) -> Trainer:
    """A fresh run. `model` is the name under which the checkpoint was opened.

    Raises:
        ConfigError: the run exists already, or the data lack what training needs.
        IncompatibleDraft: the data were written by another target.
        CorruptCheckpoint: the options give no network, such as a mask token outside the vocabulary.
    """
    if (run / LAST).exists():
        raise ConfigError(
            f"{run} holds a run already; continue it with --resume or name another directory"
        )
    manifest, found_hash = read_manifest(data), target_hash(checkpoint)
    require_data_of(manifest, checkpoint.spec, found_hash)
    config = new_config(checkpoint.spec, manifest, found_hash, options.network)
    draft_ids = draft_vocabulary(data, config)
    teacher = load_teacher(checkpoint, draft_ids, options.dtype)
    network = new_network(config, teacher, options.loop.sampler.seed)
    return _trainer(model, found_hash, data, run, options, Trainee(network, teacher, _of(options)))


def resume_run(
    model: str, checkpoint: Checkpoint, data: Path, run: Path, options: RunOptions
) -> Trainer:
    """Take up a run at its newest checkpoint; the network's options are the checkpoint's.

    Raises:
        ModelNotFound: there is no checkpoint.
        IncompatibleDraft: it is of another target.
    """
    found = load_checkpoint(run / LAST)
    found_hash = target_hash(checkpoint)
    require_target(found.config, found_hash, model)
    require_data_of(read_manifest(data), checkpoint.spec, found_hash)
    teacher = load_teacher(checkpoint, found.draft_ids, options.dtype)
    network = found.network.train().requires_grad_(requires_grad=True)
    trainee = Trainee(network, teacher, _of(options))
    trainer = _trainer(model, found_hash, data, run, options, trainee)
    trainer.resume()
    return trainer


def _trainer(
    model: str, found_hash: str, data: Path, run: Path, options: RunOptions, trainee: Trainee
) -> Trainer:
    manifest = read_manifest(data)
    provenance = Provenance(
        target=model,
        target_hash=found_hash,
        data=str(data),
        data_hash=manifest.hash,
        method=options.method,
        options={"network": asdict(options.network), "loop": asdict(options.loop)},
        commit=source_commit(),
    )
    features_of = None
    if not manifest.features:
        features_of = reading(LLM(model, prefix_caching=False), manifest.tap_layers)
    return Trainer(trainee, data, run, options.loop, provenance, features_of)


def _of(options: RunOptions) -> Any | None:
    # The native loss reads bfloat16; in other dtypes torch computes.
    return options.machine if options.dtype == torch.bfloat16 else None
