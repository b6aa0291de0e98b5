"""A block drafter on disk: `config.json` and `model.safetensors`, in the field's tensor names.

The embedding and the output matrix are the target's and are not stored. With a reduced draft
vocabulary, `d2t` holds offsets (draft id i stands for target id `i + d2t[i]`) and `t2d` says which
target ids can be drafted. A small form keeps matrices as quantised GGUF blocks: tensor
`NAME.q8_0` (or another ggml type) of bytes `[rows, bytes_per_row]` stands for `NAME`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.drafters.block.config import BlockConfig, from_json
from outrider.drafters.block.network import BlockNetwork
from outrider.errors import CorruptCheckpoint, IncompatibleDraft, ModelNotFound
from outrider.models.fields import read_json

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
QUANTISED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
"""ggml types a matrix may be stored in; the suffix of its tensor's name."""

_TARGETS_OWN = frozenset({"embed_tokens.weight", "lm_head.weight"})
_VOCABULARY = frozenset({"d2t", "t2d"})
_BLOCK_VALUES = 32


@dataclass(frozen=True, slots=True, eq=False)
class BlockCheckpoint:
    """A block drafter ready to use: network and the target ids of its draft vocabulary.

    `draft_ids` is None where every token of the target can be drafted.
    """

    network: BlockNetwork
    draft_ids: Int[Tensor, " draft_vocab"] | None

    @property
    def config(self) -> BlockConfig:
        """The network's shape."""
        return self.network.config


