"""The training loop of block drafters."""

import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.errors import TrainingFailed
from outrider.training.acceptance import Acceptance, measure_acceptance
from outrider.training.candidates import CandidateConfig
from outrider.training.checkpoint import (
    BEST,
    LAST,
    METRICS_FILE,
    Provenance,
    load_state,
    save_drafter,
    save_state,
)
from outrider.training.dataset import FeaturesOf
from outrider.training.forward import BatchLoss, Trainee, batch_loss
from outrider.training.objectives import CE, L1, OVERLAP, ObjectiveConfig
from outrider.training.optim import OptimConfig, Optimizer, schedule
from outrider.training.packing import PackedBatch
from outrider.training.sampler import Cursor, Sampler, SamplerConfig

Metrics = dict[str, Any]
Watch = Callable[[Metrics], None]

_LOG_STEPS = 20
_SEED_STRIDE = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """How long to train and how often to look.

    Training ends after `steps`, or else after `minutes`; the learning rate's schedule is planned
    from the one that is given. Only with `steps` does a resumed run equal an unbroken one to the
    bit, because time never repeats itself.
    """

    steps: int | None = None
    minutes: float | None = None
    eval_minutes: float = 5.0
    held_out_documents: int = 64
    save_minutes: float = 5.0
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    candidates: CandidateConfig | None = field(default_factory=CandidateConfig)


@dataclass(slots=True)
class Progress:
    """How far a run is; `seconds` counts training alone, over all its parts."""

    step: int = 0
    slots: int = 0
    seconds: float = 0.0
    best: float = 0.0


