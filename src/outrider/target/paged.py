"""Attention over the paged cache for one window, in plain torch."""

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from outrider.kvcache.pool import KVPool
from outrider.target.layout import AttentionGroup, Layout, Mask
from outrider.tensor.shapes import KeysValues, Queries


class PagedAttention:
    """Writes a layer's new keys and values, then lets every row attend through its block table.

    The query heads of a KV head are folded into the rows of one attention call, so keys and values
    are never repeated.
    """

    def __init__(self, pool: KVPool, layout: Layout, *, is_careful: bool = False) -> None:
        """Serve one forward over `layout`.

        A masked position has weight 0, and 0 × NaN is NaN. A careful forward keeps keys and values
        that are no numbers from the rows that must not see them, at the cost of looking for them.
        """
        self._pool = pool
        self._layout = layout
        self._is_careful = is_careful
        self._masks: dict[int, torch.Tensor | None] = {}

    def attend(self, layer: int, queries: Queries, keys: KeysValues, values: KeysValues) -> Queries:
        """See `models.attention.LayerCache`."""
        self._pool.write(layer, self._layout.slots, keys, values)
        groups = self._layout.groups
        if len(groups) == 1 and groups[0].scatter is None:
            return self._attend_group(layer, 0, queries)
        output = torch.empty_like(queries)
        for index, group in enumerate(groups):
            attended = self._attend_group(layer, index, queries.index_select(0, group.rows))
            rows = group.rows
            if group.scatter is not None:
                attended, rows = attended[group.scatter], rows[group.scatter]
            output.index_copy_(0, rows, attended)
        return output

    def _attend_group(self, layer: int, index: int, queries: Queries) -> Queries:
        """Attend the rows of one group, padding included."""
        group = self._layout.groups[index]
        num_spans, width = group.num_spans, group.width
        _, num_heads, head_dim = queries.shape
        # index_select is several times faster on a CPU than indexing with brackets.
        keys = self._pool.keys[layer].index_select(0, group.slots)
        values = self._pool.values[layer].index_select(0, group.slots)
        num_kv_heads = keys.shape[1]
        shared = num_heads // num_kv_heads
        folded = (
            queries.view(num_spans, width, num_kv_heads, shared, head_dim)
            .permute(0, 2, 3, 1, 4)
            .reshape(num_spans, num_kv_heads, shared * width, head_dim)
        )
        spoiled = None
        if self._is_careful and group.mask is not None:
            keys, values, spoiled = _without_nan(group, group.mask, keys, values)
        attended = functional.scaled_dot_product_attention(
            folded,
            keys.view(num_spans, -1, num_kv_heads, head_dim).transpose(1, 2),
            values.view(num_spans, -1, num_kv_heads, head_dim).transpose(1, 2),
            attn_mask=self._mask(index, group, shared),
        )
        rows = (
            attended.view(num_spans, num_kv_heads, shared, width, head_dim)
            .permute(0, 3, 1, 2, 4)
            .reshape(num_spans * width, num_heads, head_dim)
        )
        return rows if spoiled is None else rows.masked_fill(spoiled[:, None, None], torch.nan)

    def _mask(self, index: int, group: AttentionGroup, shared: int) -> torch.Tensor | None:
        """Repeat the mask for the folded heads, once per forward."""
        if index not in self._masks:
            mask = group.mask
            self._masks[index] = None if mask is None else mask.repeat(1, 1, shared, 1)
        return self._masks[index]


def _without_nan(
    group: AttentionGroup, mask: Mask, keys: KeysValues, values: KeysValues
) -> tuple[KeysValues, KeysValues, Bool[Tensor, " spans_width"]]:
    """Zero the context's broken keys and values; also say which rows see one of them."""
    is_broken = ~(torch.isfinite(keys) & torch.isfinite(values)).flatten(1).all(1)
    zeroed = [each.masked_fill(is_broken[:, None, None], 0.0) for each in (keys, values)]
    sees = mask[:, 0] & is_broken.view(group.num_spans, 1, -1)
    return zeroed[0], zeroed[1], sees.any(-1).flatten()
