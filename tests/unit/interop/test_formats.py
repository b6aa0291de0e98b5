"""Drafters survive the way into other projects' files and back, number for number."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.config import BlockConfig
from outrider.errors import CorruptCheckpoint, IncompatibleDraft, OutputFailed
from outrider.interop import deepspec, speculators, zlab
from outrider.interop.launch import vllm_command
from outrider.interop.schema import TargetMatrices
from outrider.testing.tiny import tiny_spec
from tests.block_drafters import HIDDEN, VOCAB, random_network, tiny_config

TARGET_SPEC = tiny_spec("qwen3", VOCAB, hidden_size=HIDDEN, num_layers=4)
PLAIN: dict[str, Any] = {"fc_norm": False, "draft_vocab_size": None}
DFLASH: dict[str, Any] = {"markov_rank": 0, "has_confidence_head": False}


def target() -> TargetMatrices:
    generator = torch.Generator().manual_seed(7)
    embedding, head = torch.randn(2, VOCAB, HIDDEN, generator=generator).to(torch.bfloat16)
    return TargetMatrices("org/target", TARGET_SPEC, embedding, head)


def drafter(**changes: Any) -> BlockCheckpoint:
    config = tiny_config(**(PLAIN | changes))
    ids = None
    if config.draft_vocab_size is not None:
        generator = torch.Generator().manual_seed(3)
        ids = torch.randperm(VOCAB, generator=generator)[: config.head_size].sort().values
    return BlockCheckpoint(random_network(config), ids)


def require_same(found: BlockCheckpoint, expected: BlockCheckpoint) -> None:
    """Equal up to the rounding of bfloat16 files; foreign files know no hash."""
    same: dict[str, Any] = {"target_hash": "", "rms_eps": 0.0}
    assert dataclasses.replace(found.config, **same) == dataclasses.replace(expected.config, **same)
    state = expected.network.state_dict()
    assert found.network.state_dict().keys() == state.keys()
    for name, values in found.network.state_dict().items():
        assert torch.equal(values, state[name].to(torch.bfloat16).to(torch.float32)), name
    if expected.draft_ids is None:
        assert found.draft_ids is None
    else:
        assert found.draft_ids is not None
        assert torch.equal(found.draft_ids, expected.draft_ids)


def config_of(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((directory / "config.json").read_text("utf-8"))
    return record


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"markov_type": "gated"},
        {"markov_type": "rnn", "confidence_with_markov": False},
        DFLASH,
    ],
    ids=["vanilla", "gated", "rnn", "dflash"],
)
def test_deepspec_and_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Catches a field or a tensor under a name that DeepSpec does not look for."""
    one = drafter(**changes)
    deepspec.export(one, target()).write(tmp_path)
    require_same(deepspec.read(tmp_path), one)
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    assert config["architectures"] == ["Qwen3DSparkModel"]
    assert config["target_layer_ids"] == [0, 2]
    assert torch.equal(tensors["embed_tokens.weight"], target().embedding)
    assert torch.equal(tensors["lm_head.weight"], target().head)
    assert ("markov_head_type" in config) == (one.config.markov_rank > 0)
    assert ("confidence_head_with_markov" in config) == one.config.has_confidence_head
    assert {"fc.weight", "hidden_norm.weight", "norm.weight"} <= set(tensors)
    assert "layers.1.self_attn.q_norm.weight" in tensors


