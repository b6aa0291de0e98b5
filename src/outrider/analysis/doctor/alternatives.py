"""The same drafter read in another way: neighbouring taps, the other layout, exchanged matrices.

Each alternative undoes one mistake that is made when checkpoints are written or converted; if one
drafts clearly better than the drafter as it is, that mistake was made.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from outrider.drafters.block.checkpoint import BlockCheckpoint, assemble
from outrider.drafters.block.config import BlockConfig, Layout
from outrider.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """`finding` is what is wrong if this one is clearly better; `change` says what was changed."""

    name: str
    finding: str
    change: str
    checkpoint: BlockCheckpoint


def mild(drafter: BlockCheckpoint, target: ModelSpec) -> Iterator[Alternative]:
    """Mistakes that may cost so little that acceptance alone does not tell: taps one layer off."""
    config = drafter.config
    for shift in (-1, 1):
        taps = tuple(tap + shift for tap in config.target_layer_ids)
        if all(-1 <= tap < target.num_layers for tap in taps):
            changed = replace(config, target_layer_ids=taps)
            name = f"taps {shift:+d}"
            yield _changed(drafter, changed, name, "taps-shifted", f"target_layer_ids {list(taps)}")


def drastic(drafter: BlockCheckpoint, target: ModelSpec) -> Iterator[Alternative]:
    """Mistakes that leave little of the acceptance."""
    config = drafter.config
    other: Layout = "anchor-drop" if config.layout == "anchor-first" else "anchor-first"
    # Only slots are read differently, so a block of one slot has no other reading.
    if config.block_size > 1:
        changed = replace(config, layout=other)
        yield _changed(drafter, changed, "other layout", "layout-wrong", f"layout {other}")
    if config.markov_rank:
        yield from _markov(drafter)
    if drafter.draft_ids is not None:
        yield from _moved_vocabulary(drafter)
    if config.rope_theta != target.rope.theta:
        changed = replace(config, rope_theta=target.rope.theta)
        change = f"rope_theta {target.rope.theta:g}"
        yield _changed(drafter, changed, "target's rope_theta", "rope-theta-wrong", change)


def _changed(
    drafter: BlockCheckpoint, config: BlockConfig, name: str, finding: str, change: str
) -> Alternative:
    tensors = dict(drafter.network.state_dict())
    if drafter.draft_ids is not None:
        tensors["d2t"] = drafter.draft_ids - torch.arange(len(drafter.draft_ids))
    return Alternative(name, finding, change, assemble(config, tensors, torch.float32))


def _markov(drafter: BlockCheckpoint) -> Iterator[Alternative]:
    first, second = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
    tensors = dict(drafter.network.state_dict())
    ids = drafter.draft_ids
    if ids is not None:
        tensors["d2t"] = ids - torch.arange(len(ids))
    if tensors[first].shape == tensors[second].shape:
        swapped = tensors | {first: tensors[second], second: tensors[first]}
        yield Alternative(
            "Markov matrices exchanged",
            "markov-swapped",
            "markov_w1 and markov_w2 exchanged",
            assemble(drafter.config, swapped),
        )
    silent = tensors | {second: torch.zeros_like(tensors[second])}
    yield Alternative(
        "no Markov head",
        "markov-harmful",
        "the Markov head left out",
        assemble(drafter.config, silent),
    )


def _moved_vocabulary(drafter: BlockCheckpoint) -> Iterator[Alternative]:
    ids = drafter.draft_ids
    assert ids is not None
    for shift in (-1, 1):
        moved = (ids + shift) % drafter.config.vocab_size
        yield Alternative(
            f"draft vocabulary {shift:+d}",
            "draft-vocab-shifted",
            f"every entry of d2t {shift:+d}",
            BlockCheckpoint(drafter.network, moved),
        )
