"""Training on features that were kept, and on features computed from the tokens: one drafter."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.cli.main import main
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.native.machines import require_native
from tests.unchecked import unchecked


def trained(model: Path, prompts: Path, directory: Path, mode: str) -> dict[str, torch.Tensor]:
    """Generate with `--features MODE` and train three steps; the drafter's tensors."""
    data, run, threads = directory / f"data-{mode}", directory / f"run-{mode}", ("--threads", "1")
    generate = ["data", "generate", "--model", str(model), "--prompts", str(prompts), "--output",
                str(data), "--max-tokens", "24", "--features", mode, *threads]  # fmt: skip
    assert main(generate) == 0
    train = ["train", "--method", "dspark", "--model", str(model), "--data", str(data), "--output",
             str(run), "--steps", "3", "--draft-vocab", "64", "--markov-rank", "8",
             "--blocks-per-step", "30", *threads]  # fmt: skip
    assert main(train) == 0
    return load_file(run / "last" / "model.safetensors")


def test_recomputed_features_train_the_drafter_that_kept_ones_train(tmp_path: Path) -> None:
    """Catches a document read without its prompt, and features of the wrong layers."""
    require_native()
    spec = tiny_spec(vocab_size=258, num_layers=4)
    model = write_tiny_checkpoint(tmp_path / "model", spec, seed=5)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(60)))
    with unchecked():
        kept = trained(model, prompts, tmp_path, "capture")
        computed = trained(model, prompts, tmp_path, "recompute")
        assert kept.keys() == computed.keys()
        for name, values in kept.items():
            assert torch.equal(values, computed[name]), name


def test_data_without_named_layers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--features none` is for drafters without a network."""
    model = write_tiny_checkpoint(tmp_path / "model", tiny_spec(vocab_size=258), seed=5)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "say it"}\n')
    common = ["--model", str(model), "--threads", "1"]
    data = ["--prompts", str(prompts), "--output", str(tmp_path / "data"), "--features", "none"]
    with unchecked():
        assert main(["data", "generate", *data, "--max-tokens", "12", *common]) == 0
        run = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "run"), "--steps", "1"]
        assert main(["train", "--method", "dspark", *run, *common]) == 2
    assert "features of layers []" in capsys.readouterr().err
