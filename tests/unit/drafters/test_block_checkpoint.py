"""Block drafters on disk: what is written is read back, and what does not fit is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.drafters.block.checkpoint import (
    QUANTISED,
    BlockCheckpoint,
    bytes_per_row,
    dequantised,
    load_checkpoint,
    quantised,
    require_target,
    save_checkpoint,
)
from outrider.drafters.block.config import BlockConfig, from_json
from outrider.errors import CorruptCheckpoint, IncompatibleDraft, ModelNotFound
from tests.block_drafters import random_network, random_teacher, tiny_config
from tests.unchecked import unchecked


def written(tmp_path: Path, **changes: Any) -> BlockCheckpoint:
    config = tiny_config(**changes)
    ids = None if config.draft_vocab_size is None else random_teacher(config).draft_ids
    checkpoint = BlockCheckpoint(random_network(config), ids)
    save_checkpoint(tmp_path, checkpoint, dtype=torch.float32)
    return checkpoint


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layout": "anchor-drop", "markov_type": "rnn", "target_hash": "ab"},
        {"markov_rank": 0, "has_confidence_head": False, "draft_vocab_size": None},
        {"markov_type": "gated", "confidence_with_markov": False, "fc_norm": False},
    ],
)
def test_a_drafter_comes_back_as_it_was_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    checkpoint = written(tmp_path, **changes)
    found = load_checkpoint(tmp_path)
    assert found.config == checkpoint.config
    expected = checkpoint.network.state_dict()
    assert expected.keys() == found.network.state_dict().keys()
    for name, values in found.network.state_dict().items():
        assert torch.equal(values, expected[name]), name
    if checkpoint.draft_ids is None:
        assert found.draft_ids is None
    else:
        assert found.draft_ids is not None
        assert torch.equal(found.draft_ids, checkpoint.draft_ids)


def test_tensors_have_the_names_and_meanings_of_the_field(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    layer += ["self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj"]
    layer += ["mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    names = {f"layers.{i}.{name}.weight" for i in range(2) for name in layer}
    names |= {"fc.weight", "hidden_norm.weight", "norm.weight", "d2t", "t2d"}
    names |= {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}
    names |= {"confidence_head.proj.weight", "confidence_head.proj.bias"}
    assert tensors.keys() == names
    assert tensors["markov_head.markov_w1.weight"].shape == (48, 6)
    assert tensors["markov_head.markov_w2.weight"].shape == (32, 6)
    assert checkpoint.draft_ids is not None
    ids = tensors["d2t"] + torch.arange(32)
    assert torch.equal(ids, checkpoint.draft_ids)
    assert torch.equal(torch.nonzero(tensors["t2d"]).flatten(), ids)


def test_the_small_form_is_near_the_drafter(tmp_path: Path) -> None:
    config = tiny_config(hidden_size=64, intermediate_size=96, markov_rank=32)
    checkpoint = BlockCheckpoint(random_network(config), random_teacher(config).draft_ids)
    kinds = {
        name: kind
        for name, values in checkpoint.network.state_dict().items()
        if values.ndim == 2 and values.shape[1] % 32 == 0
        for kind in ("q8_0",)
    }
    save_checkpoint(tmp_path, checkpoint, kinds=kinds)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["fc.weight.q8_0"].shape == (64, bytes_per_row(128, "q8_0")) == (64, 136)
    found = load_checkpoint(tmp_path).network.state_dict()
    for name, values in checkpoint.network.state_dict().items():
        error = (found[name] - values).abs().max() / values.abs().max()
        assert error < 0.006, name


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_kind_holds_a_matrix(kind: str) -> None:
    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    blocks = quantised(values, kind)
    assert blocks.shape == (5, bytes_per_row(64, kind))
    assert (dequantised(blocks, kind) - values).abs().max() < 0.3
    with pytest.raises(CorruptCheckpoint, match="whole blocks of 32"):
        quantised(torch.zeros(4, 40), kind)


def test_what_is_missing_extra_misshapen_or_no_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load_checkpoint(tmp_path)
    written(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)

    def refused(tensors: dict[str, torch.Tensor], match: str) -> None:
        save_file(tensors, path)
        with pytest.raises(CorruptCheckpoint, match=match):
            load_checkpoint(tmp_path)

    refused({name: value for name, value in whole.items() if name != "fc.weight"}, "fc.weight")
    refused(whole | {"stranger": torch.zeros(1)}, "unexpected: stranger")
    refused(whole | {"fc.weight": torch.zeros(3, 3)}, r"fc\.weight has shape \(3, 3\)")
    refused(whole | {"norm.weight": torch.full((16,), torch.nan)}, "no finite numbers")
    refused({name: value for name, value in whole.items() if name != "d2t"}, "d2t")
    refused(whole | {"d2t": whole["d2t"] - 40}, "different tokens below 48")
    path.write_bytes(b"short")
    with pytest.raises(CorruptCheckpoint, match="cannot be read"):
        load_checkpoint(tmp_path)


def test_tensors_of_the_target_in_the_file_are_passed_over(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"embed_tokens.weight": torch.zeros(2, 2)}, path)
    assert load_checkpoint(tmp_path).config == checkpoint.config


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mask_token_id": 48}, "mask_token_id is 48, outside"),
        ({"mask_token_id": -1}, "outside the vocabulary"),
        ({"target_layer_ids": ()}, "at least one layer"),
        ({"target_layer_ids": (0, 4)}, "from -1 to 3"),
        ({"block_size": 1, "layout": "anchor-drop"}, "drafts nothing"),
        ({"block_size": 0}, "drafts nothing"),
        ({"num_heads": 3}, "do not fit"),
        ({"head_dim": 7}, "do not fit"),
        ({"draft_vocab_size": 49}, "outside 1 to 48"),
        ({"markov_rank": -1}, "negative"),
        ({"markov_type": "lstm"}, "is unknown"),
        ({"layout": "first"}, "is unknown"),
        ({"hidden_size": 0}, "must be positive"),
    ],
)
def test_shapes_that_no_network_has_are_refused(changes: dict[str, Any], match: str) -> None:
    with unchecked(), pytest.raises(CorruptCheckpoint, match=match):
        tiny_config(**changes)


def test_configurations_of_others_are_read() -> None:
    content = tiny_config().to_json()
    del content["target_layer_ids"], content["mask_token_id"], content["sample_from_anchor"]
    content["architectures"] = ["DFlashDraftModel"]
    content["dflash_config"] = {"mask_token_id": 3, "target_layer_ids": [0, 2]}
    content["rope_parameters"] = {"rope_theta": 5000}
    found = from_json(content)
    assert (found.layout, found.target_layer_ids, found.rope_theta) == ("anchor-drop", (0, 2), 5000)
    del content["dflash_config"]
    with pytest.raises(CorruptCheckpoint, match="mask_token_id"):
        from_json(content)
    with pytest.raises(CorruptCheckpoint, match="must list the target's layers"):
        from_json(content | {"mask_token_id": 3, "target_layer_ids": "all"})


def test_a_drafter_of_another_target_is_refused() -> None:
    config = tiny_config(target_hash="a" * 64)
    require_target(config, "a" * 64, "tiny")
    require_target(config, "", "tiny")
    with pytest.raises(IncompatibleDraft, match=r"aaaaaaaaaaaa.*tiny has hash bbbbbbbbbbbb"):
        require_target(config, "b" * 64, "tiny")


def test_config_json_is_what_the_configuration_says(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["architectures"] == ["Qwen3DSparkModel"]
    assert isinstance(from_json(content), BlockConfig)
    assert from_json(content) == checkpoint.config
    assert not list(tmp_path.glob("*.partial"))
