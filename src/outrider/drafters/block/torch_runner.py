"""A block drafter on torch: the reference, and the path for any device torch runs on."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.markov_loop import SlotLoop
from outrider.drafters.block.network import Segment
from outrider.drafters.block.runner import BlockRow, NewContext
from outrider.kvcache.pool import KVPool
from outrider.models.decoder import Decoder
from outrider.tensor.window import RowProposal


class TorchBlockRunner:
    """The network with a paged pool of context keys and values."""

    def __init__(
        self, checkpoint: BlockCheckpoint, target: Decoder, *, num_blocks: int, block_size: int
    ) -> None:
        """Share the embedding and the head of `target` and compute on its device.

        Rows are float32, or what the target computes in where that is wider or no CPU does it.
        """
        config = self._config = checkpoint.config
        weight = target.embedding.weight
        self._device = weight.device
        self._dtype = (
            torch.promote_types(weight.dtype, torch.float32)
            if self._device.type == "cpu"
            else weight.dtype
        )
        self._network = checkpoint.network.to(self._device, self._dtype)
        self._embedding = weight.detach()
        head = (target.embedding if target.head is None else target.head).weight.detach()
        ids = checkpoint.draft_ids
        if ids is None:
            ids = torch.arange(config.vocab_size)
        else:
            head = head[ids.to(self._device)]
        self._head = head
        self._loop = SlotLoop(
            self._network, ids.to(self._device), stop_tokens=target.spec.stop_token_ids
        )
        shape = (config.num_layers, config.num_kv_heads, config.head_dim)
        self.pool = KVPool.empty(shape, num_blocks, block_size, self._dtype, self._device)

    @torch.inference_mode()
    def draft(self, new: Sequence[NewContext], rows: Sequence[BlockRow]) -> list[RowProposal]:
        """See `BlockRunner`."""
        if new:
            self._write(new)
        if not rows:
            return []
        hidden = self._blocks(rows)
        logits = functional.linear(hidden.to(self._head.dtype), self._head).to(self._dtype)
        return [self._loop.draft(*each) for each in zip(rows, hidden, logits, strict=True)]

    def _write(self, new: Sequence[NewContext]) -> None:
        """Turn features into keys and values of every layer, at the slots of their positions."""
        spans = [(each.kv_len, each.kv_len + len(each.features)) for each in new]
        positions = torch.cat([torch.arange(first, end) for first, end in spans]).to(self._device)
        tables = [each.block_table for each in new]
        slots = torch.cat(
            [self._slots(table, *span) for table, span in zip(tables, spans, strict=True)]
        )
        features = torch.cat([each.features for each in new]).to(self._device, self._dtype)
        fused = self._network.fuse(features)
        for layer, made in enumerate(self._network.context_keys_values(fused, positions)):
            self.pool.write(layer, slots, *made)

    def _blocks(self, rows: Sequence[BlockRow]) -> Float[Tensor, "blocks slots hidden"]:
        """Compute a block per row; give the slots that predict, after the final norm."""
        config, device = self._config, self._device
        tokens = torch.full((len(rows), config.block_size), config.mask_token_id, device=device)
        tokens[:, 0] = torch.tensor([row.sequence.tokens[-1] for row in rows], device=device)
        starts = torch.tensor([row.kv_len for row in rows], device=device)
        slots = torch.cat([self._slots(row.block_table, 0, row.kv_len) for row in rows])
        ends = list(accumulate((row.kv_len for row in rows), initial=0))
        hidden = self._network(
            functional.embedding(tokens, self._embedding).to(self._dtype),
            starts[:, None] + torch.arange(config.block_size, device=device),
            [
                (keys.index_select(0, slots), values.index_select(0, slots))
                for keys, values in zip(self.pool.keys, self.pool.values, strict=True)
            ],
            [Segment(ends[i], ends[i + 1], i, i + 1) for i in range(len(rows))],
        )
        predicting: Tensor = hidden[:, config.slots_dropped :]
        return predicting

    def _slots(self, table: Sequence[int], first: int, end: int) -> Int[Tensor, " positions"]:
        """Slots of positions `first` to `end - 1`."""
        size = self.pool.block_size
        positions = torch.arange(first, end)
        return (torch.tensor(table)[positions // size] * size + positions % size).to(self._device)
