"""Writing training data: numbered shards that appear whole or not at all, and what they belong to.

    manifest.json             the target, the tapped layers, the options; written first, never again
    shard-00000.safetensors   tokens, loss_mask, doc_starts and, if captured, features
    shard-00000.jsonl         a line per document; a shard is finished when this file is there
    summary.json              counts, when all shards are finished

The rows of `features` are the tapped layers side by side, the target's last layer at the end. The
last token of a document was usually never given to the target; its row is then zero.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.errors import ConfigError, OutputFailed
from outrider.models.fields import read_json
from outrider.tensor.shapes import Hidden

VERSION = 1
MANIFEST, SUMMARY = "manifest.json", "summary.json"
_DIGEST = "run"
_READABLE = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class DataManifest:
    """What all shards of a directory have in common.

    `tap_layers` are 0-based decoder layers, the last one always the target's last. With `features`
    false and taps named, whoever trains computes the features itself.
    """

    target: str
    target_hash: str
    tap_layers: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    features: bool
    options: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Give it as it is written."""
        return {"version": VERSION, **asdict(self), "tap_layers": list(self.tap_layers)}


@dataclass(slots=True, eq=False)
class FinishedDocument:
    """One conversation, tokenized.

    `loss_mask[i]` says whether the target wrote token i; `about` is its line of the JSONL file.
    """

    tokens: list[int]
    loss_mask: list[bool]
    about: dict[str, Any]
    features: Hidden | None = None


class DataDirectory:
    """A directory of shards of one run."""

    def __init__(self, path: Path, manifest: DataManifest) -> None:
        """Go on in the directory, or get ready to begin it; nothing is written yet.

        Raises:
            ConfigError: Another run has written there, or it is no directory.
        """
        self.path = path
        self.manifest = manifest
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file; name a directory for the data")
        if not list(path.glob("shard-*.jsonl")):
            return
        found = path / MANIFEST
        if not found.is_file():
            raise ConfigError(
                f"{path} has shards but no {MANIFEST}, so nobody knows what they are of; "
                "name another directory"
            )
        _require_same(read_json(found), manifest.record(), path)

    @property
    def free_bytes(self) -> int:
        """Room on the disk that the directory is or will be on."""
        there = next(p for p in (self.path, *self.path.absolute().parents) if p.is_dir())
        return shutil.disk_usage(there).free

    def begin(self) -> None:
        """Make the directory and write the manifest.

        Raises:
            OutputFailed: Nothing can be written there.
        """
        _guarded(lambda: self.path.mkdir(parents=True, exist_ok=True), self.path)
        if not (self.path / MANIFEST).is_file() or not list(self.path.glob("shard-*.jsonl")):
            self._write_json(MANIFEST, self.manifest.record())

    def is_finished(self, number: int, digest: str) -> bool:
        """Whether the shard is there.

        Raises:
            ConfigError: It is there, but of other prompts or options.
        """
        if not self._lines(number).is_file():
            return False
        try:
            with safe_open(self._tensors(number), "pt") as file:
                found = (file.metadata() or {}).get(_DIGEST)
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{self._tensors(number)} cannot be read ({error}); remove it and its .jsonl, "
                "and it will be made again"
            ) from error
        if found != digest:
            raise ConfigError(
                f"{self._tensors(number).name} in {self.path} was made from other prompts; name "
                "another --output, or the prompts and options it was begun with"
            )
        return True

    def about(self, number: int) -> list[dict[str, Any]]:
        """Read the lines of a finished shard."""
        text = self._lines(number).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def write(self, number: int, digest: str, documents: Sequence[FinishedDocument]) -> None:
        """Write one shard; nothing of it appears unless all of it was written.

        Raises:
            OutputFailed: The disk is full or the like.
        """
        tensors = _tensors_of(documents)
        # One entry alone: safetensors writes several in any order, and equal runs give equal files.
        metadata = {_DIGEST: digest}
        lines = "".join(json.dumps(d.about, ensure_ascii=False) + "\n" for d in documents)
        self._put(self._tensors(number), lambda path: save_file(tensors, path, metadata))
        self._put(self._lines(number), lambda path: path.write_text(lines, encoding="utf-8"))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        self._write_json(SUMMARY, summary)

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        self._put(self.path / name, lambda path: path.write_text(text, encoding="utf-8"))

    def _tensors(self, number: int) -> Path:
        return self.path / f"shard-{number:05d}.safetensors"

    def _lines(self, number: int) -> Path:
        return self.path / f"shard-{number:05d}.jsonl"

    def _put(self, path: Path, write: Callable[[Path], object]) -> None:
        """Write beside the path and rename, so that the path never names half a file."""
        unfinished = path.with_name(path.name + ".tmp")
        try:
            _guarded(lambda: _write_through(unfinished, write), self.path)
            _guarded(lambda: unfinished.replace(path), self.path)
        finally:
            unfinished.unlink(missing_ok=True)


def _tensors_of(documents: Sequence[FinishedDocument]) -> dict[str, Tensor]:
    lengths = [len(document.tokens) for document in documents]
    tensors = {
        "tokens": torch.tensor([t for d in documents for t in d.tokens], dtype=torch.int32),
        "loss_mask": torch.tensor([m for d in documents for m in d.loss_mask], dtype=torch.uint8),
        "doc_starts": torch.tensor([0, *lengths]).cumsum(0),
    }
    rows = [_padded(d.features, len(d.tokens)) for d in documents if d.features is not None]
    if rows:
        assert len(rows) == len(documents), "some documents have features and some do not"
        tensors["features"] = torch.cat(rows)
    return tensors


def _padded(features: Hidden, length: int) -> Tensor:
    """A row per token: what was computed, cut or, for a token the target never saw, zero."""
    missing = max(0, length - len(features))
    return torch.nn.functional.pad(features[:length], (0, 0, 0, missing))


def _write_through(path: Path, write: Callable[[Path], object]) -> None:
    write(path)
    path.chmod(_READABLE)  # safetensors makes its files private.
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _guarded(act: Callable[[], object], directory: Path) -> None:
    try:
        act()
    except (OSError, SafetensorError) as error:
        raise OutputFailed(
            f"nothing more can be written to {directory} ({error}); finished shards are whole: "
            "free some space, or what else it needs, and run the same command to go on"
        ) from error


def _require_same(found: Mapping[str, Any], ours: Mapping[str, Any], path: Path) -> None:
    flat = [_flattened(record) for record in (found, json.loads(json.dumps(ours)))]
    for name in sorted(flat[0].keys() | flat[1].keys()):
        before, now = flat[0].get(name), flat[1].get(name)
        if before != now:
            raise ConfigError(
                f"{path} was begun with {name} {before!r}, this run has {now!r}; name another "
                "--output, or the options it was begun with"
            )


def _flattened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Options beside the rest; the target's name may change, its hash may not."""
    options = record.get("options")
    inner = options if isinstance(options, dict) else {}
    return {**record, **inner, "options": None, "target": None}
