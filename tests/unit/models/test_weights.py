"""Safetensors directories: sharded, damaged, and refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from outrider.models.checkpoint import open_checkpoint
from outrider.models.spec import Architecture
from outrider.testing.tiny import tiny_decoder, tiny_spec, write_tiny_checkpoint

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "tiny", tiny_spec("qwen3", tied_head=False), seed=1)


def load(folder: Path) -> dict[str, Tensor]:
    return open_checkpoint(folder).load_decoder(torch.float32).state_dict()


def edit(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def shard(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-{index % 3}.safetensors" for index, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_written_checkpoint_is_the_tiny_decoder(architecture: Architecture, tmp_path: Path) -> None:
    """Catches a weight lost, fused in another order, or rounded on the way to disk and back."""
    spec = tiny_spec(architecture)
    loaded = load(write_tiny_checkpoint(tmp_path, spec, seed=6))
    expected = tiny_decoder(spec, 6, torch.float32).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_loaded_decoder_is_for_inference(folder: Path) -> None:
    """Catches gradients kept alive behind the engine's back."""
    decoder = open_checkpoint(folder).load_decoder(torch.bfloat16)
    assert not decoder.training
    assert not any(weight.requires_grad for weight in decoder.parameters())
    assert {weight.dtype for weight in decoder.parameters()} == {torch.bfloat16}
    assert not any(weight.is_meta for weight in decoder.parameters())


def test_loading_leaves_the_global_generator_alone(folder: Path) -> None:
    """Catches layers that draw weights nobody keeps."""
    before = torch.get_rng_state()
    load(folder)
    assert torch.equal(before, torch.get_rng_state())


def test_shards_are_joined(folder: Path) -> None:
    """Catches reading only the first shard."""
    whole = load(folder)
    shard(folder)
    joined = load(folder)
    assert all(torch.equal(whole[name], joined[name]) for name in whole)


def test_absent_shard_is_named(folder: Path) -> None:
    """Catches hundreds of missing tensors listed where one file is missing."""
    shard(folder)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match=r"model-1\.safetensors"):
        load(folder)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../b"}}']
)
def test_broken_index_is_corrupt(text: str, folder: Path) -> None:
    """Catches a KeyError or a JSON error of Python's own."""
    (folder / INDEX).write_text(text)
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors\.index\.json"):
        load(folder)


def test_every_fault_is_listed_at_once(folder: Path) -> None:
    """Catches a check that stops at the first fault."""

    def damage(tensors: dict[str, Tensor]) -> None:
        del tensors["model.layers.0.self_attn.q_norm.weight"]
        tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 5)
        tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(1)

    edit(folder, damage)
    with pytest.raises(CorruptCheckpoint) as caught:
        load(folder)
    message = str(caught.value)
    assert "missing model.layers.0.self_attn.q_norm.weight (8,)" in message
    assert "model.layers.1.mlp.up_proj.weight is (3, 5), expected (64, 32)" in message
    assert "unexpected model.layers.2.mlp.up_proj.weight (1,)" in message
    assert message.startswith("3 tensors")


def test_rotary_tables_are_ignored(folder: Path) -> None:
    """Catches old exports refused for a table that is computed anyway."""
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    edit(folder, lambda tensors: tensors.update(extra))
    load(folder)


def test_second_copy_of_a_tied_head_is_ignored(tmp_path: Path) -> None:
    """Catches tied checkpoints refused because their export kept both names."""
    folder = write_tiny_checkpoint(tmp_path, tiny_spec(), seed=1)
    copy = load_file(folder / WEIGHTS)["model.embed_tokens.weight"].clone()
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": copy}))
    assert "head.weight" not in load(folder)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_file_is_corrupt(share: float, folder: Path) -> None:
    """Catches a partial download that fails inside safetensors, or worse, loads."""
    contents = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(contents[: int(len(contents) * share)])
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors"):
        load(folder)


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_that_need_scales_are_refused(kind: str, folder: Path) -> None:
    """Catches packed or scaled weights cast to floats as they are."""
    name = "model.layers.0.mlp.up_proj.weight"
    packed = torch.ones(64, 32).to(getattr(torch, kind))
    edit(folder, lambda tensors: tensors.update({name: packed}))
    with pytest.raises(UnsupportedModel, match=kind):
        load(folder)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_never_opened(file: str, folder: Path) -> None:
    """Catches code from a stranger being run, or a bare 'no weights'."""
    (folder / WEIGHTS).rename(folder / file)
    with pytest.raises(UnsupportedModel, match=r"pickled.*convert them to safetensors"):
        load(folder)


def test_directory_without_weights_is_not_a_model(folder: Path) -> None:
    """Catches a FileNotFoundError without a way out."""
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        open_checkpoint(folder)


def test_broken_config_is_corrupt(folder: Path) -> None:
    """Catches a JSON error of Python's own."""
    (folder / "config.json").write_text('{"model_type": "qwen3"')
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        open_checkpoint(folder)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(CorruptCheckpoint, match=r"config\.json is not valid JSON"):
        open_checkpoint(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(CorruptCheckpoint, match="JSON object"):
        open_checkpoint(folder)
