"""The seam between the decoder and whatever keeps its keys and values.

The decoder hands over the rows of one layer and gets back the attention of every query row; which
positions a row may see, and where earlier keys live, is the cache's business alone.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from outrider.tensor.shapes import KeysValues, Queries


class LayerCache(Protocol):
    """What the decoder needs of a KV cache."""

    def attend(self, layer: int, queries: Queries, keys: KeysValues, values: KeysValues) -> Queries:
        """Store the new keys and values of `layer`, return the attention output per query row.

        Queries and keys arrive already rotated to their positions. The scale is
        `head_dim ** -0.5`; query head `h` reads key head `h // (heads // kv_heads)`.
        """
        ...


class FullCausal:
    """The slow reference: no cache, every segment attends to itself, causally.

    `lengths` cuts the flat rows into independent segments, in order. Nothing is remembered between
    calls, so every forward must carry whole sequences.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        """Attend within segments of these lengths, in tokens."""
        self._lengths = list(lengths)

    def attend(self, layer: int, queries: Queries, keys: KeysValues, values: KeysValues) -> Queries:
        """Attend each row to the rows of its segment up to itself."""
        del layer
        assert sum(self._lengths) == queries.shape[0], (self._lengths, queries.shape)
        return torch.cat(
            [
                _causal_attention(*segment)
                for segment in zip(
                    torch.split(queries, self._lengths),
                    torch.split(keys, self._lengths),
                    torch.split(values, self._lengths),
                    strict=True,
                )
            ]
        )


def _causal_attention(queries: Queries, keys: KeysValues, values: KeysValues) -> Queries:
    num_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    grouped = queries.reshape(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("qngd,knd->ngqk", grouped, keys) * head_dim**-0.5
    future = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=queries.device).triu(1)
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1, dtype=wide).to(values.dtype)
    return torch.einsum("ngqk,knd->qngd", weights, values).flatten(1, 2)
