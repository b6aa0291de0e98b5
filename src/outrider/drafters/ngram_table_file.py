"""The n-gram table: which token follows which last few tokens, read from a memory-mapped file.

Format, version 1: a safetensors file. Its metadata hold what the table is for; its two tensors are
a hash table in compressed rows, so that a look-up reads one row of two entries on average:

    entries   uint64 [n]     check (upper 32 bits) | token (24) | chance (8)
    offsets   uint32 [b+1]   row r is entries[offsets[r] : offsets[r + 1]]

A context is known by the 64-bit hash of its tokens, last token first: the lower half chooses the
row, the upper half is the check. A false hit, once in 2^31 look-ups or so, costs a rejected draft.
The chance of 1 to 254 stands for (chance)/255, the chance that the target takes that token.
"""

import json
import mmap
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from outrider.core.paths import expanded
from outrider.errors import (
    CorruptCheckpoint,
    IncompatibleDraft,
    ModelNotFound,
    UnsupportedModel,
)
from outrider.models.checkpoint import Checkpoint

FORMAT: Final = "outrider-ngram-table"
VERSION: Final = 1
TABLE_FILE: Final = "ngram-table.safetensors"
"""Name of a table in a directory of drafters."""
CHANCE_STEPS: Final = 255
MOST_TOKENS: Final = 1 << 24
ENTRIES_PER_ROW: Final = 2
START: Final = 0x9E3779B97F4A7C15
_MULTIPLIER: Final = 0xBF58476D1CE4E5B9
_MASK: Final = (1 << 64) - 1
_SHIFT: Final = 29
_LOW: Final = (1 << 32) - 1
_HALF: Final = 32
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHeader:
    """What a table is and what it was counted on."""

    max_order: int
    """Longest context, in tokens."""
    vocab_size: int
    """Every token of the table is below this."""
    tokenizer: str
    """Fingerprint of the tokenizer whose ids the table holds."""
    target: str
    """Whose text was counted: a name for people."""
    num_tokens: int
    """Tokens that were counted as next ones."""
    num_documents: int
    """Documents they came from."""


class Guess(NamedTuple):
    """The likeliest next token, the chance that it is right, and the length of its context."""

    token: int
    chance: float
    order: int


def extend_hash(key: int, token: int) -> int:
    """Hash of a context that reaches one token further back; `START` is the empty context.

    The finishing step of splitmix64 (Steele et al. 2014) over key + token.
    """
    key = ((key ^ (token + 1)) * _MULTIPLIER) & _MASK
    return key ^ (key >> _SHIFT)


