"""Tiny block drafters, teachers and documents for tests."""

from typing import Any

import torch
from torch import Tensor

from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.network import BlockNetwork
from outrider.training.dataset import FeaturedDocument
from outrider.training.teacher import Teacher, make_teacher

VOCAB = 48
HIDDEN = 16
TAPS = (0, 2)


def tiny_config(**changes: Any) -> BlockConfig:
    """Two layers of width 16, block 5, all heads; `changes` replaces any field."""
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "draft_vocab_size": 32,
        "mask_token_id": 3,
        "target_layer_ids": TAPS,
        "num_target_layers": 4,
        "block_size": 5,
        "markov_rank": 6,
        "has_confidence_head": True,
        "fc_norm": True,
        "max_context_len": 256,
    }
    return BlockConfig(**(fields | changes))


def random_network(config: BlockConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A network whose every part matters: no weight is zero, no norm is one."""
    network = BlockNetwork(config).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scaled = 1 + 0.3 * noise if name.endswith("norm.weight") else 0.3 * noise
            parameter.copy_(scaled)
    return network


def random_teacher(
    config: BlockConfig, seed: int = 1, dtype: torch.dtype = torch.float32
) -> Teacher:
    """An embedding, an output matrix of its own, and a draft vocabulary that is no prefix."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    head = 0.3 * torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    norm = 1 + 0.2 * torch.randn(config.hidden_size, generator=generator)
    ids = torch.randperm(config.vocab_size, generator=generator)[: config.head_size].sort().values
    return make_teacher(embedding.to(dtype), head.to(dtype), norm, 1e-6, ids)


def random_document(length: int, prompt: int, seed: int) -> FeaturedDocument:
    """Random tokens and features; the first `prompt` tokens are not the target's."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (length,), generator=generator)
    mask = torch.arange(length) >= prompt
    features: Tensor = torch.randn(length, (len(TAPS) + 1) * HIDDEN, generator=generator)
    return FeaturedDocument(tokens, mask, features)
