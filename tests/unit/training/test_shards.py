"""Shards appear whole or not at all, and never mix two runs."""

import dataclasses
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outrider.errors import ConfigError, OutputFailed
from outrider.training.shards import DataDirectory, DataManifest, FinishedDocument

MANIFEST = DataManifest(
    target="some/model",
    target_hash="ab" * 32,
    tap_layers=(0, 1),
    hidden_size=2,
    vocab_size=10,
    features=True,
    options={"max_tokens": 8, "seed": 1},
)


def document(length: int, computed: int) -> FinishedDocument:
    features = torch.arange(1.0, 1 + computed * 4).reshape(computed, 4).to(torch.bfloat16)
    mask = [i >= 2 for i in range(length)]
    return FinishedDocument(list(range(length)), mask, {"id": f"d{length}"}, features)


@contextmanager
def small_files(num_bytes: int) -> Iterator[None]:
    """Let no file grow beyond this: to the writer, a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_shard_holds_its_documents(tmp_path: Path) -> None:
    """Catches documents that run into each other, and features beside the wrong token."""
    data = DataDirectory(tmp_path / "data", MANIFEST)
    data.begin()
    first, second = document(5, computed=4), document(4, computed=6)
    data.write(3, "digest", [first, second])
    tensors = load_file(tmp_path / "data" / "shard-00003.safetensors")
    assert tensors["tokens"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert tensors["tokens"].dtype == torch.int32
    assert tensors["loss_mask"].tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert tensors["loss_mask"].dtype == torch.uint8
    assert tensors["doc_starts"].tolist() == [0, 5, 9]
    features = tensors["features"]
    assert features.dtype == torch.bfloat16
    assert first.features is not None
    assert second.features is not None
    assert torch.equal(features[:4], first.features)
    assert features[4].tolist() == [0, 0, 0, 0]
    assert torch.equal(features[5:], second.features[:4])
    assert data.about(3) == [{"id": "d5"}, {"id": "d4"}]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text("utf-8"))
    assert manifest["version"] == 1
    assert manifest["tap_layers"] == [0, 1]
    assert not list(tmp_path.rglob("*.tmp"))


def test_finished_shards_are_recognised(tmp_path: Path) -> None:
    """Catches a shard of other prompts that is taken for a finished one."""
    data = DataDirectory(tmp_path, MANIFEST)
    data.begin()
    assert not data.is_finished(0, "mine")
    data.write(0, "mine", [document(4, computed=4)])
    assert DataDirectory(tmp_path, MANIFEST).is_finished(0, "mine")
    with pytest.raises(ConfigError, match="made from other prompts"):
        data.is_finished(0, "other")
    (tmp_path / "shard-00000.jsonl").unlink()
    assert not data.is_finished(0, "mine"), "the line file is written last"


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    """Catches a truncated file that passes for finished."""
    data = DataDirectory(tmp_path, MANIFEST)
    data.begin()
    data.write(0, "mine", [document(4, computed=4)])
    path = tmp_path / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ConfigError, match=r"cannot be read .*remove it and its"):
        data.is_finished(0, "mine")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target_hash": "cd" * 32}, "begun with target_hash 'abab"),
        ({"tap_layers": (1,)}, r"begun with tap_layers \[0, 1\], this run has \[1\]"),
        ({"options": {"max_tokens": 9, "seed": 1}}, "begun with max_tokens 8, this run has 9"),
    ],
    ids=["target", "taps", "option"],
)
def test_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Catches shards of two runs in one directory."""
    data = DataDirectory(tmp_path, MANIFEST)
    data.begin()
    DataDirectory(tmp_path, dataclasses.replace(MANIFEST, **changes)).begin()  # Nothing is there.
    data.begin()
    data.write(0, "mine", [document(4, computed=4)])
    with pytest.raises(ConfigError, match=said):
        DataDirectory(tmp_path, dataclasses.replace(MANIFEST, **changes))
    DataDirectory(tmp_path, dataclasses.replace(MANIFEST, target="the same, elsewhere"))


def test_strange_places_are_refused(tmp_path: Path) -> None:
    """Catches data written over something else."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        DataDirectory(tmp_path / "file", MANIFEST)
    (tmp_path / "shard-00000.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"no manifest\.json"):
        DataDirectory(tmp_path, MANIFEST)


def test_a_full_disk_is_a_clear_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    """Catches half a shard under its final name, or a leftover that fills the disk further."""
    data = DataDirectory(tmp_path, MANIFEST)
    data.begin()
    data.write(0, "mine", [document(4, computed=4)])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with small_files(600), pytest.raises(OutputFailed, match="nothing more can be written"):
        data.write(1, "mine", [document(500, computed=500)])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    data.write(1, "mine", [document(500, computed=500)])
    assert data.is_finished(1, "mine")


def test_room_on_the_disk_is_known_before_the_directory_is_made(tmp_path: Path) -> None:
    """Catches an estimate that makes directories."""
    data = DataDirectory(tmp_path / "not" / "yet", MANIFEST)
    assert data.free_bytes > 0
    assert not (tmp_path / "not").exists()
