"""z-lab's schema: DFlash drafters that fill in masks, their block settings in `dflash_config`."""

from pathlib import Path

from outrider.drafters.block.checkpoint import BlockCheckpoint, load_checkpoint
from outrider.errors import IncompatibleDraft
from outrider.interop.schema import (
    ForeignCheckpoint,
    TargetMatrices,
    own_tensors,
    require_exportable,
    require_whole_vocabulary,
    rope_fields,
)

NAME = "z-lab's DFlash"
_NESTED = ("mask_token_id", "target_layer_ids")
_NOT_THEIRS = (
    "confidence_head_with_markov",
    "draft_vocab_size",
    "enable_confidence_head",
    "fc_norm",
    "markov_head_type",
    "markov_rank",
    "sample_from_anchor",
    "target_hash",
)


def export(checkpoint: BlockCheckpoint, target: TargetMatrices) -> ForeignCheckpoint:  # noqa: ARG001
    """Write a `DFlashDraftModel`; embedding and output matrix stay with the target.

    Raises:
        IncompatibleDraft: The layout is not anchor-drop, there is a Markov or confidence head, the
            vocabulary is reduced, or the drafter computes what z-lab's does not.
    """
    require_exportable(checkpoint, NAME)
    require_whole_vocabulary(checkpoint, NAME)
    config = checkpoint.config
    if config.layout != "anchor-drop" or config.markov_rank or config.has_confidence_head:
        raise IncompatibleDraft(
            f"{NAME} has neither a Markov nor a confidence head and drops the anchor's slot; this "
            f"drafter is {config.layout} with Markov rank {config.markov_rank}"
            f"{' and a confidence head' if config.has_confidence_head else ''}: export to vllm"
        )
    fields = config.to_json()
    outer = {name: fields[name] for name in fields if name not in (*_NESTED, *_NOT_THEIRS)}
    return ForeignCheckpoint(
        {
            **outer,
            **rope_fields(config.rope_theta),
            "architectures": ["DFlashDraftModel"],
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "dflash_config": {name: fields[name] for name in _NESTED},
            "dtype": "bfloat16",
        },
        own_tensors(checkpoint),
    )


def read(directory: Path) -> BlockCheckpoint:
    """Read a checkpoint of theirs.

    Raises:
        ModelError: It cannot be read.
    """
    return load_checkpoint(directory)
