"""Tiny checkpoints with random weights, small enough to run by the thousand.

Weights are scaled so that next-token distributions are neither flat nor deterministic and depend on
more than the last token; a test that any drafter would pass, or none, proves nothing.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from torch import Tensor

from outrider.models.bpe import byte_spelling
from outrider.models.decoder import Decoder
from outrider.models.hf_config import to_hf_config
from outrider.models.spec import Architecture, ModelSpec, RopeSpec
from outrider.models.weights import EMBEDDING, HEAD, Shape, load_decoder, tensor_layout

BOS, EOS = "<|bos|>", "<|eos|>"
BOS_ID, EOS_ID = 0, 1

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

# The characters that come first in a vocabulary too small for all 256 bytes.
_FREQUENT = b" \netaoinshrdlcumwfgypbvkjxqz0123456789.,:;()[]{}=+-*/<>_\"'#!?"


def tiny_spec(
    architecture: Architecture = "llama", vocab_size: int = 64, **changes: Any
) -> ModelSpec:
    """Two layers of width 32; `changes` replaces any field of the spec.

    Ids 0 and 1 are begin and end of text, and 1 stops generation.
    """
    spec = ModelSpec(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        norm_eps=1e-6,
        rope=RopeSpec(theta=10000.0, max_position=512),
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        tied_head=True,
        max_context_len=512,
        stop_token_ids=frozenset({EOS_ID}),
        bos_token_id=BOS_ID,
    )
    return dataclasses.replace(spec, **changes)


def tiny_decoder(spec: ModelSpec, seed: int, dtype: torch.dtype = torch.float64) -> Decoder:
    """A decoder with random weights; equal seeds give equal weights, rounded to `dtype`."""
    return load_decoder(spec, InMemoryTensors(tiny_tensors(spec, seed)), dtype)


def tiny_tensors(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """The random weights, in float64, under their Hugging Face names."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _drawn(name, shape, spec, generator)
        for parts in tensor_layout(spec).values()
        for name, shape in parts.items()
    }


def write_tiny_checkpoint(directory: Path, spec: ModelSpec, seed: int) -> Path:
    """Write `tiny_decoder(spec, seed, float32)` as a Hugging Face directory and return it.

    The tokenizer maps single bytes; a vocabulary below 258 ids has only the most frequent ones.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.to(torch.float32) for name, t in tiny_tensors(spec, seed).items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer_config = {"bos_token": BOS, "eos_token": EOS, "chat_template": CHAT_TEMPLATE}
    _write_json(directory / "config.json", to_hf_config(spec))
    _write_json(directory / "tokenizer_config.json", tokenizer_config)
    byte_tokenizer(spec.vocab_size).save(str(directory / "tokenizer.json"))
    return directory


def byte_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """A tokenizer of single bytes, at most `vocab_size` ids, the first two special."""
    order = [*_FREQUENT, *(byte for byte in range(256) if byte not in _FREQUENT)]
    spelling = byte_spelling()
    texts = [BOS, EOS, *(spelling[byte] for byte in order)][:vocab_size]
    vocab = {text: index for index, text in enumerate(texts)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (BOS, EOS)])
    return tokenizer


class InMemoryTensors:
    """A `weights.TensorSource` over a dictionary."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Serve `tensors` under their names."""
        self._tensors = tensors

    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read_into(self, name: str, out: Tensor) -> None:
        """Write one tensor into `out`."""
        out.copy_(self._tensors[name])


def _drawn(name: str, shape: Shape, spec: ModelSpec, generator: torch.Generator) -> Tensor:
    mean, deviation = _distribution(name, shape, spec)
    drawn: Tensor = mean + deviation * torch.randn(shape, generator=generator, dtype=torch.float64)
    return drawn


def _distribution(name: str, shape: Shape, spec: ModelSpec) -> tuple[float, float]:
    if name.endswith("norm.weight"):
        return 1.0, 0.1
    if name.endswith(".bias"):
        return 0.0, 0.5
    if name in (EMBEDDING, HEAD):
        # Logits of unit-variance rows then have a standard deviation of 2.
        return 0.0, 2.0 * spec.hidden_size**-0.5
    # Outputs outweigh the embedding in the residual, or a tied head would repeat the last token.
    gain = 2.0 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.5
    return 0.0, gain * shape[-1] ** -0.5


def _write_json(path: Path, contents: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
