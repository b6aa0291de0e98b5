"""The loop: it learns what can be learnt, goes on where it stopped, and stops where it must."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.drafters.block.checkpoint import load_checkpoint
from outrider.drafters.block.config import BlockConfig
from outrider.errors import TrainingFailed
from outrider.training.candidates import CandidateConfig
from outrider.training.checkpoint import BEST, LAST, METRICS_FILE, Provenance
from outrider.training.forward import Trainee
from outrider.training.loop import LoopConfig, Trainer
from outrider.training.objectives import DFLASH, DSPARK
from outrider.training.optim import OptimConfig
from outrider.training.packing import anchor_candidates, pack
from outrider.training.sampler import SamplerConfig
from outrider.training.setup import new_network
from tests.block_drafters import (
    cyclic_document,
    random_document,
    random_teacher,
    tiny_config,
    write_shards,
)

PROVENANCE = Provenance("tiny", "", "data", "", "dspark", {}, None)
SURE = 6.0
"""Length of the output matrix's rows at which the cyclic target is nearly certain."""
FAST = OptimConfig(lr=0.02, muon_lr=0.02)
CYCLE = (4, 9, 33, 7, 21, 40, 12, 5)


def trainer_of(
    tmp_path: Path,
    run: str,
    config: BlockConfig,
    loop: LoopConfig,
    dtype: Any = torch.float32,
    head_scale: float = 1.2,
) -> Trainer:
    teacher = random_teacher(config, dtype=dtype, head_scale=head_scale)
    network = new_network(config, teacher, seed=0)
    return Trainer(Trainee(network, teacher), tmp_path / "data", tmp_path / run, loop, PROVENANCE)


def loop_of(steps: int, **changes: Any) -> LoopConfig:
    fields: dict[str, Any] = {
        "steps": steps,
        "eval_minutes": 1e9,
        "save_minutes": 1e9,
        "sampler": SamplerConfig(blocks_per_step=12, held_out_share=0.2),
        "optim": OptimConfig(lr=0.01, muon_lr=0.01),
        "candidates": CandidateConfig(drawn=8),
    }
    return LoopConfig(**(fields | changes))


def random_data(tmp_path: Path) -> None:
    documents = [random_document(20 + seed, 4, seed) for seed in range(10)]
    write_shards(tmp_path / "data", documents, per_shard=4)


@pytest.mark.parametrize("layout", ["anchor-first", "anchor-drop"])
@pytest.mark.parametrize(("markov", "objective"), [("vanilla", DSPARK), (None, DFLASH)])
def test_a_cyclic_text_is_learnt_to_the_last_slot(
    tmp_path: Path, layout: Any, markov: str | None, objective: Any
) -> None:
    config = tiny_config(layout=layout, markov_rank=6 if markov else 0, draft_vocab_size=None)
    loop = loop_of(300, objective=objective, optim=FAST)
    data = tmp_path_with_cycle(tmp_path, config)
    trainer = trainer_of(data, "run", config, loop, head_scale=SURE)
    found = trainer.run(lambda _: None)
    assert found.offered[-1] > 0
    assert found.conditional_accept_rates == [1.0] * config.num_drafts
    saved = load_checkpoint(tmp_path / "run" / BEST)
    assert saved.draft_ids is None
    for name, values in saved.network.state_dict().items():
        assert torch.equal(values, trainer.network.state_dict()[name]), name


def tmp_path_with_cycle(tmp_path: Path, config: BlockConfig) -> Path:
    teacher = random_teacher(config, head_scale=SURE)
    documents = [
        cyclic_document(teacher, CYCLE[shift % 8 :] + CYCLE[: shift % 8], 24 + shift)
        for shift in range(16)
    ]
    write_shards(tmp_path / "data", documents, per_shard=8)
    return tmp_path


def test_a_resumed_run_equals_an_unbroken_one_to_the_bit(tmp_path: Path) -> None:
    random_data(tmp_path)
    config = tiny_config()
    whole = trainer_of(tmp_path, "whole", config, loop_of(23))
    whole.run(lambda _: None)
    # Stopped in the middle of an epoch, and again.
    first = trainer_of(tmp_path, "parts", config, loop_of(23))
    steps_left = iter([False] * 9 + [True] * 100)
    stop_at(first, steps_left)
    assert first.progress.step == 9
    second = trainer_of(tmp_path, "parts", config, loop_of(23))
    second.resume()
    stop_at(second, iter([False] * 5 + [True] * 100))
    assert second.progress.step == 14
    third = trainer_of(tmp_path, "parts", config, loop_of(23))
    third.resume()
    third.run(lambda _: None)
    for run in (tmp_path / "whole", tmp_path / "parts"):
        assert (run / LAST / "model.safetensors").is_file()
    expected = whole.network.state_dict()
    for name, values in third.network.state_dict().items():
        assert torch.equal(values, expected[name]), name


