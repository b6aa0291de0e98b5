"""Block drafters with random weights for tiny targets: fast, and sometimes right.

Weights are scaled so that what is drafted depends on the features, on the slot and on the token
before; a drafter that always says the same would prove nothing.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.block.checkpoint import BlockCheckpoint, save_checkpoint
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.network import BlockNetwork
from outrider.models.spec import ModelSpec


def tiny_block_config(spec: ModelSpec, **changes: Any) -> BlockConfig:
    """Two layers over both layers of a tiny target, blocks of 4, every head; `changes` replace."""
    fields: dict[str, Any] = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": spec.vocab_size,
        "mask_token_id": 0,
        "target_layer_ids": (0, spec.num_layers - 1),
        "num_target_layers": spec.num_layers,
        "block_size": 4,
        "markov_rank": 8,
        "has_confidence_head": True,
        "max_context_len": spec.max_context_len,
    }
    return BlockConfig(**{**fields, **changes})


def tiny_block(config: BlockConfig, seed: int = 0) -> BlockCheckpoint:
    """Random float32 weights; of a reduced vocabulary, every second token from the highest on."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        network = BlockNetwork(config)
    state = {
        name: _drawn(name, tensor.shape, generator) for name, tensor in network.state_dict().items()
    }
    network.load_state_dict(state, assign=True)
    ids = None
    if config.draft_vocab_size is not None:
        ids = torch.arange(config.vocab_size - 1, -1, -1)
        ids = torch.cat((ids[::2], ids[1::2]))[: config.draft_vocab_size].sort().values
    return BlockCheckpoint(network.eval().requires_grad_(requires_grad=False), ids)


def write_tiny_block(directory: Path, config: BlockConfig, seed: int = 0) -> Path:
    """Write `tiny_block(config, seed)` in float32 and return the directory."""
    save_checkpoint(directory, tiny_block(config, seed), dtype=torch.float32)
    return directory


def _drawn(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1.0 + 0.1 * drawn
    if name.endswith("bias"):
        return 0.5 * drawn
    # The bias by the token before must be able to turn an arg-max around.
    gain = 1.0 if "markov_w" in name else 1.5 * shape[-1] ** -0.5
    return gain * drawn
