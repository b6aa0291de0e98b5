"""Tensors of a checkpoint, under their Hugging Face names, assembled into a `Decoder`.

Two sources exist: a directory of safetensors (here) and a GGUF file (`models.gguf`). Assembly is
strict: what is missing, unexpected or misshapen is reported all at once.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from outrider.models.decoder import Decoder
from outrider.models.fields import read_json
from outrider.models.spec import ModelSpec

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt"})
_MAX_LISTED = 20
_NUMBERS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class TensorSource(Protocol):
    """Named tensors of one checkpoint."""

    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor, by its Hugging Face name."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Write one tensor into `out`, of the same shape, converting to its dtype."""
        ...


def load_decoder(spec: ModelSpec, source: TensorSource, dtype: torch.dtype) -> Decoder:
    """Build the decoder of `spec` with the weights of `source`, for inference.

    Tensors are read and converted one at a time, straight into their fused place.

    Raises:
        CorruptCheckpoint: tensors are missing, unexpected or misshapen; all are listed.
    """
    layout = tensor_layout(spec)
    check_tensors(spec, layout, source.shapes())
    state: dict[str, Tensor] = {}
    for name, parts in layout.items():
        rows = sum(shape[0] for shape in parts.values())
        fused = torch.empty(rows, *next(iter(parts.values()))[1:], dtype=dtype)
        start = 0
        for part, shape in parts.items():
            source.read_into(part, fused[start : start + shape[0]])
            start += shape[0]
        state[name] = fused
    return build_decoder(spec, state)


def build_decoder(spec: ModelSpec, state: Mapping[str, Tensor]) -> Decoder:
    """Make a decoder around tensors named as in its `state_dict`; they are not copied."""
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.load_state_dict(dict(state), strict=True, assign=True)
    return decoder.eval().requires_grad_(requires_grad=False)


def tensor_layout(spec: ModelSpec) -> dict[str, dict[str, Shape]]:
    """Which Hugging Face tensors, with which shapes, are stacked into each of the decoder's."""
    layout: dict[str, dict[str, Shape]] = {
        "embedding.weight": {EMBEDDING: (spec.vocab_size, spec.hidden_size)},
        "norm.weight": {"model.norm.weight": (spec.hidden_size,)},
    }
    if not spec.tied_head:
        layout["head.weight"] = {HEAD: (spec.vocab_size, spec.hidden_size)}
    for layer in range(spec.num_layers):
        layout |= _layer_layout(spec, layer)
    return layout


def _layer_layout(spec: ModelSpec, layer: int) -> dict[str, dict[str, Shape]]:
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
    hidden, wide = spec.hidden_size, spec.intermediate_size
    query_rows, key_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    projected = {"q": query_rows, "k": key_rows, "v": key_rows}
    attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
    layout: dict[str, dict[str, Shape]] = {
        f"{ours}.attention_norm.weight": {f"{theirs}.input_layernorm.weight": (hidden,)},
        f"{ours}.attention.qkv.weight": {
            f"{attention}.{part}_proj.weight": (rows, hidden) for part, rows in projected.items()
        },
        f"{ours}.attention.output.weight": {f"{attention}.o_proj.weight": (hidden, query_rows)},
        f"{ours}.mlp_norm.weight": {f"{theirs}.post_attention_layernorm.weight": (hidden,)},
        f"{ours}.mlp.gate_up.weight": {
            f"{mlp}.gate_proj.weight": (wide, hidden),
            f"{mlp}.up_proj.weight": (wide, hidden),
        },
        f"{ours}.mlp.down.weight": {f"{mlp}.down_proj.weight": (hidden, wide)},
    }
    if spec.qkv_bias:
        layout[f"{ours}.attention.qkv.bias"] = {
            f"{attention}.{part}_proj.bias": (rows,) for part, rows in projected.items()
        }
    if spec.qk_norm:
        layout[f"{ours}.attention.query_norm.weight"] = {
            f"{attention}.q_norm.weight": (spec.head_dim,)
        }
        layout[f"{ours}.attention.key_norm.weight"] = {
            f"{attention}.k_norm.weight": (spec.head_dim,)
        }
    return layout