def stop_at(trainer: Trainer, answers: Any) -> None:
    """Run with a Ctrl-C that comes after a number of steps."""
    step = trainer._step

    def counted(*batch: Any) -> Any:
        metrics = step(*batch)
        trainer.stop_asked = next(answers)
        return metrics

    next(answers)
    vars(trainer)["_step"] = counted
    trainer.run(lambda _: None)


def test_a_loss_that_is_no_number_ends_training_and_keeps_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    random_data(tmp_path)
    config = tiny_config()
    trainer_of(tmp_path, "run", config, loop_of(3)).run(lambda _: None)
    saved = (tmp_path / "run" / LAST / "model.safetensors").read_bytes()
    broken = trainer_of(tmp_path, "run", config, loop_of(6))
    broken.resume()
    with torch.no_grad():
        broken.network.fc.weight[0, 0] = float("nan")
    with pytest.raises(TrainingFailed, match="the loss is nan at step 3"):
        broken.run(lambda _: None)
    assert (tmp_path / "run" / LAST / "model.safetensors").read_bytes() == saved


def test_a_full_disk_leaves_the_older_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_data(tmp_path)
    config = tiny_config()
    trainer_of(tmp_path, "run", config, loop_of(2)).run(lambda _: None)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run" / LAST).iterdir()}

    def full(state: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("[enforce fail] unexpected pos 64 vs 0")

    trainer = trainer_of(tmp_path, "run", config, loop_of(4))
    trainer.resume()
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="cannot be written"):
        trainer.run(lambda _: None)
    after = tmp_path / "run" / LAST
    assert (after / "training_state.pt").read_bytes() == before["training_state.pt"]
    assert not list(after.glob("*.partial"))


def test_metrics_are_lines_of_json(tmp_path: Path) -> None:
    random_data(tmp_path)
    seen: list[dict[str, Any]] = []
    trainer_of(tmp_path, "run", tiny_config(), loop_of(20)).run(seen.append)
    lines = (tmp_path / "run" / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == seen
    assert seen[0]["step"] == 20
    assert len(seen[0]["overlap"]) == 5
    assert seen[1]["held_out"]["documents"] > 0


def test_time_ends_a_run_that_counts_minutes(tmp_path: Path) -> None:
    random_data(tmp_path)
    trainer = trainer_of(
        tmp_path, "run", tiny_config(), replace(loop_of(1), steps=None, minutes=1e-6)
    )
    trainer.run(lambda _: None)
    assert trainer.progress.step == 1


@pytest.mark.parametrize(
    "objective",
    [
        replace(DSPARK, kl=1.0, l1=0.0),
        replace(DSPARK, d_pace=0.5),
        DFLASH,
    ],
)
@pytest.mark.parametrize("markov", ["gated", "rnn"])
def test_every_objective_and_head_lowers_its_loss(
    tmp_path: Path, objective: Any, markov: Any
) -> None:
    config = tiny_config(markov_type=markov, draft_vocab_size=None)
    losses: list[float] = []
    loop = loop_of(40, objective=objective, optim=FAST)
    trainer = trainer_of(
        tmp_path_with_cycle(tmp_path, config), "run", config, loop, head_scale=SURE
    )
    step = trainer._step

    def recorded(*batch: Any) -> Any:
        metrics = step(*batch)
        losses.append(metrics["loss"])
        return metrics

    vars(trainer)["_step"] = recorded
    trainer.run(lambda _: None)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_no_block_sees_its_neighbours_or_what_comes_after_its_anchor() -> None:
    from outrider.training.forward import block_rows

    config = tiny_config()
    teacher = random_teacher(config)
    trainee = Trainee(new_network(config, teacher, 0), teacher)
    document, other = random_document(30, 5, 1), random_document(20, 3, 2)
    anchors = [anchor_candidates(document.loss_mask), anchor_candidates(other.loss_mask)]
    before = block_rows(trainee, pack([document, other], anchors, config))
    document.features[12:] += 1.0
    other.features[:] += 1.0
    after = block_rows(trainee, pack([document, other], anchors, config))
    same = (before == after).all(-1).all(-1)
    # Anchors 5 to 12 see rows 0 to 11 only.
    assert same.tolist() == [anchor <= 12 for anchor in range(5, 29)] + [False] * 16
