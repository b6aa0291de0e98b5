"""Tiny block drafters, teachers and documents for tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
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
    config: BlockConfig,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    head_scale: float = 1.2,
) -> Teacher:
    """An embedding, an output matrix of its own, and a draft vocabulary that is no prefix."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    head = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    # Equal lengths: the row a hidden state points along is then the likeliest token.
    head = head_scale * head / head.norm(dim=-1, keepdim=True)
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


def write_shards(
    directory: Path, documents: Sequence[FeaturedDocument], *, per_shard: int, **manifest: Any
) -> None:
    """A data set as training reads it; every document counts as greedy."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(documents), per_shard)):
        part = documents[start : start + per_shard]
        lengths = torch.tensor([0, *(len(document.tokens) for document in part)])
        save_file(
            {
                "tokens": torch.cat([each.tokens for each in part]).to(torch.int32),
                "loss_mask": torch.cat([each.loss_mask for each in part]).to(torch.uint8),
                "doc_starts": lengths.cumsum(0),
                "features": torch.cat([each.features for each in part]).to(torch.bfloat16),
            },
            directory / f"shard-{number:05d}.safetensors",
        )
        lines = [
            json.dumps({"id": f"d{start + i}", "domain": "test", "temperature": 0.0})
            for i in range(len(part))
        ]
        (directory / f"shard-{number:05d}.jsonl").write_text("\n".join(lines) + "\n")
    content = {
        "version": 1,
        "target": "tiny",
        "target_hash": "",
        "tap_layers": [*TAPS, 3],
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "features": True,
    }
    (directory / "manifest.json").write_text(json.dumps(content | manifest))


def cyclic_document(teacher: Teacher, cycle: Sequence[int], length: int) -> FeaturedDocument:
    """A text that repeats a cycle, from a target that is sure of it.

    Features of the fused layers are the token's embedding; those of the last layer give the next
    token nearly all probability.
    """
    tokens = torch.tensor(cycle).repeat(length // len(cycle) + 2)
    following = tokens[1 : length + 1]
    tokens = tokens[:length]
    size = len(teacher.norm_weight)
    rows = teacher.draft_head / teacher.draft_head.norm(dim=-1, keepdim=True)
    last = rows[teacher.draft_index[following]] / teacher.norm_weight
    embedded = teacher.embedding[tokens]
    features = torch.cat((embedded, embedded.roll(size // 2, -1), last), -1)
    return FeaturedDocument(tokens, torch.arange(length) >= 2, features)
