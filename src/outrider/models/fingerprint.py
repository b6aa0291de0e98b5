"""A hash that tells one target from another: data sets and drafters carry it."""

import dataclasses
import hashlib
import json

import torch
from torch import Tensor

from outrider.models.checkpoint import Checkpoint
from outrider.models.gguf import GgufTensor
from outrider.models.spec import ModelSpec
from outrider.models.weights import EMBEDDING, SafetensorsSource

# How long the context may be and what ends a text does not change what a layer computes.
_NOT_HASHED = ("max_context_len", "stop_token_ids", "bos_token_id")
_ROPE_NOT_HASHED = ("max_position",)
_SAMPLED_ROWS = 1024


def target_hash(checkpoint: Checkpoint) -> str:
    """SHA-256 over the network's shape and rows of its embedding, in hexadecimal.

    Up to 2,047 evenly spaced embedding rows enter, rounded to bfloat16: every fine-tune and
    every quantisation of a model has a hash of its own, whatever its file is called.

    Raises:
        ModelError: the embedding cannot be read.
    """
    digest = hashlib.sha256(json.dumps(_shape_of(checkpoint.spec), sort_keys=True).encode())
    digest.update(_embedding_rows(checkpoint).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _shape_of(spec: ModelSpec) -> dict[str, object]:
    fields = dataclasses.asdict(spec)
    rope = {name: fields["rope"][name] for name in fields["rope"] if name not in _ROPE_NOT_HASHED}
    return {name: fields[name] for name in fields if name not in _NOT_HASHED} | {"rope": rope}


def _embedding_rows(checkpoint: Checkpoint) -> Tensor:
    spec = checkpoint.spec
    step = max(1, spec.vocab_size // _SAMPLED_ROWS)
    if checkpoint.gguf is None:
        whole = torch.empty(spec.vocab_size, spec.hidden_size, dtype=torch.bfloat16)
        SafetensorsSource(checkpoint.path).read_into(EMBEDDING, whole)
        return whole[::step].contiguous()
    stored = checkpoint.gguf.tensor(EMBEDDING)
    blocks = stored.blocks[::step]
    rows = torch.empty(len(blocks), spec.hidden_size, dtype=torch.bfloat16)
    GgufTensor(EMBEDDING, stored.kind, tuple(rows.shape), blocks).dequantise_into(rows)
    return rows
