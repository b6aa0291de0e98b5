"""The header of a GGUF file: metadata and where each tensor lies.

Read here rather than with the `gguf` package's reader, which wraps each of the several hundred
thousand vocabulary strings in an array of its own and needs seconds for what takes a fraction of
one. Every length is checked against the file, so a damaged header gives an error, not a huge
allocation. The format is described in the ggml documentation; versions 2 and 3, little endian.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider.errors import CorruptCheckpoint, UnsupportedModel

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

Scalar = int | float | bool
MetadataValue = Scalar | str | list[Any]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies. `shape` is in row-major order, the last axis contiguous."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor entries; offsets count from the start of the file."""

    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorEntry]


def read_header(path: Path) -> GgufHeader:
    """Read the header of the GGUF file at `path`.

    Raises:
        CorruptCheckpoint: not a GGUF file, or truncated, or with impossible lengths.
        UnsupportedModel: another GGUF version or a tensor type nobody here knows.
    """
    if path.stat().st_size < len(_MAGIC):
        raise CorruptCheckpoint(f"{path} is too short to be a GGUF file; download it again")
    cursor = _Cursor(path, np.memmap(path, dtype=np.uint8, mode="r"))
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise CorruptCheckpoint(f"{path} does not start with {_MAGIC!r}, so it is not a GGUF file")
    version = cursor.integer("<I")
    if version not in _VERSIONS:
        raise UnsupportedModel(
            f"{path} is GGUF version {version} or big endian; supported: little endian, "
            f"versions {', '.join(map(str, _VERSIONS))}"
        )
    num_tensors, num_keys = cursor.integer("<Q"), cursor.integer("<Q")
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.integer("<I"))
    entries = [_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise CorruptCheckpoint(f"{path}: general.alignment is {alignment!r}, not a positive size")
    start = -(-cursor.position // alignment) * alignment
    return GgufHeader(metadata, {e.name: _placed(cursor, e, start) for e in entries})


def _entry(cursor: "_Cursor") -> TensorEntry:
    name = cursor.string()
    num_dimensions = cursor.integer("<I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.fault(f"tensor {name!r} has {num_dimensions} dimensions")
    shape = tuple(cursor.integer("<Q") for _ in range(num_dimensions))[::-1]
    if 0 in shape:
        raise cursor.fault(f"tensor {name!r} is empty, its shape is {shape}")
    number = cursor.integer("<I")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise UnsupportedModel(
            f"tensor {name} has type number {number}, which the installed gguf package does not "
            "know; upgrade it or use another quantisation"
        ) from error
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_len:
        raise cursor.fault(f"rows of tensor {name!r} are {shape[-1]} long, not whole blocks")
    num_bytes = math.prod(shape) // block_len * block_bytes
    return TensorEntry(name, shape, kind, cursor.integer("<Q"), num_bytes)


def _placed(cursor: "_Cursor", entry: TensorEntry, start: int) -> TensorEntry:
    offset = start + entry.offset
    if offset + entry.num_bytes > cursor.size:
        raise cursor.fault(
            f"tensor {entry.name!r} ends at byte {offset + entry.num_bytes} of {cursor.size}"
        )
    return TensorEntry(entry.name, entry.shape, entry.kind, offset, entry.num_bytes)


class _Cursor:
    """Reads forward through the file; every step is checked against its size."""

    def __init__(self, path: Path, contents: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._path = path
        self._view = contents.data
        self.position = 0
        self.size = len(contents)

    def fault(self, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(
            f"{self._path} is damaged or incomplete: {what}; download it again"
        )

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise self.fault(f"the header wants byte {end} of {self.size}")
        taken = self._view[self.position : end].tobytes()
        self.position = end
        return taken

    def integer(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)

    def string(self) -> str:
        return self._decode(self.take(self.integer("<Q")))

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"a string before byte {self.position} is not UTF-8") from error

    def value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, count = self.integer("<I"), self.integer("<Q")
            return self._strings(count) if item_kind == _STRING else self._scalars(item_kind, count)
        (scalar,) = self._scalars(kind, 1)
        return scalar

    def _scalars(self, kind: int, count: int) -> list[Scalar]:
        if kind not in _SCALARS:
            raise self.fault(f"unknown metadata type {kind}")
        dtype = _SCALARS[kind]
        scalars: list[Scalar] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return scalars

    def _strings(self, count: int) -> list[str]:
        """Like `string` many times, without a call per item: vocabularies have 150000 of them."""
        view, position, size = self._view, self.position, self.size
        unpack: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(count):
            if position + 8 > size:
                raise self.fault("an array of strings runs over the end")
            start = position + 8
            position = start + unpack(view, position)[0]
            if position > size:
                raise self.fault("an array of strings runs over the end")
            self.position = position
            strings.append(self._decode(bytes(view[start:position])))
        self.position = position
        return strings
