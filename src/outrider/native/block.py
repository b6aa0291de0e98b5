"""A thin, typed face of the C++ block drafter: features in, draft tokens and confidences out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from outrider.native import _native
from outrider.native.runner import Machine, RunnerSetting, Weights

BlockParts = _native.BlockParts
DraftRule = _native.DraftRule
BlockDraft = _native.BlockDraft

Features = Float[Tensor, "tokens features"]


@dataclass(frozen=True, slots=True)
class ContextSpan:
    """Positions `kv_len` to `kv_len + length - 1`, whose features come with the call."""

    kv_len: int
    length: int
    block_table: Sequence[int]


@dataclass(frozen=True, slots=True)
class DraftCall:
    """One request to draft for; the table reaches a whole block beyond `kv_len`."""

    anchor: int
    kv_len: int
    block_table: Sequence[int]
    num_drafts: int
    rule: DraftRule


class NativeBlocks:
    """The layers, heads and context pool of one block drafter.

    What is drafted for a request depends on its context and rule alone. Errors of the C++ side
    arrive as ValueError.
    """

    def __init__(
        self, machine: Machine, weights: Weights, parts: BlockParts, setting: RunnerSetting
    ) -> None:
        """Reserve the pool; memory is taken as it is written.

        Raises:
            ValueError: the parts do not fit each other, or the block size is no multiple of 16.
        """
        self._width = parts.fuse.in_features
        self._runner = _native.BlockRunner(
            machine,
            weights,
            parts,
            setting.frequencies,
            setting.attention_factor,
            setting.num_blocks,
            setting.block_size,
            setting.kv_type,
        )

    def draft(
        self, spans: Sequence[ContextSpan], features: Features | None, calls: Sequence[DraftCall]
    ) -> list[BlockDraft]:
        """Cache the context of the spans, a row of features per position, then draft.

        Raises:
            ValueError: the features do not fit the spans, or a call names what does not exist.
        """
        if features is None:
            rows = np.empty((0, self._width), dtype=np.float32)
        else:
            rows = np.ascontiguousarray(features.detach().to("cpu", torch.float32).numpy())
        return self._runner.draft(
            [(span.kv_len, span.length, span.block_table) for span in spans],
            rows,
            [
                (call.anchor, call.kv_len, call.block_table, call.num_drafts, call.rule)
                for call in calls
            ],
        )
