"""The block drafter: a few layers over a block of slots, with the target's features as context.

One definition serves training and decoding. Its parts are called in this order:

1. `fuse`: tapped features of the target, row by row, to context rows;
2. `context_keys_values`: keys and values of context rows, per layer, which never change once made,
   so that decoding computes each row once and training computes a document's rows for all blocks;
3. `forward`: blocks of slots through the layers, each attending to the context before its anchor
   and to all slots of its own block;
4. the heads, in `heads`; the embedding and the output matrix are the target's and stay outside.

DFlash (z-lab) and DSpark (arXiv 2607.05147); layers are Qwen3's, with norms on queries and keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.heads import ConfidenceHead, MarkovHead, apply_linear
from outrider.models.layers import Linear, RMSNorm, Rotary, RotaryTable, rotate
from outrider.models.spec import RopeSpec

ContextRows = Float[Tensor, "context hidden"]
ContextHeads = Float[Tensor, "context kv_heads head_dim"]
BlockRows = Float[Tensor, "blocks slots hidden"]
BlockQueries = Float[Tensor, "blocks slots heads head_dim"]
BlockKeysValues = Float[Tensor, "blocks slots kv_heads head_dim"]
LayerContext = tuple[ContextHeads, ContextHeads]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Consecutive blocks that read one stretch of context rows.

    Blocks `first_block` to `end_block` see the first `visible[i]` of the context rows
    `first_row` to `end_row`: in training those strictly before block i's anchor; None means all.
    """

    first_row: int
    end_row: int
    first_block: int
    end_block: int
    visible: Int[Tensor, " blocks"] | None = None