class Trainer:
    """One run: a network, its optimiser, its place in the data, and the directory it writes to."""

    def __init__(
        self,
        trainee: Trainee,
        data: Path,
        run: Path,
        config: LoopConfig,
        provenance: Provenance,
        features_of: FeaturesOf | None = None,
    ) -> None:
        """Prepare a fresh run; `resume` continues an older one.

        `features_of` reads documents with the target where the data keep no features.
        """
        self.network, self.config = trainee.network, config
        self.progress = Progress()
        self.stop_asked = False
        self._trainee, self._run, self._data, self._provenance = trainee, run, data, provenance
        if self.network.markov_head is not None:
            self.network.markov_head.markov_w1.sparse = True
        self._optimizer = Optimizer(self.network.named_parameters(), config.optim)
        self._features_of = features_of
        self._sampler = Sampler(data, config.sampler, Cursor(), features_of)
        self._log_rest: dict[int, Tensor] = {}
        self._recent: deque[Metrics] = deque(maxlen=_LOG_STEPS)

    def resume(self) -> None:
        """Continue from the newest checkpoint of the run.

        Raises:
            ModelNotFound: there is none.
            CorruptCheckpoint: it cannot be read.
        """
        state = load_state(self._run / LAST)
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        cursor = Cursor(**state["cursor"])
        self._sampler = Sampler(self._data, self.config.sampler, cursor, self._features_of)

    def run(self, watch: Watch) -> Acceptance:
        """Train to the end, or until `stop_asked`; a checkpoint is written in both cases.

        Raises:
            TrainingFailed: the loss is not a finite number; the last checkpoint stays.
            OSError: the disk is full; the last checkpoint stays.
        """
        self._run.mkdir(parents=True, exist_ok=True)
        batches = self._sampler.batches(self.network.config)
        saved = evaluated = self.progress.seconds
        while not self.stop_asked and self._share_done() < 1:
            started = time.perf_counter()
            metrics = self._step(*next(batches))
            self.progress.seconds += time.perf_counter() - started
            self._recent.append(metrics)
            if self.progress.step % _LOG_STEPS == 0:
                self._log(self._summary(), watch)
            if self.progress.seconds - evaluated > 60 * self.config.eval_minutes:
                evaluated = self.progress.seconds
                self._evaluate(watch)
            if self.progress.seconds - saved > 60 * self.config.save_minutes:
                saved = self.progress.seconds
                self._save()
        self._save()
        return self._evaluate(watch)

    def _share_done(self) -> float:
        if self.config.steps is not None:
            return self.progress.step / max(self.config.steps, 1)
        return self.progress.seconds / (60 * (self.config.minutes or 1.0))

    def _step(self, indices: list[int], batch: PackedBatch) -> Metrics:
        self._trainee.refresh()
        probabilities = self._probabilities(indices, batch)
        loss = batch_loss(
            self._trainee, batch, probabilities, self.config.objective, self._candidates()
        )
        value = float(loss.total.detach())
        if not math.isfinite(value):
            raise TrainingFailed(
                f"the loss is {value} at step {self.progress.step}; the last checkpoint in "
                f"{self._run} stays: resume it with a lower learning rate"
            )
        loss.total.backward()
        norm = self._optimizer.clip()
        rate = schedule(self._share_done(), self.config.optim.warmup)
        self._optimizer.step(rate)
        self.progress.step += 1
        self.progress.slots += int(batch.is_supervised.sum())
        return _metrics_of(loss, batch) | {"loss": value, "grad_norm": norm, "rate": rate}

    def _candidates(self) -> tuple[CandidateConfig, torch.Generator] | None:
        if self.config.candidates is None:
            return None
        seed = self.config.sampler.seed * _SEED_STRIDE + self.progress.step
        return self.config.candidates, torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def _probabilities(self, indices: list[int], batch: PackedBatch) -> Tensor:
        """The teacher's distributions at the judged rows.

        What lies outside the draft vocabulary is computed once per document and kept.
        """
        teacher, machine = self._trainee.teacher, self._trainee.machine
        last = batch.features[:, -len(teacher.norm_weight) :]
        for index, segment in zip(indices, batch.segments, strict=True):
            if index not in self._log_rest:
                rows = slice(segment.first_row, segment.end_row)
                self._log_rest[index] = teacher.log_rest(last[rows], batch.following[rows], machine)
        log_rest = torch.cat([self._log_rest[index] for index in indices])
        return teacher.distributions(
            last[batch.judged], batch.following[batch.judged], log_rest[batch.judged], machine
        )

    def _summary(self) -> Metrics:
        seconds = max(self.progress.seconds, 1e-9)
        sums = Counter[str]()
        for metrics in self._recent:
            sums.update({name: value for name, value in metrics.items() if name != "overlap"})
        count = len(self._recent)
        overlaps = zip(*(metrics["overlap"] for metrics in self._recent), strict=True)
        return {
            "step": self.progress.step,
            "slots": self.progress.slots,
            "seconds": round(self.progress.seconds, 3),
            "slots_per_second": round(self.progress.slots / seconds, 1),
            "epoch": self._sampler.cursor.epoch,
            **{name: round(value / count, 5) for name, value in sums.items()},
            "overlap": [round(sum(values) / count, 4) for values in overlaps],
        }

    def _evaluate(self, watch: Watch) -> Acceptance:
        self._trainee.refresh()
        held_out = self._sampler.held_out(self.config.held_out_documents)
        found = measure_acceptance(self._trainee, held_out)
        results = {
            "step": self.progress.step,
            "slots": self.progress.slots,
            "seconds": round(self.progress.seconds, 3),
            "mean_accept_length": round(found.mean_accept_length, 4),
            "conditional_accept_rates": [round(rate, 4) for rate in found.conditional_accept_rates],
            "rounds": found.rounds,
            "documents": len(held_out),
        }
        # Without held-out documents the newest is the best that is known.
        if found.mean_accept_length > self.progress.best or not held_out:
            self.progress.best = found.mean_accept_length
            save_drafter(self._run / BEST, self._checkpoint(), self._provenance, results)
        self._log({"held_out": results}, watch)
        return found

    def _save(self) -> None:
        save_drafter(self._run / LAST, self._checkpoint(), self._provenance, asdict(self.progress))
        save_state(
            self._run / LAST,
            {
                "network": self.network.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "progress": asdict(self.progress),
                "cursor": asdict(self._sampler.cursor),
            },
        )

    def _checkpoint(self) -> BlockCheckpoint:
        whole = self.network.config.draft_vocab_size is None
        return BlockCheckpoint(self.network, None if whole else self._trainee.teacher.draft_ids)

    def _log(self, metrics: Metrics, watch: Watch) -> None:
        with (self._run / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")
        watch(metrics)


def _metrics_of(loss: BatchLoss, batch: PackedBatch) -> Metrics:
    counts = batch.is_supervised.sum(0).clamp(min=1)
    terms = (loss.terms * batch.is_supervised[..., None]).sum(0) / counts[:, None]
    return {
        "ce": float(terms[:, CE].mean()),
        "l1": float(terms[:, L1].mean()),
        "confidence": float(loss.confidence),
        "overlap": terms[:, OVERLAP].tolist(),
    }
