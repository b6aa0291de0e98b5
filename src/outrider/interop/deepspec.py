"""DeepSpec's schema: a flat Qwen3 configuration, the target's matrices repeated in the file."""

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

NAME = "DeepSpec"
_NOT_THEIRS = ("draft_vocab_size", "fc_norm", "sample_from_anchor", "target_hash")


def export(checkpoint: BlockCheckpoint, target: TargetMatrices) -> ForeignCheckpoint:
    """Write a `Qwen3DSparkModel`; one without a Markov head is DeepSpec's DFlash.

    Raises:
        IncompatibleDraft: The layout is not anchor-first, the vocabulary is reduced, or the drafter
            computes what DeepSpec does not.
    """
    require_exportable(checkpoint, NAME)
    require_whole_vocabulary(checkpoint, NAME)
    config = checkpoint.config
    if config.layout != "anchor-first":
        raise IncompatibleDraft(
            f"the drafter's layout is {config.layout}, but {NAME} predicts from the anchor too; "
            "export to zlab or vllm"
        )
    fields = {name: value for name, value in config.to_json().items() if name not in _NOT_THEIRS}
    if not config.markov_rank:
        fields.pop("markov_head_type")
    if not config.has_confidence_head:
        fields.pop("confidence_head_with_markov")
    matrices = {"embed_tokens.weight": target.embedding, "lm_head.weight": target.head}
    return ForeignCheckpoint(
        {**fields, **rope_fields(config.rope_theta), "dtype": "bfloat16"},
        {**own_tensors(checkpoint), **matrices},
    )


def read(directory: Path) -> BlockCheckpoint:
    """Read a checkpoint of theirs; the schema is the one our own files use.

    Raises:
        ModelError: It cannot be read.
    """
    return load_checkpoint(directory)
