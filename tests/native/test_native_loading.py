"""The native backend refuses a checkpoint that is not the model its config describes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.engine.llm import LLM
from outrider.errors import CorruptCheckpoint
from outrider.native import availability
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests import harness


def test_a_tensor_nobody_expects_is_refused(tmp_path: Path) -> None:
    """Catches biases that are dropped without a word: another model would run, with exit 0."""
    fault = availability.fault()
    if fault is not None:
        harness.missing(fault)
    write_tiny_checkpoint(tmp_path, tiny_spec("llama", 280), 3)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    rows = tensors["model.layers.0.self_attn.q_proj.weight"].shape[0]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(rows)
    save_file(tensors, weights)
    with pytest.raises(CorruptCheckpoint, match=r"unexpected model\.layers\.0\.self_attn\.q_proj"):
        LLM(str(tmp_path), backend="native")