class BlockNetwork(nn.Module):
    """Parameters and forward of a block drafter.

    Tensor names are those of z-lab's and DeepSpec's checkpoints. Weights may be kept in a wider
    dtype than the rows that go through; every product is taken in the dtype of the rows.
    """

    def __init__(self, config: BlockConfig) -> None:
        """Create the network with uninitialised weights."""
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.fc = Linear(len(config.target_layer_ids) * size, size, bias=False)
        self.hidden_norm = RMSNorm(size, config.rms_eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(size, config.rms_eps)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.has_confidence_head else None
        self.rotary = Rotary(
            RopeSpec(theta=config.rope_theta, max_position=config.max_context_len), config.head_dim
        )

    def fuse(self, features: Float[Tensor, "context taps_hidden"]) -> ContextRows:
        """Turn the concatenated outputs of the tapped layers into context rows."""
        if self.config.fc_norm:
            layers = features.unflatten(-1, (len(self.config.target_layer_ids), -1))
            size = layers.shape[-1:]
            features = functional.rms_norm(layers, size, eps=self.config.rms_eps).flatten(-2)
        return normed(self.hidden_norm, apply_linear(self.fc, features))

    def context_keys_values(
        self, context: ContextRows, positions: Int[Tensor, " context"]
    ) -> list[LayerContext]:
        """Keys, rotated to their positions, and values of context rows, for every layer."""
        tables = self.rotary.tables(positions, context.dtype)
        return [
            layer.self_attn.keys_values(context, tables)
            for layer in self.layers
            if isinstance(layer, BlockLayer)
        ]

    def forward(
        self,
        embeddings: BlockRows,
        positions: Int[Tensor, "blocks slots"],
        context: Sequence[LayerContext],
        segments: Sequence[Segment],
    ) -> BlockRows:
        """Rows of all slots after the final norm.

        `embeddings` are the target's rows of the anchor and of the mask token; slot k of a block
        has the anchor's position plus k. Together the segments hold every block once, in order.
        """
        tables = self.rotary.tables(positions.reshape(-1), embeddings.dtype)
        hidden = embeddings
        masks = [_hidden_rows(segment, embeddings.dtype) for segment in segments]
        for layer, keys_values in zip(self.layers, context, strict=True):
            hidden = layer(hidden, tables, keys_values, segments, masks)
        return normed(self.norm, hidden)


class BlockLayer(nn.Module):
    """Attention and gated MLP, each on normed rows and added to the rows."""

    def __init__(self, config: BlockConfig) -> None:
        """Create the layer with uninitialised weights."""
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_eps)
        self.self_attn = BlockAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_eps)
        self.mlp = GatedMLP(config)

    def forward(
        self,
        hidden: BlockRows,
        tables: tuple[RotaryTable, RotaryTable],
        context: LayerContext,
        segments: Sequence[Segment],
        masks: Sequence[Tensor | None],
    ) -> BlockRows:
        """Rows of all slots after the layer."""
        rows = normed(self.input_layernorm, hidden)
        hidden = hidden + self.self_attn(rows, tables, context, segments, masks)
        mixed: BlockRows = self.mlp(normed(self.post_attention_layernorm, hidden))
        return hidden + mixed


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))` with the three projections apart, as checkpoints keep them."""

    def __init__(self, config: BlockConfig) -> None:
        """Create the projections."""
        super().__init__()
        size, wide = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(size, wide, bias=False)
        self.up_proj = Linear(size, wide, bias=False)
        self.down_proj = Linear(wide, size, bias=False)

    def forward(self, rows: BlockRows) -> BlockRows:
        """Apply the gated MLP to every row."""
        gate = functional.silu(apply_linear(self.gate_proj, rows))
        return apply_linear(self.down_proj, gate * apply_linear(self.up_proj, rows))


class BlockAttention(nn.Module):
    """Attention of slots to context rows and to their own block, without a causal mask."""

    def __init__(self, config: BlockConfig) -> None:
        """Create projections and the norms of queries and keys."""
        super().__init__()
        size, dim = config.hidden_size, config.head_dim
        self.head_dim = dim
        self.q_proj = Linear(size, config.num_heads * dim, bias=False)
        self.k_proj = Linear(size, config.num_kv_heads * dim, bias=False)
        self.v_proj = Linear(size, config.num_kv_heads * dim, bias=False)
        self.o_proj = Linear(config.num_heads * dim, size, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_eps)
        self.k_norm = RMSNorm(dim, config.rms_eps)

    def keys_values(
        self,
        rows: Float[Tensor, "rows hidden"],
        tables: tuple[RotaryTable, RotaryTable],
    ) -> LayerContext:
        """Rotated keys, and values, of context rows or of slots."""
        keys = apply_linear(self.k_proj, rows).unflatten(-1, (-1, self.head_dim))
        values = apply_linear(self.v_proj, rows).unflatten(-1, (-1, self.head_dim))
        return rotate(normed(self.k_norm, keys), *tables), values

    def forward(
        self,
        rows: BlockRows,
        tables: tuple[RotaryTable, RotaryTable],
        context: LayerContext,
        segments: Sequence[Segment],
        masks: Sequence[Tensor | None],
    ) -> BlockRows:
        """Attend and project."""
        blocks = rows.shape[:2]
        flat = rows.flatten(0, 1)
        queries = apply_linear(self.q_proj, flat).unflatten(-1, (-1, self.head_dim))
        queries = rotate(normed(self.q_norm, queries), *tables).unflatten(0, blocks)
        keys, values = (part.unflatten(0, blocks) for part in self.keys_values(flat, tables))
        attended = torch.cat(
            [
                _attend(
                    queries[segment.first_block : segment.end_block],
                    (
                        keys[segment.first_block : segment.end_block],
                        values[segment.first_block : segment.end_block],
                    ),
                    (
                        context[0][segment.first_row : segment.end_row],
                        context[1][segment.first_row : segment.end_row],
                    ),
                    mask,
                )
                for segment, mask in zip(segments, masks, strict=True)
            ]
        )
        return apply_linear(self.o_proj, attended)


def normed(norm: RMSNorm, rows: Float[Tensor, "*rows size"]) -> Float[Tensor, "*rows size"]:
    """Apply a norm in the dtype of the rows."""
    return functional.rms_norm(rows, norm.weight.shape, norm.weight.to(rows.dtype), norm.eps)


def _hidden_rows(segment: Segment, dtype: torch.dtype) -> Tensor | None:
    """Minus infinity where a block may not look, zero elsewhere; [blocks, context rows]."""
    if segment.visible is None:
        return None
    rows = torch.arange(segment.end_row - segment.first_row, device=segment.visible.device)
    hidden = rows[None, :] >= segment.visible[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=rows.device).masked_fill_(
        hidden, float("-inf")
    )


def _attend(
    queries: BlockQueries,
    own: tuple[BlockKeysValues, BlockKeysValues],
    context: LayerContext,
    mask: Tensor | None,
) -> BlockRows:
    """Softmax over context and own slots together.

    Own slots are always seen, so no row of the softmax is empty.
    """
    blocks, slots, heads, dim = queries.shape
    groups = own[0].shape[2]
    # Rows are (slot, head of the group) of a block; key heads are the batch.
    rows = queries.view(blocks, slots, groups, heads // groups, dim).permute(2, 0, 1, 3, 4)
    rows = rows.reshape(groups, blocks, slots * heads // groups, dim) * dim**-0.5
    keys, values = (part.permute(2, 0, 1, 3) for part in own)
    past_keys, past_values = (part.transpose(0, 1) for part in context)
    past = (rows.flatten(1, 2) @ past_keys.transpose(1, 2)).unflatten(1, (blocks, -1))
    if mask is not None:
        past = past + mask[None, :, None, :]
    weights = torch.cat((past, rows @ keys.transpose(-1, -2)), -1).softmax(-1)
    past_weights, own_weights = weights.split((past.shape[-1], slots), -1)
    mixed = (past_weights.flatten(1, 2) @ past_values).unflatten(1, (blocks, -1))
    mixed = mixed + own_weights @ values
    rows_of_blocks: BlockRows = (
        mixed.view(groups, blocks, slots, -1, dim).permute(1, 2, 0, 3, 4).flatten(2)
    )
    return rows_of_blocks