def save_checkpoint(
    directory: Path,
    checkpoint: BlockCheckpoint,
    *,
    dtype: torch.dtype = torch.bfloat16,
    kinds: Mapping[str, str] | None = None,
) -> None:
    """Write `config.json` and `model.safetensors`, each replaced in one move.

    `kinds` maps names of matrices to the ggml type they are stored in; all others, and all if it
    is None, are stored as `dtype`.

    Raises:
        OSError: the disk is full or the directory cannot be written; older files stay whole.
    """
    stored: dict[str, Tensor] = {}
    for name, values in checkpoint.network.state_dict().items():
        kind = (kinds or {}).get(name)
        if kind is None:
            stored[name] = values.to(dtype).contiguous()
        else:
            stored[f"{name}.{kind}"] = quantised(values, kind)
    if checkpoint.draft_ids is not None:
        stored |= _vocabulary_tensors(checkpoint.draft_ids, checkpoint.config.vocab_size)
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f"{WEIGHTS_FILE}.partial"
    try:
        save_file(stored, partial)
        partial.replace(directory / WEIGHTS_FILE)
    except SafetensorError as error:
        raise OSError(f"{partial} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    write_json(directory / CONFIG_FILE, checkpoint.config.to_json())


def load_checkpoint(directory: Path, dtype: torch.dtype = torch.float32) -> BlockCheckpoint:
    """Read a drafter; its parameters are in `dtype` and do not ask for gradients.

    Raises:
        ModelNotFound: the directory has no config.json or no model.safetensors.
        CorruptCheckpoint: tensors are missing, unexpected, misshapen or not finite.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            raise ModelNotFound(f"{directory} has no {name}, so it is not a block drafter")
    config = from_json(read_json(directory / CONFIG_FILE))
    return assemble(config, read_tensors(directory / WEIGHTS_FILE), dtype)


def assemble(
    config: BlockConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
) -> BlockCheckpoint:
    """Make a drafter of its configuration and tensors, the draft vocabulary's among them.

    Raises:
        CorruptCheckpoint: tensors are missing, unexpected, misshapen or not finite.
    """
    draft_ids = _draft_ids(config, tensors.get("d2t"))
    tensors = {name: values for name, values in tensors.items() if name not in _VOCABULARY}
    with torch.device("meta"):
        network = BlockNetwork(config)
    wanted = network.state_dict()
    _check_names(wanted, tensors)
    state: dict[str, Tensor] = {}
    for name, like in wanted.items():
        values = tensors[name].to(dtype)
        if values.shape != like.shape or not torch.isfinite(values).all():
            raise CorruptCheckpoint(
                f"tensor {name} has shape {tuple(values.shape)} where the configuration gives "
                f"{tuple(like.shape)}, or holds values that are no finite numbers"
            )
        state[name] = values
    network.load_state_dict(state, assign=True)
    return BlockCheckpoint(network.eval().requires_grad_(requires_grad=False), draft_ids)


def read_tensors(path: Path, *, own_only: bool = True) -> dict[str, Tensor]:
    """All tensors of the file, quantised ones made float32.

    With `own_only`, those that repeat the target's are left out.

    Raises:
        CorruptCheckpoint: the file cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                stem, _, kind = name.rpartition(".")
                if kind in QUANTISED:
                    tensors[stem] = dequantised(file.get_tensor(name), kind)
                elif not own_only or name not in _TARGETS_OWN:
                    tensors[name] = file.get_tensor(name)
    except (SafetensorError, ValueError, OSError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error
    return tensors


def require_target(config: BlockConfig, found_hash: str, what: str) -> None:
    """Refuse a drafter that was trained for another target.

    Raises:
        IncompatibleDraft: both hashes are known and differ.
    """
    if config.target_hash and found_hash and config.target_hash != found_hash:
        raise IncompatibleDraft(
            f"the drafter was trained for the target with hash {config.target_hash[:12]}, but "
            f"{what} has hash {found_hash[:12]}; train a drafter for this target, or use the "
            "target it was trained for"
        )


def quantised(values: Tensor, kind: str) -> Tensor:
    """Rows of a matrix as blocks of the ggml type `kind`; `[rows, bytes_per_row]`, uint8."""
    if values.ndim != 2 or values.shape[1] % _BLOCK_VALUES:  # noqa: PLR2004 - a matrix
        raise CorruptCheckpoint(
            f"a tensor of shape {tuple(values.shape)} has no rows of whole blocks of "
            f"{_BLOCK_VALUES}, so it cannot be stored as {kind}"
        )
    numbers = values.detach().float().contiguous().numpy()
    return torch.from_numpy(quants.quantize(numbers, GGMLQuantizationType[kind.upper()]).copy())


def dequantised(blocks: Tensor, kind: str) -> Tensor:
    """Undo `quantised`, to float32."""
    return torch.from_numpy(
        np.array(quants.dequantize(blocks.numpy(), GGMLQuantizationType[kind.upper()]))
    )


def bytes_per_row(size: int, kind: str) -> int:
    """Bytes of a row of `size` values stored as `kind`."""
    values, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
    return int(size // values * num_bytes)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON file in one move, so that readers see the old or the new one whole."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _vocabulary_tensors(draft_ids: Int[Tensor, " draft"], vocab_size: int) -> dict[str, Tensor]:
    can_be_drafted = torch.zeros(vocab_size, dtype=torch.bool)
    can_be_drafted[draft_ids] = True
    return {"d2t": draft_ids - torch.arange(len(draft_ids)), "t2d": can_be_drafted}


def _draft_ids(config: BlockConfig, offsets: Tensor | None) -> Int[Tensor, " draft"] | None:
    if offsets is None:
        if config.draft_vocab_size is not None:
            raise CorruptCheckpoint(
                f"draft_vocab_size is {config.draft_vocab_size} of {config.vocab_size}, but the "
                "tensor d2t, which says which tokens those are, is missing"
            )
        return None
    ids = offsets.to(torch.int64) + torch.arange(len(offsets))
    inside = bool(((ids >= 0) & (ids < config.vocab_size)).all())
    if len(ids) != config.head_size or not inside or len(ids.unique()) != len(ids):
        raise CorruptCheckpoint(
            f"d2t must name {config.head_size} different tokens below {config.vocab_size}"
        )
    return ids


def _check_names(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise CorruptCheckpoint(
            f"missing tensors: {', '.join(missing[:20]) or 'none'}; "
            f"unexpected: {', '.join(extra[:20]) or 'none'}"
        )
