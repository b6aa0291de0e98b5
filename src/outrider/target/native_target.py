"""The target on the native runner: CPUs, quantised weights, bits that no batch can change."""

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from outrider.native.runner import KvType, NativeRunner, RunnerSetting
from outrider.native.sampling import NativeSampler
from outrider.sampling.rows import RowSampler
from outrider.target.layout import spans_of
from outrider.target.native_weights import NativeModel
from outrider.tensor.span import Span, SpanScores
from outrider.tensor.window import Scores, Taps, VerifyWindow


class NativeTarget:
    """A native model with a paged KV pool. The caller owns the block tables."""

    can_roll_back: ClassVar[bool] = True

    def __init__(
        self,
        model: NativeModel,
        *,
        num_blocks: int,
        block_size: int,
        kv_type: KvType = "int16",
    ) -> None:
        """Reserve the KV pool beside the weights, which may be in use elsewhere.

        Raises:
            ValueError: the block size is no multiple of 16.
        """
        self.spec = model.spec
        self.sampler: RowSampler = NativeSampler(model.machine)
        setting = RunnerSetting(
            frequencies=model.frequencies,
            attention_factor=model.spec.rope.attention_factor,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_type=kv_type,
        )
        self.runner = NativeRunner(model.machine, model.weights, setting)

    def score(self, window: VerifyWindow, taps: Taps = ()) -> Scores:
        """Compute the window in one forward; see `Target`."""
        spans = spans_of(window)
        scored = self.runner.score(spans, taps)
        first_row = accumulate((span.num_judged for span in spans), initial=0)
        return Scores(
            logits=scored.logits,
            first_row=tuple(
                first if span.num_judged else -1
                for span, first in zip(spans, first_row, strict=False)
            ),
            features=scored.features,
            first_token=tuple(accumulate((len(span.tokens) for span in spans[:-1]), initial=0)),
        )

    def score_spans(self, spans: Sequence[Span], taps: Taps = ()) -> SpanScores:
        """Compute spans in one forward; what keeps a cache of its own calls this."""
        return self.runner.score(spans, taps)
