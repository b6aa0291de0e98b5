"""What a training run keeps: the drafter, the state to go on from, and where both came from.

RUN/last/   drafter and `training_state.pt` of the newest checkpoint
RUN/best/   the drafter with the best held-out acceptance so far, and its model card
RUN/metrics.jsonl
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.drafters.block.checkpoint import BlockCheckpoint, save_checkpoint, write_json
from outrider.errors import CorruptCheckpoint, ModelNotFound

LAST = "last"
BEST = "best"
METRICS_FILE = "metrics.jsonl"

_STATE_FILE = "training_state.pt"
_PROVENANCE_FILE = "provenance.json"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a drafter came from."""

    target: str
    target_hash: str
    data: str
    data_hash: str
    method: str
    options: Mapping[str, Any]
    commit: str | None

    def record(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "target": self.target,
            "target_hash": self.target_hash,
            "data": self.data,
            "data_hash": self.data_hash,
            "method": self.method,
            "options": dict(self.options),
            "commit": self.commit,
        }


def source_commit() -> str | None:
    """The git commit of the running source, or None outside a repository."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def save_drafter(
    directory: Path, checkpoint: BlockCheckpoint, provenance: Provenance, results: Mapping[str, Any]
) -> None:
    """Write a drafter with its provenance and results; parameters keep full precision.

    Raises:
        OSError: the disk is full; what was there before stays whole.
    """
    save_checkpoint(directory, checkpoint, dtype=torch.float32)
    write_json(directory / _PROVENANCE_FILE, {**provenance.record(), "results": dict(results)})


def save_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write what is needed to go on, in one move.

    Raises:
        OSError: the disk is full; the older state stays whole.
    """
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f"{_STATE_FILE}.partial"
    try:
        torch.save(dict(state), partial)
        partial.replace(directory / _STATE_FILE)
    except RuntimeError as error:
        # torch reports a failed write as a RuntimeError of its archive writer.
        raise OSError(f"{partial} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def load_state(directory: Path) -> dict[str, Any]:
    """Read what `save_state` wrote.

    Raises:
        ModelNotFound: there is none.
        CorruptCheckpoint: it cannot be read.
    """
    path = directory / _STATE_FILE
    if not path.is_file():
        raise ModelNotFound(f"{directory} has no {_STATE_FILE}, so there is nothing to resume")
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, OSError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error
    return state
