"""The speculators schema, which vLLM serves directly: drafter and target named in one directory.

Layers are counted as vLLM does, by what enters them: our layer i, whose output is meant, is their
i + 1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.block.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    BlockCheckpoint,
    read_tensors,
)
from outrider.drafters.block.config import BlockConfig, from_json
from outrider.drafters.block.network import BlockNetwork
from outrider.errors import CorruptCheckpoint, IncompatibleDraft
from outrider.interop.schema import (
    ForeignCheckpoint,
    TargetMatrices,
    own_tensors,
    require_exportable,
    rope_fields,
)
from outrider.models.fields import Fields, read_json
from outrider.models.spec import ModelSpec

NAME = "speculators"
VERSION = "0.5.0"
_CLASSES = {"dflash": "DFlashDraftModel", "dspark": "DSparkDraftModel"}
_LAYER_FIELDS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "hidden_act",
    "attention_bias",
    "tie_word_embeddings",
    "layer_types",
)
# Their files leave out what equals the defaults of transformers' Qwen3Config.
QWEN3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
_TARGETS_OWN = ("verifier_lm_head.weight", "verifier_norm.weight")


def export(checkpoint: BlockCheckpoint, target: TargetMatrices) -> ForeignCheckpoint:
    """Write a `dspark` or, without Markov and confidence head, a `dflash` speculator.

    Raises:
        IncompatibleDraft: The drafter computes what vLLM does not.
    """
    require_exportable(checkpoint, "vLLM")
    config = checkpoint.config
    kind = "dspark" if config.markov_rank or config.has_confidence_head else "dflash"
    fields = config.to_json()
    layer = {name: fields[name] for name in _LAYER_FIELDS} | rope_fields(config.rope_theta)
    record: dict[str, Any] = {
        "architectures": [_CLASSES[kind]],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "transformer_layer_config": layer,
        "draft_vocab_size": config.head_size,
        "block_size": config.block_size,
        "target_hidden_size": target.spec.hidden_size,
        "aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in config.target_layer_ids],
        "mask_token_id": config.mask_token_id,
        "sliding_window_non_causal": False,
        "sample_from_anchor": config.layout == "anchor-first",
        "speculators_config": _proposal(kind, config.num_drafts, target),
        "torch_dtype": "bfloat16",
    }
    if kind == "dspark":
        record |= {
            "markov_rank": config.markov_rank,
            "markov_head_type": config.markov_type,
            "enable_confidence_head": config.has_confidence_head,
            "confidence_head_with_markov": config.confidence_with_markov,
        }
    return ForeignCheckpoint(record, _tensors(checkpoint, target))


def _proposal(kind: str, num_drafts: int, target: TargetMatrices) -> dict[str, Any]:
    return {
        "algorithm": kind,
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": num_drafts,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": target.name, "architectures": [target.architecture]},
    }


def _tensors(checkpoint: BlockCheckpoint, target: TargetMatrices) -> dict[str, Tensor]:
    ids = checkpoint.draft_ids
    tensors = own_tensors(checkpoint) | {"embed_tokens.weight": target.embedding}
    if ids is None:
        return tensors | {"lm_head.weight": target.head}
    can_be_drafted = torch.zeros(checkpoint.config.vocab_size, dtype=torch.bool)
    can_be_drafted[ids] = True
    return tensors | {
        "lm_head.weight": target.head[ids],
        "d2t": ids - torch.arange(len(ids)),
        "t2d": can_be_drafted,
    }


def read(directory: Path, target: ModelSpec) -> BlockCheckpoint:
    """Read a dflash or dspark speculator that was trained for `target`.

    Raises:
        CorruptCheckpoint: Fields or tensors are missing or do not fit.
        IncompatibleDraft: It is another kind of speculator, or for another size of target.
    """
    tensors = read_tensors(directory / WEIGHTS_FILE)
    if "fc.weight" not in tensors:
        raise CorruptCheckpoint(f"{directory} has no tensor fc.weight, so it is no block drafter")
    config = _config(read_json(directory / CONFIG_FILE), tensors["fc.weight"], target)
    offsets = tensors.pop("d2t", None)
    for name in ("t2d", *_TARGETS_OWN):
        tensors.pop(name, None)
    with torch.device("meta"):
        network = BlockNetwork(config)
    state = {name: values.to(torch.float32) for name, values in tensors.items()}
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise CorruptCheckpoint(f"{directory} does not hold its network: {error}") from error
    ids = None if offsets is None else offsets + torch.arange(len(offsets))
    if config.draft_vocab_size is not None and (ids is None or len(ids) != config.head_size):
        raise CorruptCheckpoint(
            f"draft_vocab_size is {config.draft_vocab_size}, but d2t does not name as many tokens"
        )
    return BlockCheckpoint(network.eval().requires_grad_(requires_grad=False), ids)


def flat_fields(record: Mapping[str, Any], fused_columns: int, target: ModelSpec) -> dict[str, Any]:
    """Give their configuration under the names of our own `config.json`, as far as it goes.

    `fused_columns` are the columns of `fc.weight`.

    Raises:
        CorruptCheckpoint: A field is of the wrong type.
    """
    fields = Fields(record)
    is_dspark = record.get("speculators_model_type") == "dspark"
    layer = {**QWEN3_DEFAULTS, **record.get("transformer_layer_config", {})}
    # Theirs may name the last layer too, for the teacher; fused is what `fc` has columns for.
    named = fields.items("aux_hidden_state_layer_ids")[: fused_columns // target.hidden_size]
    return {
        **layer,
        "architectures": ["Qwen3DSparkModel"],
        "draft_vocab_size": fields.integer("draft_vocab_size", layer["vocab_size"]),
        "block_size": fields.integer("block_size"),
        "sample_from_anchor": fields.flag("sample_from_anchor", default=is_dspark),
        "mask_token_id": fields.integer("mask_token_id"),
        "target_layer_ids": [layer_id - 1 for layer_id in named],
        "num_target_layers": target.num_layers,
        "markov_rank": fields.integer("markov_rank", 256 if is_dspark else 0),
        "markov_head_type": fields.text("markov_head_type", "vanilla"),
        "enable_confidence_head": fields.flag("enable_confidence_head", default=is_dspark),
        "confidence_head_with_markov": fields.flag("confidence_head_with_markov", default=True),
    }


def _config(record: Mapping[str, Any], fused: Tensor, target: ModelSpec) -> BlockConfig:
    kind = Fields(record).text("speculators_model_type")
    if kind not in _CLASSES:
        raise IncompatibleDraft(
            f"the speculator is of type {kind!r}; block drafters are {' or '.join(_CLASSES)}"
        )
    config = from_json(flat_fields(record, fused.shape[1], target))
    if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
        raise IncompatibleDraft(
            f"the speculator is for a target of width {config.hidden_size} with "
            f"{config.vocab_size} tokens, this one has {target.hidden_size} and "
            f"{target.vocab_size}; name the target it was trained for"
        )
    return config