def check_tensors(
    spec: ModelSpec, layout: Mapping[str, Mapping[str, Shape]], found: Mapping[str, Shape]
) -> None:
    """Hold the tensors of a checkpoint against `tensor_layout`.

    Raises:
        CorruptCheckpoint: Lists what is missing, unexpected or misshapen.
    """
    expected = {name: shape for parts in layout.values() for name, shape in parts.items()}
    faults = [f"missing {name} {shape}" for name, shape in expected.items() if name not in found]
    faults += [
        f"{name} is {found[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    faults += [
        f"unexpected {name} {shape}"
        for name, shape in found.items()
        if name not in expected and not _is_redundant(name, spec)
    ]
    if faults:
        more = f"; and {len(faults) - _MAX_LISTED} more" if len(faults) > _MAX_LISTED else ""
        raise CorruptCheckpoint(
            f"{len(faults)} tensors do not fit a {spec.architecture} decoder of "
            f"{spec.num_layers} layers: {'; '.join(faults[:_MAX_LISTED])}{more}"
        )


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    """Old exports carry rotary tables, and some tied ones a second copy of the embedding."""
    return name.endswith("rotary_emb.inv_freq") or (spec.tied_head and name == HEAD)


class SafetensorsSource:
    """The safetensors of a Hugging Face directory, one file or many."""

    def __init__(self, directory: Path) -> None:
        """Read the headers; tensors are read when asked for.

        Raises:
            ModelNotFound: no weights in the directory.
            UnsupportedModel: only pickled weights.
            CorruptCheckpoint: a file is truncated, absent or not safetensors.
        """
        self._slices: dict[str, tuple[Any, Shape]] = {}
        for path in _safetensors_files(directory):
            for name, handle, shape in _open(path):
                self._slices[name] = (handle, shape)

    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor."""
        return {name: shape for name, (_, shape) in self._slices.items()}

    def read_into(self, name: str, out: Tensor) -> None:
        """Write one tensor into `out`.

        Raises:
            UnsupportedModel: it does not hold plain floating point numbers.
        """
        handle, _ = self._slices[name]
        tensor: Tensor = handle.get_tensor(name)
        # Eight-bit floats mean nothing without scales, which lie elsewhere.
        if tensor.dtype not in _NUMBERS:
            raise UnsupportedModel(
                f"tensor {name} holds {tensor.dtype}, not plain floating point numbers; "
                "use the unquantised checkpoint or a GGUF of the same model"
            )
        out.copy_(tensor)


def _open(path: Path) -> Iterator[tuple[str, Any, Shape]]:
    try:
        handle: Any = safe_open(path, framework="pt")
        names: list[str] = list(handle.keys())
        for name in names:
            yield name, handle, tuple(handle.get_slice(name).get_shape())
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a whole safetensors file ({error}); download it again"
        ) from error


def _safetensors_files(directory: Path) -> list[Path]:
    index = directory / _INDEX_FILE
    if index.is_file():
        return _shards(index)
    single = directory / _SINGLE_FILE
    if single.is_file():
        return [single]
    if any(path.suffix in _PICKLE_SUFFIXES for path in directory.iterdir()):
        raise UnsupportedModel(
            f"{directory} holds only pickled weights, which can run code when loaded; "
            "convert them to safetensors or use a GGUF of the same model"
        )
    raise ModelNotFound(f"{directory} holds neither {_SINGLE_FILE} nor {_INDEX_FILE}")


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    names = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
    if not names or any(Path(name).name != name for name in names):
        raise CorruptCheckpoint(f"{index} has no readable weight_map; download it again")
    files = [index.parent / name for name in sorted(names)]
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise CorruptCheckpoint(
            f"{index} names files that are not there: {', '.join(absent)}; "
            "download the missing shards"
        )
    return files
