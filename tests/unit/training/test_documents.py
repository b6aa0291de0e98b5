"""Training documents are read from shards and lines, and bad files are named."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from outrider.errors import ConfigError, CorruptCheckpoint
from outrider.training.dataset import list_documents
from outrider.training.documents import read_documents


def write_shard(path: Path, documents: list[list[int]], first_written: int = 1) -> None:
    tokens = np.concatenate([np.array(each, dtype=np.int32) for each in documents])
    mask = np.concatenate([np.arange(len(each)) >= first_written for each in documents])
    starts = np.cumsum([0, *map(len, documents)])
    save_file({"tokens": tokens, "loss_mask": mask.astype(np.uint8), "doc_starts": starts}, path)


def test_shards_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Catches documents numbered per shard: two of them would have one id."""
    write_shard(tmp_path / "shard-00001.safetensors", [[7, 8, 9]])
    write_shard(tmp_path / "shard-00000.safetensors", [[1, 2], [3, 4, 5]])
    documents = list(read_documents(tmp_path))
    assert [each.id for each in documents] == ["0", "1", "2"]
    assert [each.tokens.tolist() for each in documents] == [[1, 2], [3, 4, 5], [7, 8, 9]]
    assert documents[2].split() == ([7], [8, 9])


def test_lines_are_read(tmp_path: Path) -> None:
    """Catches a missing mask that means "nothing", and blank lines that count."""
    path = tmp_path / "text.jsonl"
    lines = [{"tokens": [1, 2]}, {"tokens": []}, {"tokens": [3, 4], "loss_mask": [0, 1], "id": "x"}]
    path.write_text("\n\n".join(map(json.dumps, lines)), "utf-8")
    documents = list(read_documents(path))
    assert [each.loss_mask.tolist() for each in documents] == [[1, 1], [0, 1]]
    assert [each.id for each in documents] == ["0", "x"]
    assert documents[0].split() == ([], [1, 2])


def test_what_is_held_out_is_the_same_for_every_method(tmp_path: Path) -> None:
    """Catches a table that is counted on documents a network is measured on."""
    path = tmp_path / "shard-00000.safetensors"
    write_shard(path, [[1, 2]] * 400)
    fields = {"domain": "code", "temperature": 0.0}
    lines = [json.dumps({"id": f"doc-{i}", **fields}) for i in range(400)]
    path.with_suffix(".jsonl").write_text("\n".join(lines), "utf-8")
    held_out = [each.id for each in read_documents(tmp_path) if each.is_held_out]
    others = list_documents([path])
    assert held_out == [each.id for each in others if each.is_held_out(0.02)]
    assert 2 <= len(held_out) <= 20
    path.with_suffix(".jsonl").write_text(lines[0], "utf-8")
    with pytest.raises(CorruptCheckpoint, match="names 1 documents"):
        list(read_documents(tmp_path))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("no json", "is no document"),
        ('{"text": "x"}', "is no document"),
        ("[1, 2]", "is no document"),
        ('{"tokens": ["a"]}', "is no document"),
        ('{"tokens": [[1, 2]]}', "lists of one length"),
        ('{"tokens": [1, 2], "loss_mask": [1]}', "lists of one length"),
    ],
)
def test_bad_lines_are_named(line: str, says: str, tmp_path: Path) -> None:
    """Catches a traceback, or a wrong line that is skipped."""
    path = tmp_path / "text.jsonl"
    path.write_text('{"tokens": [1]}\n' + line, "utf-8")
    with pytest.raises(CorruptCheckpoint, match=says) as caught:
        list(read_documents(path))
    assert "line 2" in str(caught.value)


def test_bad_shards_are_refused(tmp_path: Path) -> None:
    """Catches masks or starts that do not fit, which would train on the wrong tokens."""
    with pytest.raises(ConfigError, match="no training data"):
        list(read_documents(tmp_path))
    with pytest.raises(ConfigError, match="no training data"):
        list(read_documents(tmp_path / "absent.jsonl"))
    path = tmp_path / "shard-00000.safetensors"
    tokens, mask = np.arange(4, dtype=np.int32), np.ones(4, dtype=np.uint8)
    for starts in ([0, 3], [1, 4], [0, 2, 2, 4], []):
        save_file(
            {
                "tokens": tokens,
                "loss_mask": mask,
                "doc_starts": np.array(starts, dtype=np.int64),
            },
            path,
        )
        with pytest.raises(CorruptCheckpoint, match="do not fit"):
            list(read_documents(tmp_path))
    save_file({"tokens": tokens}, path)
    with pytest.raises(CorruptCheckpoint, match="not a training shard"):
        list(read_documents(tmp_path))
