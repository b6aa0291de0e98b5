"""The hash of a target changes with what a layer computes, and with nothing else."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.models.checkpoint import Checkpoint
from outrider.models.fingerprint import target_hash
from outrider.models.weights import EMBEDDING
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint


def hash_of(directory: Path) -> str:
    return target_hash(Checkpoint(directory))


def test_hash_ignores_name_and_stop_tokens(tmp_path: Path) -> None:
    """Catches a hash over the path, or over settings that change no layer."""
    spec = tiny_spec(vocab_size=258)
    first = hash_of(write_tiny_checkpoint(tmp_path / "a", spec, seed=1))
    shorter = dataclasses.replace(spec, max_context_len=128)
    assert hash_of(write_tiny_checkpoint(tmp_path / "b", shorter, seed=1)) == first
    assert len(first) == 64


@pytest.mark.parametrize("change", ["weights", "spec"])
def test_hash_tells_targets_apart(tmp_path: Path, change: str) -> None:
    """Catches a fine-tune, or another network on the same embedding, that passes for the target."""
    spec = tiny_spec(vocab_size=258)
    first = hash_of(write_tiny_checkpoint(tmp_path / "a", spec, seed=1))
    if change == "spec":
        spec = dataclasses.replace(spec, rope=dataclasses.replace(spec.rope, theta=5e5))
    other = write_tiny_checkpoint(tmp_path / "b", spec, seed=2 if change == "weights" else 1)
    assert hash_of(other) != first


def test_hash_sees_every_kind_of_row(tmp_path: Path) -> None:
    """Catches a sample of rows that is only the first one."""
    whole = write_tiny_checkpoint(tmp_path / "a", tiny_spec(vocab_size=258), seed=1)
    for row in (0, 129, 257):
        other = Path(shutil.copytree(whole, tmp_path / f"row-{row}"))
        tensors = load_file(other / "model.safetensors")
        tensors[EMBEDDING][row] += torch.tensor(1.0)
        save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
        assert hash_of(other) != hash_of(whole), row


def test_hash_of_a_gguf_file(default_model: Path) -> None:
    """Catches quantised rows that are sampled in another order than they are named."""
    checkpoint = Checkpoint(default_model)
    assert checkpoint.gguf is not None
    assert target_hash(checkpoint) == target_hash(Checkpoint(default_model))
    rows = checkpoint.gguf.read(EMBEDDING)[:: checkpoint.spec.vocab_size // 1024]
    from outrider.models import fingerprint

    assert torch.equal(fingerprint._embedding_rows(checkpoint), rows.to(torch.bfloat16))
