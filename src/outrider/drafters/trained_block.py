"""The methods `dflash` and `dspark`: a trained block drafter, checked against its target."""

from pathlib import Path

from outrider.drafters.base import DrafterSetting
from outrider.drafters.block.checkpoint import BlockCheckpoint, load_checkpoint, require_target
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.drafter import BlockDrafter
from outrider.errors import ConfigError, IncompatibleDraft
from outrider.models.fingerprint import target_hash
from outrider.models.spec import ModelSpec


def build(setting: DrafterSetting) -> BlockDrafter:
    """Load the drafter named in the speculative config; its config says whether DFlash or DSpark.

    Raises:
        ConfigError: No model is named, or more tokens are asked for than a block holds.
        ModelError: It cannot be read, or was trained for another target.
    """
    options = setting.options
    if options.model is None:
        raise ConfigError(
            f"method {options.method!r} needs a drafter trained for the target; add "
            '"model": the directory with its config.json and model.safetensors'
        )
    checkpoint = ascending(load_checkpoint(Path(options.model)))
    config = checkpoint.config
    require_shape(config, setting.checkpoint.spec)
    if config.target_hash:
        require_target(config, target_hash(setting.checkpoint), str(setting.checkpoint.path))
    return BlockDrafter(
        setting.load_block(checkpoint),
        config,
        num_blocks=setting.num_kv_blocks,
        block_size=setting.block_size,
        max_draft_len=options.num_speculative_tokens,
        name=options.method,
    )


def ascending(checkpoint: BlockCheckpoint) -> BlockCheckpoint:
    """Order the draft vocabulary by the target's ids, as ties and lookups want it."""
    ids = checkpoint.draft_ids
    if ids is None or bool((ids[1:] > ids[:-1]).all()):
        return checkpoint
    order = ids.argsort()
    markov = checkpoint.network.markov_head
    if markov is not None:
        markov.markov_w2.weight.data = markov.markov_w2.weight[order]
    return BlockCheckpoint(checkpoint.network, ids[order])


def require_shape(config: BlockConfig, spec: ModelSpec) -> None:
    """Check that the target has what the drafter reads and shares.

    Raises:
        IncompatibleDraft: Names the first thing that does not fit.
    """
    for what, own, needed in (
        ("a hidden size", spec.hidden_size, config.hidden_size),
        ("a vocabulary size", spec.vocab_size, config.vocab_size),
        ("a number of layers", spec.num_layers, config.num_target_layers),
    ):
        if own != needed:
            raise IncompatibleDraft(
                f"the drafter was trained for a target with {what} of {needed}, but this target "
                f"has {own}; use the target it was trained for, or train a drafter for this one"
            )
