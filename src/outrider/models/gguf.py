"""GGUF files as a source of tensors, with the quantised blocks at hand for a native runner.

Tensors appear under their Hugging Face names and in the rotate-half layout: the interleaving that
converters apply to the query and key rows of the llama architecture is undone on the quantised
rows, where a row is just bytes.
"""

import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from outrider.errors import CorruptCheckpoint, UnsupportedModel
from outrider.models.gguf_header import GgufHeader, MetadataValue, TensorEntry, read_header
from outrider.models.gguf_spec import from_gguf
from outrider.models.spec import SUPPORTED_ARCHITECTURES, ModelSpec
from outrider.models.weights import EMBEDDING, HEAD, Shape

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

SUPPORTED_KINDS = frozenset(
    {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"}
)

# The gguf package works on 16 rows at a time, which for short rows is all overhead and for long
# ones leaves the cache; rows are whole blocks, so they can be merged to about this many bytes.
_GROUPED_BYTES = 12_000
_PIECE_VALUES = 1 << 19

_ROPE_DIVISORS = "rope_freqs.weight"
_GLOBAL_NAMES = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """One tensor as it is stored.

    `kind` is the ggml type name (`"Q4_1"`). `blocks` is a read-only `[rows, bytes_per_row]` view:
    rows of whole quantisation blocks, in the order of the rows of `shape`.
    """

    name: str
    kind: str
    shape: Shape
    blocks: Bytes

    def dequantise_into(self, out: Tensor) -> None:
        """Write the values into `out`, of the same shape and any float dtype.

        A piece at a time, so that no float32 copy of a large tensor ever exists.
        """
        rows = self.blocks.shape[0]
        step = _power_of_two_below(_PIECE_VALUES * rows // math.prod(self.shape))
        by_row = out.view(rows, -1)
        for start in range(0, rows, step):
            values = _dequantised(self.blocks[start : start + step], self.kind)
            by_row[start : start + step].copy_(torch.from_numpy(values))


class GgufFile:
    """An open GGUF file: `metadata`, `spec`, and tensors by Hugging Face name."""

    def __init__(self, path: Path) -> None:
        """Read the header; tensor data stays on disk until read.

        Raises:
            CorruptCheckpoint: truncated or not GGUF, or metadata that the decoder needs is absent.
            UnsupportedModel: the architecture, a setting or a tensor type is not implemented.
        """
        self.path = path
        header = read_header(path)
        self.metadata: Mapping[str, MetadataValue] = header.metadata
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._contents: Bytes = np.frombuffer(self._mapping, dtype=np.uint8)
        self._entries = _by_hf_name(header)
        divisors = header.tensors.get(_ROPE_DIVISORS)
        self.spec: ModelSpec = from_gguf(
            header.metadata,
            tied_head=HEAD not in self._entries,
            frequency_divisors=() if divisors is None else self._divisors(divisors),
        )

    def let_go(self) -> None:
        """Give the memory of what was read back to the system; it can be read again.

        The pages of the file would otherwise count as memory of this process, beside the copy that
        was made of them.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor, by Hugging Face name."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def tensor(self, name: str) -> GgufTensor:
        """The stored blocks of the tensor with this Hugging Face name.

        Raises:
            UnsupportedModel: its quantisation is not implemented.
        """
        entry = self._entries[name]
        _require_known_kind(entry)
        blocks = self._rows(entry)
        num_heads = self._interleaved_heads(name)
        if num_heads:
            # Stored pairs are (2i, 2i + 1); ours are (i, i + head_dim / 2).
            pairs = blocks.reshape(num_heads, blocks.shape[0] // num_heads // 2, 2, -1)
            blocks = pairs.swapaxes(1, 2).reshape(blocks.shape)
        return GgufTensor(name, entry.kind.name, entry.shape, blocks)

    def kinds(self) -> Mapping[str, str]:
        """The ggml type name (`"Q4_1"`) of every tensor, by Hugging Face name."""
        return {name: entry.kind.name for name, entry in self._entries.items()}

    def read_into(self, name: str, out: Tensor) -> None:
        """Write one tensor, dequantised, into `out`."""
        self.tensor(name).dequantise_into(out)

    def read(self, name: str) -> Tensor:
        """One tensor, dequantised to float32."""
        values = torch.empty(self._entries[name].shape)
        self.read_into(name, values)
        return values

    def _rows(self, entry: TensorEntry) -> Bytes:
        rows = entry.shape[0] if len(entry.shape) > 1 else 1
        stored = self._contents[entry.offset : entry.offset + entry.num_bytes]
        return stored.reshape(rows, -1)

    def _interleaved_heads(self, name: str) -> int:
        """Number of heads whose rows a converter interleaved; 0 for all other tensors."""
        if self.spec.architecture != "llama":
            return 0
        if ".q_proj." in name:
            return self.spec.num_heads
        return self.spec.num_kv_heads if ".k_proj." in name else 0

    def _divisors(self, entry: TensorEntry) -> tuple[float, ...]:
        _require_known_kind(entry)
        values = _dequantised(self._rows(entry), entry.kind.name)
        return tuple(float(value) for value in values.ravel())


def _power_of_two_below(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)


def _dequantised(blocks: Bytes, kind: str) -> Floats:
    rows, row_bytes = blocks.shape
    merged = math.gcd(rows, _power_of_two_below(_GROUPED_BYTES // row_bytes))
    with np.errstate(all="ignore"):  # damaged scales give infinite weights, not warnings
        values: Floats = quants.dequantize(
            blocks.reshape(rows // merged, -1), GGMLQuantizationType[kind]
        ).reshape(rows, -1)
    # Stored float32 comes back as a view of the read-only file, which torch warns about.
    return values if values.flags.writeable else values.copy()


def _require_known_kind(entry: TensorEntry) -> None:
    if entry.kind.name not in SUPPORTED_KINDS:
        raise UnsupportedModel(
            f"tensor {entry.name} is quantised as {entry.kind.name}, which is not implemented; "
            f"supported: {', '.join(sorted(SUPPORTED_KINDS))}"
        )


def _by_hf_name(header: GgufHeader) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    unknown: list[str] = []
    for stored, entry in header.tensors.items():
        match = _LAYER_TENSOR.fullmatch(stored)
        if stored in _GLOBAL_NAMES:
            entries[_GLOBAL_NAMES[stored]] = entry
        elif match and match[2] in _LAYER_NAMES:
            entries[f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"] = entry
        elif stored != _ROPE_DIVISORS:
            unknown.append(stored)
    if unknown and header.metadata.get("general.architecture") in SUPPORTED_ARCHITECTURES:
        raise CorruptCheckpoint(
            f"the file holds tensors that this family does not have: {', '.join(unknown[:20])}; "
            "mixture-of-experts and multimodal files are not implemented"
        )
    return entries
