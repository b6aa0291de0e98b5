"""`outrider export` end to end: out to vLLM's schema and back gives the same drafter."""

import json
from pathlib import Path

import pytest
import torch

from outrider.cli.main import main
from outrider.drafters.block.checkpoint import BlockCheckpoint, load_checkpoint, save_checkpoint
from outrider.models.checkpoint import open_checkpoint
from outrider.models.fingerprint import target_hash
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.block_drafters import random_network, tiny_config


def test_out_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a command that converts another file than the one it names."""
    spec = tiny_spec(vocab_size=258)
    model = write_tiny_checkpoint(tmp_path / "model", spec, seed=1)
    config = tiny_config(
        vocab_size=258, hidden_size=spec.hidden_size, num_target_layers=2, target_layer_ids=(0,),
        draft_vocab_size=None, fc_norm=False, target_hash=target_hash(open_checkpoint(model)),
    )  # fmt: skip
    save_checkpoint(tmp_path / "own", BlockCheckpoint(random_network(config), None))
    common = ["--model", str(model), "--json"]

    def run(drafter: str, form: str, output: str) -> tuple[int, str]:
        argv = ["export", str(tmp_path / drafter), "--to", form, "--output", str(tmp_path / output)]
        code = main([*argv, *common])
        return code, capsys.readouterr().out

    code, out = run("own", "vllm", "theirs")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["command"].startswith("vllm serve ")
    code, _ = run("theirs", "outrider", "again")
    assert code == 0
    first, last = (load_checkpoint(tmp_path / name).network for name in ("own", "again"))
    for name, values in first.state_dict().items():
        assert torch.equal(values, last.state_dict()[name]), name
    assert run("own", "vllm", "own")[0] == 2
    assert run("own", "zlab", "other")[0] == 2
    assert not (tmp_path / "other").exists()


def test_a_drafter_of_another_target_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches an export that pairs a drafter with the wrong model."""
    model = write_tiny_checkpoint(tmp_path / "model", tiny_spec(vocab_size=258), seed=1)
    config = tiny_config(vocab_size=258, draft_vocab_size=None, fc_norm=False, target_hash="ab")
    save_checkpoint(tmp_path / "own", BlockCheckpoint(random_network(config), None))
    argv = ["export", str(tmp_path / "own"), "--to", "vllm", "--output", str(tmp_path / "x")]
    assert main([*argv, "--model", str(model)]) == 2
    assert "was trained for the target with hash ab" in capsys.readouterr().err
