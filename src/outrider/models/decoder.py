"""The decoder-only transformer of the Llama, Qwen2 and Qwen3 family, built from a `ModelSpec`.

    token_ids -> embedding -> [ norm -> qkv -> rotate -> cache.attend -> output -> +
                                norm -> gated MLP                              -> + ] x layers
              -> norm -> hidden rows -> (logits: only for the rows somebody judges)

Rows are a flat ragged batch; which rows belong together is known to the cache alone.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from outrider.models.attention import LayerCache
from outrider.models.layers import GatedMLP, Linear, RMSNorm, Rotary, RotaryTable, rotate
from outrider.models.spec import ModelSpec
from outrider.tensor.shapes import Hidden, Logits, Positions, TokenIds

TappedFeatures = Float[Tensor, "tokens features"]

EMBEDDING_TAP = -1


class Attention(nn.Module):
    """Query, key and value projections, optional head norms, rotation, and the way back."""

    def __init__(self, spec: ModelSpec) -> None:
        """Create the projections of one layer."""
        super().__init__()
        self.num_heads, self.num_kv_heads = spec.num_heads, spec.num_kv_heads
        self.head_dim = spec.head_dim
        num_rows = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self.qkv = Linear(spec.hidden_size, num_rows, bias=spec.qkv_bias)
        self.output = Linear(spec.num_heads * spec.head_dim, spec.hidden_size, bias=False)
        self.query_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.key_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None

    def forward(
        self,
        hidden: Hidden,
        rotary: tuple[RotaryTable, RotaryTable],
        cache: LayerCache,
        layer: int,
    ) -> Hidden:
        """Attend every row through `cache`."""
        num_tokens = hidden.shape[0]
        num_rotated = self.num_heads + self.num_kv_heads
        heads = self.qkv(hidden).view(num_tokens, -1, self.head_dim)
        turning, values = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = turning[:, : self.num_heads], turning[:, self.num_heads :]
            turning = torch.cat((self.query_norm(queries), self.key_norm(keys)), 1)
        turned = rotate(turning, *rotary)
        attended = cache.attend(
            layer, turned[:, : self.num_heads], turned[:, self.num_heads :], values
        )
        projected: Hidden = self.output(attended.reshape(num_tokens, -1))
        return projected


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and around a residual."""

    def __init__(self, spec: ModelSpec) -> None:
        """Create one layer."""
        super().__init__()
        self.attention_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.attention = Attention(spec)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size)

    def forward(
        self,
        hidden: Hidden,
        rotary: tuple[RotaryTable, RotaryTable],
        cache: LayerCache,
        layer: int,
    ) -> Hidden:
        """Apply the layer to every row."""
        attended: Hidden = self.attention(self.attention_norm(hidden), rotary, cache, layer)
        hidden = hidden + attended
        projected: Hidden = self.mlp(self.mlp_norm(hidden))
        return hidden + projected


class Decoder(nn.Module):
    """A decoder-only transformer; weights are loaded by `models.weights`."""

    def __init__(self, spec: ModelSpec) -> None:
        """Create the network of `spec`. Build it on the meta device, then assign weights."""
        super().__init__()
        self.spec = spec
        # Given a weight, it draws none; see layers.Linear.
        self.embedding = nn.Embedding(
            spec.vocab_size,
            spec.hidden_size,
            _weight=torch.empty(spec.vocab_size, spec.hidden_size),
        )
        self.layers = nn.ModuleList(DecoderLayer(spec) for _ in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.head = (
            None if spec.tied_head else Linear(spec.hidden_size, spec.vocab_size, bias=False)
        )
        self.rotary = Rotary(spec.rope, spec.head_dim)

    def forward(
        self,
        token_ids: TokenIds,
        positions: Positions,
        cache: LayerCache,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[Hidden, TappedFeatures | None]:
        """Return the rows after the final norm and, if asked, the tapped features.

        Tap `i` is the output of 0-based layer `i`, before the final norm; `-1` is the embedding.
        Features are concatenated in the order of `tap_layers`.
        """
        hidden = self.embedding(token_ids)
        rotary = self.rotary.tables(positions, hidden.dtype)
        tapped = {EMBEDDING_TAP: hidden} if EMBEDDING_TAP in tap_layers else {}
        for layer, block in enumerate(self.layers):
            hidden = block(hidden, rotary, cache, layer)
            if layer in tap_layers:
                tapped[layer] = hidden
        features = torch.cat([tapped[tap] for tap in tap_layers], -1) if tap_layers else None
        return self.norm(hidden), features

    def logits(self, hidden_rows: Float[Tensor, "judged hidden"]) -> Logits:
        """Scores over the vocabulary for rows that `forward` returned."""
        head = self.embedding if self.head is None else self.head
        return functional.linear(hidden_rows, head.weight)
