"""A block drafter as another project's files hold it, and what those take from the target."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from outrider.drafters.block.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    BlockCheckpoint,
    write_json,
)
from outrider.errors import IncompatibleDraft, OutputFailed
from outrider.models.checkpoint import Checkpoint
from outrider.models.spec import ModelSpec
from outrider.models.weights import EMBEDDING, HEAD, SafetensorsSource

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@dataclass(frozen=True, slots=True, eq=False)
class TargetMatrices:
    """What foreign checkpoints repeat of the target: its name, embedding and output matrix.

    Both matrices are `[vocab, hidden]` in bfloat16, one and the same where the target ties them.
    """

    name: str
    spec: ModelSpec
    embedding: Tensor
    head: Tensor

    @classmethod
    def read(cls, checkpoint: Checkpoint, name: str) -> Self:
        """Read them; `name` is what the other project will find the target under.

        Raises:
            ModelError: A matrix is missing or cannot be read.
        """
        source = checkpoint.gguf or SafetensorsSource(checkpoint.path)
        shape = (checkpoint.spec.vocab_size, checkpoint.spec.hidden_size)
        embedding = torch.empty(shape, dtype=torch.bfloat16)
        source.read_into(EMBEDDING, embedding)
        if checkpoint.spec.tied_head:
            return cls(name, checkpoint.spec, embedding, embedding)
        head = torch.empty(shape, dtype=torch.bfloat16)
        source.read_into(HEAD, head)
        return cls(name, checkpoint.spec, embedding, head)

    @property
    def architecture(self) -> str:
        """Name of the target's class in transformers."""
        return _ARCHITECTURES[self.spec.architecture]


@dataclass(frozen=True, slots=True, eq=False)
class ForeignCheckpoint:
    """Content of `config.json` and `model.safetensors`."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def write(self, directory: Path) -> None:
        """Write both files, the configuration last, so that a checkpoint never looks whole if not.

        Raises:
            OutputFailed: The disk is full or the directory cannot be written.
        """
        partial = directory / f"{WEIGHTS_FILE}.partial"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            save_file(
                {name: t.contiguous().clone() for name, t in self.tensors.items()},
                partial,
                {"format": "pt"},
            )
            partial.replace(directory / WEIGHTS_FILE)
            write_json(directory / CONFIG_FILE, self.config)
        except (OSError, SafetensorError) as error:
            raise OutputFailed(
                f"{directory} cannot be written ({error}); free some space"
            ) from error
        finally:
            if partial.exists():
                partial.unlink()


def own_tensors(checkpoint: BlockCheckpoint) -> dict[str, Tensor]:
    """The drafter's parameters in bfloat16, under the names that all schemas share."""
    return {
        name: values.to(torch.bfloat16) for name, values in checkpoint.network.state_dict().items()
    }


def rope_fields(theta: float) -> dict[str, Any]:
    """Spell the rotary base as transformers 4 and as transformers 5 read it."""
    return {
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


def require_exportable(checkpoint: BlockCheckpoint, project: str) -> None:
    """Refuse what no other project's network computes.

    Raises:
        IncompatibleDraft: The drafter normalises each tapped layer before it fuses them.
    """
    if checkpoint.config.fc_norm:
        raise IncompatibleDraft(
            f"the drafter normalises every tapped layer before fusing them (fc_norm), which "
            f"{project} does not; there it would draft nonsense: train with --no-feature-norm"
        )


def require_whole_vocabulary(checkpoint: BlockCheckpoint, project: str) -> None:
    """Refuse a reduced draft vocabulary where the schema has no place for it.

    Raises:
        IncompatibleDraft: The drafter cannot draft every token.
    """
    config = checkpoint.config
    if config.draft_vocab_size is not None:
        raise IncompatibleDraft(
            f"the drafter drafts {config.draft_vocab_size} of {config.vocab_size} tokens, which "
            f"{project} cannot be told; export to vllm, or train with the whole vocabulary"
        )