def extend_hashes(keys: NDArray[np.uint64], tokens: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`extend_hash` for many contexts at once."""
    mixed = (keys ^ (tokens + np.uint64(1))) * np.uint64(_MULTIPLIER)
    return mixed ^ (mixed >> np.uint64(_SHIFT))


class NgramTable:
    """A table, ready to be asked. Costs a few microseconds per token and no memory of its own."""

    def __init__(self, header: TableHeader, offsets: memoryview, entries: memoryview) -> None:
        """Ask `entries` (uint64) by `offsets` (uint32); see the module for both."""
        self.header = header
        self._offsets, self._entries = offsets, entries
        self._num_rows = len(offsets) - 1

    def __len__(self) -> int:
        """Contexts held."""
        return len(self._entries)

    @property
    def memory(self) -> tuple[memoryview, memoryview]:
        """The bytes of offsets and entries, to be read in place; little-endian."""
        return self._offsets.cast("B"), self._entries.cast("B")

    @classmethod
    def build(
        cls,
        header: TableHeader,
        keys: NDArray[np.uint64],
        tokens: NDArray[np.int64],
        chances: NDArray[np.float64],
    ) -> Self:
        """Make a table of one entry per context: its hash, its next token and the chance of it."""
        offsets, entries = _compress(keys, tokens, chances)
        return cls(
            header,
            memoryview(offsets.tobytes()).cast("I"),
            memoryview(entries.tobytes()).cast("Q"),
        )

    def guess(self, recent: Sequence[int]) -> Guess | None:
        """Look up the longest suffix of `recent` that the table holds; None if it holds none.

        `recent` needs no more than the last `max_order` tokens.
        """
        behind = reversed(recent[-self.header.max_order :])
        keys = list(accumulate(behind, extend_hash, initial=START))
        offsets, entries, num_rows = self._offsets, self._entries, self._num_rows
        for order in range(len(keys) - 1, 0, -1):
            key = keys[order]
            check = key >> _HALF
            row = (key & _LOW) * num_rows >> _HALF
            for index in range(offsets[row], offsets[row + 1]):
                entry = entries[index]
                if entry >> _HALF == check:
                    return Guess((entry & _LOW) >> 8, (entry & 0xFF) / CHANCE_STEPS, order)
        return None

    def draft(
        self, recent: Sequence[int], max_tokens: int, min_survival: float = 0.0
    ) -> list[Guess]:
        """Follow the guesses from `recent` on, until their survival falls below `min_survival`."""
        order = self.header.max_order
        context = list(recent[-order:])
        guesses: list[Guess] = []
        survival = 1.0
        while len(guesses) < max_tokens:
            guess = self.guess(context)
            if guess is None:
                break
            survival *= guess.chance
            if survival < min_survival:
                break
            guesses.append(guess)
            context = [*context[1 - order :], guess.token] if order > 1 else [guess.token]
        return guesses

    def save(self, path: Path) -> None:
        """Write the file; it appears under its name only when it is whole."""
        tensors: dict[str, NDArray[Any]] = {
            "offsets": np.asarray(self._offsets, dtype=np.uint32),
            "entries": np.asarray(self._entries, dtype=np.uint64),
        }
        metadata = {name: str(value) for name, value in asdict(self.header).items()}
        checksum = _checksum(self._offsets, self._entries)
        metadata |= {"format": FORMAT, "version": str(VERSION), "crc32": str(checksum)}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(path.name + ".partial")
        try:
            whole.write_bytes(save(tensors, metadata=metadata))
            whole.replace(path)
        finally:
            whole.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file at `path`.

        Raises:
            ModelNotFound: There is no such file.
            UnsupportedModel: A file of another kind, or of a version this release does not read.
            CorruptCheckpoint: The file is damaged.
        """
        if not path.is_file():
            raise ModelNotFound(
                f"there is no n-gram table {path}; outrider train --method ngram-table makes one"
            )
        try:
            with path.open("rb") as file:
                view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            length = int.from_bytes(view[:_LENGTH_BYTES], "little")
            start = _LENGTH_BYTES + length
            described = json.loads(bytes(view[_LENGTH_BYTES:start]))
            metadata = described.get("__metadata__") or {}
        except (ValueError, AttributeError) as error:
            raise CorruptCheckpoint(
                f"{path} is not a safetensors file ({error}); build the table again"
            ) from error
        header = _header(path, metadata)
        try:
            offsets = _part(view[start:], described["offsets"], "U32").cast("I")
            entries = _part(view[start:], described["entries"], "U64").cast("Q")
            table = cls(header, offsets, entries)
            table._require_sound(int(metadata["crc32"]))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptCheckpoint(f"{path} is damaged ({error}); build it again") from error
        return table

    def _require_sound(self, checksum: int) -> None:
        if self._num_rows < 1 or self._offsets[-1] != len(self._entries):
            raise ValueError(
                f"{len(self._offsets)} offsets do not fit {len(self._entries)} entries"
            )
        if _checksum(self._offsets, self._entries) != checksum:
            raise ValueError("its checksum is wrong")


def open_table(path: str, checkpoint: Checkpoint) -> NgramTable:
    """Map the table at `path` for this target.

    Raises:
        ModelError: It is absent, damaged or of another kind.
        IncompatibleDraft: It was counted with another tokenizer.
    """
    table = NgramTable.open(expanded(path))
    header = table.header
    if header.tokenizer != checkpoint.tokenizer.fingerprint:
        raise IncompatibleDraft(
            f"the n-gram table {path} holds token ids of {header.target}, whose tokenizer is not "
            f"that of the target {checkpoint.path}; build one from this target's own text"
        )
    return table


def _part(data: memoryview, described: dict[str, Any], dtype: str) -> memoryview:
    if described["dtype"] != dtype:
        raise ValueError(f"a tensor is {described['dtype']}, not {dtype}")
    first, last = described["data_offsets"]
    return data[first:last]


def _header(path: Path, metadata: dict[str, str]) -> TableHeader:
    if metadata.get("format") != FORMAT:
        raise UnsupportedModel(
            f"{path} is no n-gram table; outrider train --method ngram-table makes one"
        )
    if metadata.get("version") != str(VERSION):
        raise UnsupportedModel(
            f"{path} is an n-gram table of version {metadata.get('version')}, this release reads "
            f"version {VERSION}; build it again"
        )
    try:
        values = {
            f.name: int(metadata[f.name]) if f.type is int else metadata[f.name]
            for f in fields(TableHeader)
        }
    except (KeyError, ValueError) as error:
        raise CorruptCheckpoint(f"the header of {path} is damaged ({error})") from error
    return TableHeader(**values)  # type: ignore[arg-type]


def _compress(
    keys: NDArray[np.uint64], tokens: NDArray[np.int64], chances: NDArray[np.float64]
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    num_rows = max(1, len(keys) // ENTRIES_PER_ROW)
    half, low = np.uint64(_HALF), np.uint64(_LOW)
    rows = ((keys & low) * np.uint64(num_rows)) >> half
    order = np.lexsort((keys, rows))
    steps = np.clip(np.rint(chances * CHANCE_STEPS), 1, CHANCE_STEPS - 1).astype(np.uint64)
    entries = ((keys >> half) << half) | (tokens.astype(np.uint64) << np.uint64(8)) | steps
    sizes = np.bincount(rows.astype(np.int64), minlength=num_rows)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32)
    return offsets, entries[order]


def _checksum(offsets: memoryview, entries: memoryview) -> int:
    return zlib.crc32(entries, zlib.crc32(offsets))
