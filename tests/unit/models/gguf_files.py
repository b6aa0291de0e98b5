"""GGUF files for tests, written with the gguf package from the weights of a tiny spec."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from outrider.models.spec import ModelSpec

NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` as `blk.3.ffn_up.weight`."""
    stem, _, suffix = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{suffix}"


def interleaved(weights: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows as converters store those of the llama architecture, spelled out index by index."""
    head_dim = len(weights) // num_heads
    stored = np.empty_like(weights)
    for row in range(len(weights)):
        head, within = divmod(row, head_dim)
        half, pair = divmod(within, head_dim // 2)
        stored[head * head_dim + 2 * pair + half] = weights[row]
    return stored


def metadata_of(spec: ModelSpec) -> dict[str, Any]:
    """The keys that a converter would write for this spec."""
    arch = spec.architecture
    return {
        f"{arch}.block_count": spec.num_layers,
        f"{arch}.context_length": spec.rope.max_position,
        f"{arch}.embedding_length": spec.hidden_size,
        f"{arch}.feed_forward_length": spec.intermediate_size,
        f"{arch}.attention.head_count": spec.num_heads,
        f"{arch}.attention.head_count_kv": spec.num_kv_heads,
        f"{arch}.attention.key_length": spec.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": spec.norm_eps,
        f"{arch}.rope.freq_base": spec.rope.theta,
        f"{arch}.vocab_size": spec.vocab_size,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.bos_token_id": 0,
    }


def write_gguf(
    path: Path,
    spec: ModelSpec,
    tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write the tensors as a converter would; matrices are stored as `kind`."""
    writer = gguf.GGUFWriter(path, spec.architecture)
    for key, value in {**metadata_of(spec), **(metadata or {})}.items():
        _add(writer, key, value)
    heads = {"q_proj.weight": spec.num_heads, "k_proj.weight": spec.num_kv_heads}
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        for suffix, num_heads in heads.items():
            if name.endswith(suffix) and spec.architecture == "llama":
                values = interleaved(values, num_heads)
        stored = GGMLQuantizationType.F32 if values.ndim == 1 else kind
        packed = gguf.quants.quantize(values, stored)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=stored)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float64(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
