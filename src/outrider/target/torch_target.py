"""The target on torch: reference, and the path for any device torch runs on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from outrider.kvcache.pool import KVPool
from outrider.models.decoder import Decoder
from outrider.target.layout import Layout, Span, lay_out, spans_of
from outrider.target.paged import PagedAttention
from outrider.tensor.shapes import Hidden, Logits
from outrider.tensor.window import Scores, Taps, VerifyWindow


@dataclass(frozen=True, slots=True)
class SpanScores:
    """Logits and features of a forward over spans; the rows are laid out as `layout` says."""

    logits: Logits
    features: Hidden | None
    layout: Layout


class TorchTarget:
    """A decoder with a paged KV pool. The caller owns the block tables."""

    can_roll_back: ClassVar[bool] = True

    def __init__(
        self, decoder: Decoder, *, num_blocks: int, block_size: int, device: str = "cpu"
    ) -> None:
        """Reserve the KV pool beside the decoder's weights."""
        self.spec = decoder.spec
        self._device = torch.device(device)
        self._decoder = decoder.to(self._device)
        shape = (self.spec.num_layers, self.spec.num_kv_heads, self.spec.head_dim)
        dtype = decoder.embedding.weight.dtype
        self.pool = KVPool.empty(shape, num_blocks, block_size, dtype, self._device)

    def score(self, window: VerifyWindow, taps: Taps = ()) -> Scores:
        """Compute the window in one forward; see `Target`."""
        scored = self.score_spans(spans_of(window), taps)
        layout = scored.layout
        return Scores(scored.logits, layout.first_row, scored.features, layout.first_token)

    @torch.inference_mode()
    def score_spans(self, spans: Sequence[Span], taps: Taps = ()) -> SpanScores:
        """Compute spans in one forward; drafters that keep a cache of their own call this."""
        layout = lay_out(spans, self.pool.block_size, self._device)
        cache = PagedAttention(self.pool, layout)
        hidden, features = self._decoder(layout.tokens, layout.positions, cache, taps)
        return SpanScores(self._decoder.logits(hidden[layout.judged]), features, layout)
