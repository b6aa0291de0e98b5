"""The target on torch: reference, and the path for any device torch runs on."""

from collections.abc import Sequence
from typing import ClassVar

import torch

from outrider.kvcache.pool import KVPool
from outrider.models.decoder import Decoder, TappedFeatures
from outrider.sampling.rows import ArgmaxSampler, RowSampler
from outrider.target.layout import Layout, lay_out, spans_of
from outrider.target.paged import PagedAttention
from outrider.tensor.shapes import Hidden
from outrider.tensor.span import Span, SpanScores
from outrider.tensor.window import Scores, Taps, VerifyWindow


class TorchTarget:
    """A decoder with a paged KV pool. The caller owns the block tables."""

    can_roll_back: ClassVar[bool] = True

    def __init__(
        self, decoder: Decoder, *, num_blocks: int, block_size: int, device: str = "cpu"
    ) -> None:
        """Reserve the KV pool beside the decoder's weights."""
        self.spec = decoder.spec
        self.sampler: RowSampler = ArgmaxSampler()
        self._device = torch.device(device)
        self._decoder = decoder.to(self._device)
        shape = (self.spec.num_layers, self.spec.num_kv_heads, self.spec.head_dim)
        dtype = decoder.embedding.weight.dtype
        self.pool = KVPool.empty(shape, num_blocks, block_size, dtype, self._device)

    def score(self, window: VerifyWindow, taps: Taps = ()) -> Scores:
        """Compute the window in one forward; see `Target`."""
        layout = lay_out(spans_of(window), self.pool.block_size, self._device)
        scored = self._forward(layout, taps)
        return Scores(scored.logits, layout.first_row, scored.features, layout.first_token)

    def score_spans(self, spans: Sequence[Span], taps: Taps = ()) -> SpanScores:
        """Compute spans in one forward; what keeps a cache of its own calls this."""
        return self._forward(lay_out(spans, self.pool.block_size, self._device), taps)

    @torch.inference_mode()
    def _forward(self, layout: Layout, taps: Taps) -> SpanScores:
        hidden, features = self._run(layout, taps, is_careful=False)
        judged = hidden.index_select(0, layout.judged)
        may_see_too_much = any(group.mask is not None for group in layout.groups)
        if may_see_too_much and not bool(torch.isfinite(judged).all()):
            # A draft that is no number must not fail the rows before it, which never saw it.
            hidden, features = self._run(layout, taps, is_careful=True)
            judged = hidden.index_select(0, layout.judged)
        return SpanScores(self._decoder.logits(judged), features)

    def _run(
        self, layout: Layout, taps: Taps, *, is_careful: bool
    ) -> tuple[Hidden, TappedFeatures | None]:
        cache = PagedAttention(self.pool, layout, is_careful=is_careful)
        result: tuple[Hidden, TappedFeatures | None] = self._decoder(
            layout.tokens, layout.positions, cache, taps
        )
        return result
