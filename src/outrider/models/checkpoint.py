"""One way to open a checkpoint, whatever its format."""

from functools import cached_property
from pathlib import Path

import torch

from outrider.errors import ModelNotFound
from outrider.models import hub, weights
from outrider.models.decoder import Decoder
from outrider.models.fields import read_json
from outrider.models.gguf import GgufFile
from outrider.models.hf_config import from_hf_config
from outrider.models.spec import ModelSpec
from outrider.models.tokenizer import Tokenizer


class Checkpoint:
    """A checkpoint on disk: its spec is read, everything heavy waits until it is asked for.

    `gguf` is the open GGUF file, or None for a Hugging Face directory.
    """

    def __init__(self, path: Path) -> None:
        """Open the GGUF file or the Hugging Face directory at `path`.

        Raises:
            ModelNotFound: a directory without config.json.
            UnsupportedModel: an architecture or a setting that is not implemented.
            CorruptCheckpoint: metadata that cannot be read.
        """
        self.path = path
        self.gguf = None if path.is_dir() else GgufFile(path)
        self.spec: ModelSpec = self.gguf.spec if self.gguf else _spec_of_directory(path)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer, built on first use."""
        if self.gguf:
            return Tokenizer.from_gguf(self.path, self.gguf.metadata)
        return Tokenizer.from_directory(self.path)

    def load_decoder(self, dtype: torch.dtype) -> Decoder:
        """The network with its weights in `dtype`, on the CPU, ready for inference.

        Raises:
            CorruptCheckpoint: tensors are missing, unexpected, misshapen or truncated.
            UnsupportedModel: a tensor is stored in a way that is not implemented.
        """
        source = self.gguf or weights.SafetensorsSource(self.path)
        return weights.load_decoder(self.spec, source, dtype)


def open_checkpoint(name_or_path: str | Path) -> Checkpoint:
    """Open a built-in model, a `.gguf` file, a directory, or a hub id.

    Raises:
        ModelError: it cannot be found, read or used; see `Checkpoint`.
    """
    return Checkpoint(hub.resolve(name_or_path))


def _spec_of_directory(directory: Path) -> ModelSpec:
    path = directory / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{directory} has no config.json, so it is not a model directory")
    return from_hf_config(read_json(path), read_json(directory / "generation_config.json"))
