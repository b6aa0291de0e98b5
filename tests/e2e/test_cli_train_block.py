"""`outrider train --method dspark` and `dflash`, from shards to a drafter on disk."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from outrider.cli.main import main
from outrider.drafters.block.checkpoint import load_checkpoint
from outrider.models.checkpoint import open_checkpoint
from outrider.models.fingerprint import target_hash
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.training.dataset import FeaturedDocument
from tests.block_drafters import write_shards
from tests.unchecked import unchecked

VOCAB, HIDDEN = 64, 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("train") / "model"
    spec = tiny_spec(vocab_size=VOCAB, num_layers=4)
    return str(write_tiny_checkpoint(directory, spec, seed=5))


@pytest.fixture(scope="module")
def data(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    generator = torch.Generator().manual_seed(0)
    documents = [
        FeaturedDocument(
            torch.randint(VOCAB, (30,), generator=generator),
            torch.arange(30) >= 6,
            torch.randn(30, 3 * HIDDEN, generator=generator),
        )
        for _ in range(80)
    ]
    write_shards(
        directory,
        documents,
        per_shard=40,
        target_hash=target_hash(open_checkpoint(model)),
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        tap_layers=[0, 2, 3],
    )
    return directory


def argv_of(model: str, data: Path, run: Path, *more: str) -> list[str]:
    common = ["--model", model, "--data", str(data), "--output", str(run), "--threads", "1"]
    return ["train", *common, "--draft-vocab", "32", "--blocks-per-step", "20", *more]


def test_dspark_is_trained_stopped_and_resumed(
    model: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches options that do not reach the network, and a run that starts over."""
    run = tmp_path / "run"
    argv = argv_of(model, data, run, "--method", "dspark", "--markov-rank", "8", "--json")
    with unchecked():
        assert main([*argv, "--steps", "3"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (record["method"], record["steps"]) == ("dspark", 3)
        assert main([*argv, "--steps", "5"]) == 2
        assert "--resume" in capsys.readouterr().err
        assert main([*argv, "--steps", "5", "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 5
    config = load_checkpoint(run / "best").config
    assert (config.markov_rank, config.draft_vocab_size, config.layout) == (8, 32, "anchor-first")
    assert config.has_confidence_head
    assert config.target_hash == target_hash(open_checkpoint(model))
    provenance = json.loads((run / "best" / "provenance.json").read_text())
    assert provenance["method"] == "dspark"
    assert provenance["options"]["loop"]["sampler"]["blocks_per_step"] == 20
    assert len(provenance["data_hash"]) == 64


def test_dflash_has_no_heads_unless_asked(model: str, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    argv = argv_of(model, data, run, "--method", "dflash", "--steps", "2", "--block-size", "4")
    with unchecked():
        assert main([*argv, "--layout", "anchor-drop"]) == 0
    config = load_checkpoint(run / "last").config
    assert (config.markov_rank, config.has_confidence_head) == (0, False)
    assert (config.layout, config.num_drafts) == ("anchor-drop", 3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--minutes"),
        (["--steps", "2", "--minutes", "1"], "said once"),
        (["--steps", "2", "--mask-token", "64"], "mask_token_id is 64"),
        (["--steps", "2", "--resume"], "config.json"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    model: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    argv = argv_of(model, data, tmp_path / "run", "--method", "dspark", *more)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_data_of_another_target_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny_checkpoint(tmp_path / "m", tiny_spec(vocab_size=VOCAB, num_layers=4), seed=6)
    copied = tmp_path / "data"
    shutil.copytree(data, copied)
    argv = argv_of(str(other), copied, tmp_path / "run", "--method", "dspark", "--steps", "2")
    assert main(argv) == 2
    assert "written by the target with hash" in capsys.readouterr().err
