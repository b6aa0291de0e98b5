"""From a target and a data set to a drafter with fresh weights."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from outrider.drafters.block.config import BlockConfig, Layout, MarkovType
from outrider.drafters.block.network import BlockNetwork
from outrider.errors import ConfigError, IncompatibleDraft
from outrider.models.spec import ModelSpec
from outrider.training.dataset import Manifest, frequent_tokens, list_shards, token_counts
from outrider.training.teacher import Teacher

_WEIGHT_SCALE = 0.02
_FIRST_NORM = 0.3
"""Share of the target's final norm: with all of it, first logits would be sure of nonsense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """What a user chooses about a block drafter; None for sizes means the target's."""

    num_layers: int = 2
    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    block_size: int = 7
    layout: Layout = "anchor-first"
    mask_token_id: int = 0
    draft_vocab_size: int | None = 16384
    markov_rank: int = 128
    markov_type: MarkovType = "vanilla"
    has_confidence_head: bool = True
    confidence_with_markov: bool = True
    fc_norm: bool = True


def require_data_of(manifest: Manifest, spec: ModelSpec, found_hash: str) -> None:
    """Refuse data of another target, or without what training needs.

    Raises:
        IncompatibleDraft: the target's hash differs from the data's.
        ConfigError: the taps lack the last layer, or there is no layer besides it.
    """
    if manifest.target_hash and manifest.target_hash != found_hash:
        raise IncompatibleDraft(
            f"the data were written by the target with hash {manifest.target_hash[:12]}, but this "
            f"target has hash {found_hash[:12]}; name the target that wrote the data "
            f"({manifest.target}) or generate data with this one"
        )
    taps = manifest.tap_layers
    if len(taps) < 2 or taps[-1] != spec.num_layers - 1:  # noqa: PLR2004 - one to fuse, one to judge
        raise ConfigError(
            f"the data have features of layers {list(taps)}, but training needs at least one "
            f"layer to draft from and, at the end, the last layer, {spec.num_layers - 1}; "
            "generate the data again with those taps"
        )


def new_config(
    spec: ModelSpec, manifest: Manifest, found_hash: str, options: NetworkOptions
) -> BlockConfig:
    """The configuration of a fresh drafter; every tap but the last is fused."""
    draft_vocab_size = options.draft_vocab_size
    if draft_vocab_size is not None and draft_vocab_size >= spec.vocab_size:
        draft_vocab_size = None
    return BlockConfig(
        hidden_size=spec.hidden_size,
        intermediate_size=options.intermediate_size or spec.intermediate_size,
        num_layers=options.num_layers,
        num_heads=options.num_heads or spec.num_heads,
        num_kv_heads=options.num_kv_heads or spec.num_kv_heads,
        head_dim=options.head_dim or spec.head_dim,
        vocab_size=spec.vocab_size,
        draft_vocab_size=draft_vocab_size,
        block_size=options.block_size,
        layout=options.layout,
        mask_token_id=options.mask_token_id,
        target_layer_ids=manifest.tap_layers[:-1],
        num_target_layers=spec.num_layers,
        markov_rank=options.markov_rank,
        markov_type=options.markov_type,
        has_confidence_head=options.has_confidence_head,
        confidence_with_markov=options.confidence_with_markov,
        fc_norm=options.fc_norm,
        rms_eps=spec.norm_eps,
        rope_theta=spec.rope.theta,
        max_context_len=spec.max_context_len,
        target_hash=found_hash,
    )


def draft_vocabulary(data: Path, config: BlockConfig) -> Int[Tensor, " draft_vocab"] | None:
    """The tokens the target writes most in the data; None for all of them."""
    if config.draft_vocab_size is None:
        return None
    counts = token_counts(list_shards(data), config.vocab_size)
    return frequent_tokens(counts, config.draft_vocab_size)


def new_network(config: BlockConfig, teacher: Teacher, seed: int) -> BlockNetwork:
    """A network with drawn weights in float32.

    Outputs of the layers start small, and the last norm starts in the direction of the target's.
    """
    network = BlockNetwork(config)
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * config.num_layers)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name == "norm.weight":
                parameter.copy_(_FIRST_NORM * teacher.norm_weight)
            elif name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                small = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = _WEIGHT_SCALE / depth if small else _WEIGHT_SCALE
                parameter.normal_(0.0, scale, generator=generator)
    return network
