"""Checkpoint → the weights of the native runner, tensor by tensor.

Quantised GGUF tensors keep their numbers; unquantised ones can be quantised on the way.
"""

from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from outrider.errors import ConfigError, CorruptCheckpoint, unknown_name
from outrider.models.checkpoint import Checkpoint
from outrider.models.gguf import Bytes, GgufFile
from outrider.models.layers import inverse_frequencies
from outrider.models.spec import ModelSpec
from outrider.models.weights import (
    EMBEDDING,
    HEAD,
    SafetensorsSource,
    Shape,
    TensorSource,
    check_tensors,
    tensor_layout,
)
from outrider.native.runner import Machine, Matrix, Weights

WeightFormat = Literal["f32", "bf16", "q8", "q4"]
"""How unquantised matrices are kept; GGUF tensors that are quantised stay as they are."""

_KINDS: Final = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0", "q4": "Q4_1"}
_UNQUANTISED: Final = ("F32", "F16", "BF16")
_BLOCK = 32
_SIZES = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
_MATRICES = {
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_VECTORS = {
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
}
_BIASES = {
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
}
_HEAD_NORMS = {"query_norm": "self_attn.q_norm.weight", "key_norm": "self_attn.k_norm.weight"}


@dataclass(frozen=True, slots=True, eq=False)
class NativeModel:
    """Weights in the layouts of the kernels, the rotation, and the threads that compute."""

    spec: ModelSpec
    machine: Machine
    weights: Weights
    frequencies: tuple[float, ...]


def load_native(
    checkpoint: Checkpoint, machine: Machine, weight_format: WeightFormat = "bf16"
) -> NativeModel:
    """Load a checkpoint for the native runner.

    Raises:
        CorruptCheckpoint: a tensor is missing or does not fit.
        UnsupportedModel: a tensor is stored in a way that is not implemented.
    """
    source: TensorSource = checkpoint.gguf or SafetensorsSource(checkpoint.path)
    return load_native_tensors(checkpoint.spec, source, machine, weight_format)


def load_native_tensors(
    spec: ModelSpec,
    source: TensorSource,
    machine: Machine,
    weight_format: WeightFormat = "bf16",
) -> NativeModel:
    """Load named tensors; see `load_native`."""
    if weight_format not in _KINDS:
        raise ConfigError(unknown_name("weight format", weight_format, _KINDS))
    found = source.shapes()
    check_tensors(spec, tensor_layout(spec), found)
    weights = Weights(**_shape(spec))
    try:
        for layer, name, tensor in _matrices(spec):
            if tensor in found:
                matrix = _matrix(source, tensor, found[tensor], weight_format)
                weights.set_matrix(layer, name, matrix)
                _let_go(source)
        for layer, name, tensor in _vectors(spec):
            if tensor in found:
                weights.set_vector(layer, name, _read(source, tensor, found[tensor]).tolist())
        _let_go(source)
        weights.check_complete()
    except ValueError as error:
        raise CorruptCheckpoint(f"the tensors do not fit the model: {error}") from error
    frequencies = inverse_frequencies(spec.rope, spec.head_dim).tolist()
    return NativeModel(spec, machine, weights, tuple(frequencies))


def _shape(spec: ModelSpec) -> dict[str, float]:
    named = {field.name: getattr(spec, field.name) for field in fields(spec)}
    wanted = (*_SIZES, "intermediate_size", "norm_eps", "qkv_bias", "qk_norm", "tied_head")
    return {name: named[name] for name in wanted}


def _matrices(spec: ModelSpec) -> list[tuple[int, str, str]]:
    """Layer, name there, name in the checkpoint."""
    listed = [(-1, "embedding", EMBEDDING)]
    if not spec.tied_head:
        listed.append((-1, "head", HEAD))
    return listed + _per_layer(spec, _MATRICES)


def _vectors(spec: ModelSpec) -> list[tuple[int, str, str]]:
    own = dict(_VECTORS)
    if spec.qkv_bias:
        own |= _BIASES
    if spec.qk_norm:
        own |= _HEAD_NORMS
    return [(-1, "norm", "model.norm.weight"), *_per_layer(spec, own)]


def _per_layer(spec: ModelSpec, names: dict[str, str]) -> list[tuple[int, str, str]]:
    return [
        (layer, name, f"model.layers.{layer}.{suffix}")
        for layer in range(spec.num_layers)
        for name, suffix in names.items()
    ]


def _matrix(source: TensorSource, name: str, shape: Shape, weight_format: WeightFormat) -> Matrix:
    if isinstance(source, GgufFile):
        stored = source.tensor(name)
        if stored.kind not in _UNQUANTISED:
            return Matrix.pack(stored.kind, np.ascontiguousarray(stored.blocks), shape[1])
    kind = _KINDS[weight_format]
    if kind == "BF16":
        return Matrix.pack(kind, _raw_rows(_read(source, name, shape, torch.bfloat16)), shape[1])
    rows = _raw_rows(_read(source, name, shape))
    # Narrow matrices have no whole blocks; they are small enough to stay as they are.
    if kind == "F32" or shape[1] % _BLOCK:
        return Matrix.pack("F32", rows, shape[1])
    return Matrix.quantize(kind, "F32", rows, shape[1])


def _let_go(source: TensorSource) -> None:
    if isinstance(source, GgufFile):
        source.let_go()


def _read(
    source: TensorSource, name: str, shape: Shape, dtype: torch.dtype = torch.float32
) -> Tensor:
    values = torch.empty(shape, dtype=dtype)
    source.read_into(name, values)
    return values


def _raw_rows(tensor: Tensor) -> Bytes:
    raw: Bytes = tensor.view(torch.uint8).numpy()
    return raw
