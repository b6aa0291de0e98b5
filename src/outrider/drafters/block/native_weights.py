"""A block drafter's network → the matrices of the native runner, quantised on the way."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.network import BlockNetwork
from outrider.drafters.block.runner import NUM_CANDIDATES
from outrider.native.block import BlockParts
from outrider.native.runner import Matrix, Weights

DEFAULT_KIND: Final = "Q4_1"
"""How matrices are kept: 4 bits and a scale and minimum per 32 inputs."""

_WIDE_KINDS: Final = ("F32", "BF16")
_BLOCK = 32
_MATRICES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_VECTORS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}


def native_layers(network: BlockNetwork, target: Weights, kind: str) -> Weights:
    """The drafter's layers, with the target's own embedding in front of them.

    Raises:
        ValueError: the target's embedding does not fit the network.
    """
    weights = Weights(**_shape(network.config))
    weights.set_matrix(-1, "embedding", target.embedding)
    weights.set_vector(-1, "norm", network.norm.weight.tolist())
    tensors = network.state_dict()
    for layer in range(network.config.num_layers):
        for name, stored in _MATRICES.items():
            matrix = packed(tensors[f"layers.{layer}.{stored}.weight"], kind)
            weights.set_matrix(layer, name, matrix)
        for name, stored in _VECTORS.items():
            weights.set_vector(layer, name, tensors[f"layers.{layer}.{stored}.weight"].tolist())
    weights.check_complete()
    return weights


def native_parts(checkpoint: BlockCheckpoint, target: Weights, kind: str) -> BlockParts:
    """What stands before and behind the layers; the head is a part of the target's."""
    network, config = checkpoint.network, checkpoint.config
    parts = BlockParts()
    parts.block_size = config.block_size
    parts.is_anchor_first = config.layout == "anchor-first"
    parts.mask_token = config.mask_token_id
    parts.num_candidates = NUM_CANDIDATES
    parts.norms_features = config.fc_norm
    parts.fuse = packed(network.fc.weight, kind)
    parts.fused_norm = network.hidden_norm.weight.tolist()
    ids = checkpoint.draft_ids
    parts.vocabulary = list(range(config.vocab_size)) if ids is None else ids.tolist()
    parts.head = _head(target.head, None if ids is None else ids.tolist(), kind)
    _set_heads(parts, network)
    return parts


def packed(values: Tensor, kind: str) -> Matrix:
    """A matrix in the kernels' layout; narrow ones, without whole blocks, stay as they are."""
    rows = np.ascontiguousarray(values.to("cpu", torch.float32).numpy())
    columns = rows.shape[1]
    if kind == "F32" or columns % _BLOCK:
        return Matrix.pack("F32", rows.view(np.uint8), columns)
    return Matrix.quantize(kind, "F32", rows.view(np.uint8), columns)


def _head(head: Matrix, ids: list[int] | None, kind: str) -> Matrix:
    """The rows that can be drafted, in fewer bits where the target spends more on them."""
    part = head if ids is None else head.select_rows(ids)
    if kind in _WIDE_KINDS:
        return part
    smaller = packed(torch.from_numpy(part.dequantised()), kind)
    return smaller if smaller.bytes < part.bytes else part


def _set_heads(parts: BlockParts, network: BlockNetwork) -> None:
    markov, confidence = network.markov_head, network.confidence_head
    if markov is not None:
        parts.set_markov(
            network.config.markov_type,
            _rows(markov.markov_w1.weight),
            _rows(markov.markov_w2.weight),
        )
        if network.config.markov_type != "vanilla":
            mix = markov.gate_proj if network.config.markov_type == "gated" else markov.joint_proj
            parts.set_markov_mix(_rows(mix.weight), mix.bias.tolist())
    if confidence is not None:
        weight, bias = confidence.proj.weight[0].tolist(), float(confidence.proj.bias)
        parts.set_confidence(weight, bias, confidence.with_markov)


def _rows(values: Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.ascontiguousarray(values.to("cpu", torch.float32).numpy())


def _shape(config: BlockConfig) -> dict[str, float]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "norm_eps": config.rms_eps,
        "qkv_bias": False,
        "qk_norm": True,
        "tied_head": True,
    }