def test_zlab_and_back(tmp_path: Path) -> None:
    """Catches settings left outside `dflash_config`, and matrices that z-lab takes elsewhere."""
    one = drafter(layout="anchor-drop", **DFLASH)
    zlab.export(one, target()).write(tmp_path)
    require_same(zlab.read(tmp_path), one)
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [0, 2]}
    assert config["block_size"] == 5
    assert "mask_token_id" not in config
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(tensors)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft_vocab_size": 32, "markov_type": "gated"},
        {"layout": "anchor-drop", **DFLASH},
        {"draft_vocab_size": 32, **DFLASH},
    ],
    ids=["dspark", "dspark-reduced", "dflash", "dflash-reduced"],
)
def test_speculators_and_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Catches layers that are off by one, and rows of the head beside the wrong draft token."""
    one = drafter(**changes)
    speculators.export(one, target()).write(tmp_path)
    require_same(speculators.read(tmp_path, TARGET_SPEC), one)
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    kind = "dspark" if one.config.markov_rank else "dflash"
    assert config["speculators_model_type"] == kind
    assert config["aux_hidden_state_layer_ids"] == [1, 3]
    assert config["sample_from_anchor"] == (one.config.layout == "anchor-first")
    inner = config["speculators_config"]
    assert inner["verifier"] == {
        "name_or_path": "org/target",
        "architectures": ["Qwen3ForCausalLM"],
    }
    drafted = inner["proposal_methods"][0]["speculative_tokens"]
    assert drafted == 5 - (one.config.layout == "anchor-drop")
    assert tensors["lm_head.weight"].shape == (one.config.head_size, HIDDEN)
    if one.draft_ids is not None:
        assert torch.equal(tensors["lm_head.weight"], target().head[one.draft_ids])
        rows = torch.arange(len(one.draft_ids))
        assert torch.equal(tensors["d2t"] + rows, one.draft_ids)
        assert tensors["t2d"].nonzero().flatten().tolist() == one.draft_ids.tolist()


def test_speculators_files_as_others_write_them(tmp_path: Path) -> None:
    """Catches a reader of our own files alone: defaults left out, the last layer named as well."""
    one = drafter(rms_eps=1e-6, rope_theta=10000.0, **DFLASH)
    speculators.export(one, target()).write(tmp_path)
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    config["architectures"] = ["DFlashSpeculator"]
    config["aux_hidden_state_layer_ids"] = [1, 3, 4]
    for name in ("rms_norm_eps", "rope_theta", "rope_parameters"):
        del config["transformer_layer_config"][name]
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    extra = {"verifier_norm.weight": torch.ones(HIDDEN)}
    save_file(tensors | extra, tmp_path / "model.safetensors")
    require_same(speculators.read(tmp_path, TARGET_SPEC), one)


def test_defaults_are_those_of_transformers() -> None:
    """Catches a default that transformers changed or that was misremembered."""
    config = pytest.importorskip("transformers").Qwen3Config()
    for name, value in speculators.QWEN3_DEFAULTS.items():
        if name == "rope_theta":
            assert getattr(config, name, None) in (None, value)
        else:
            assert getattr(config, name) == value, name


@pytest.mark.parametrize(
    ("export", "changes", "said"),
    [
        (deepspec.export, {"fc_norm": True}, "DeepSpec does not"),
        (speculators.export, {"fc_norm": True}, "vLLM does not"),
        (deepspec.export, {"draft_vocab_size": 32}, "32 of 48 tokens"),
        (deepspec.export, {"layout": "anchor-drop"}, "predicts from the anchor"),
        (zlab.export, {}, "neither a Markov nor a confidence head"),
        (zlab.export, {"layout": "anchor-drop", **DFLASH, "draft_vocab_size": 9}, "9 of 48"),
    ],
)
def test_what_a_schema_cannot_say_is_refused(
    export: Any, changes: dict[str, Any], said: str
) -> None:
    """Catches an export that loads elsewhere and drafts nonsense there."""
    with pytest.raises(IncompatibleDraft, match=said):
        export(drafter(**changes), target())


def test_foreign_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Catches a drafter of another target, and files that are no block drafter."""
    speculators.export(drafter(), target()).write(tmp_path)
    other = dataclasses.replace(TARGET_SPEC, vocab_size=VOCAB + 1)
    with pytest.raises(IncompatibleDraft, match="with 48 tokens, this one has 16 and 49"):
        speculators.read(tmp_path, other)
    config = config_of(tmp_path)
    for kind, said in (("eagle3", "of type 'eagle3'"), ("dflash", "does not hold its network")):
        (tmp_path / "config.json").write_text(
            json.dumps(config | {"speculators_model_type": kind, "markov_rank": 0}), "utf-8"
        )
        with pytest.raises((IncompatibleDraft, CorruptCheckpoint), match=said):
            speculators.read(tmp_path, TARGET_SPEC)
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match=r"no tensor fc\.weight"):
        speculators.read(tmp_path, TARGET_SPEC)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """Catches half a checkpoint."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFailed, match="cannot be written"):
        deepspec.export(drafter(), target()).write(tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_launch_flags_name_method_and_length() -> None:
    """Catches one draft token too many for a layout that drops the anchor."""

    def flags(config: BlockConfig) -> Any:
        command = vllm_command("org/target", "my drafter", config)
        assert command.startswith("vllm serve org/target --speculative-config '")
        return json.loads(command.split("'")[1])

    assert flags(drafter().config) == {
        "method": "dspark", "model": "my drafter", "num_speculative_tokens": 5,
    }  # fmt: skip
    found = flags(drafter(layout="anchor-drop", **DFLASH).config)
    assert (found["method"], found["num_speculative_tokens"]) == ("dflash", 4)


def test_target_matrices_are_read_from_either_kind_of_target(
    tmp_path: Path, default_model: Path
) -> None:
    """Catches a tied target without an output matrix."""
    from outrider.models.checkpoint import open_checkpoint
    from outrider.models.weights import EMBEDDING, HEAD
    from outrider.testing.tiny import write_tiny_checkpoint

    spec = tiny_spec("qwen2", 258, tied_head=False)
    directory = write_tiny_checkpoint(tmp_path / "m", spec, seed=1)
    stored: dict[str, Tensor] = load_file(directory / "model.safetensors")
    found = TargetMatrices.read(open_checkpoint(directory), "x")
    assert torch.equal(found.embedding, stored[EMBEDDING].to(torch.bfloat16))
    assert torch.equal(found.head, stored[HEAD].to(torch.bfloat16))
    assert found.architecture == "Qwen2ForCausalLM"
    tied = TargetMatrices.read(open_checkpoint(default_model), "x")
    assert tied.head is tied.embedding
    assert tied.embedding.shape == (tied.spec.vocab_size, tied.spec.hidden_size)
