"""Target features of running requests, for callers who want them with the output."""

import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.tensor.batch import Batch
from outrider.tensor.shapes import Hidden
from outrider.tensor.window import Scores, Taps


class FeatureRecorder:
    """Keeps, in bfloat16, the tapped outputs of every token that a request has in the KV cache.

    It needs every position to be computed, so prefix caching must be off. A preempted request is
    computed again from its first token and replaces what was kept.
    """

    def __init__(self, taps: Taps) -> None:
        """Record the outputs of these target layers."""
        self.taps = taps
        self._parts: dict[RequestId, list[Hidden]] = {}

    def observe(self, batch: Batch, outcome: Outcome, scores: Scores) -> None:
        """Keep the rows of the tokens that this step left in the cache; rejected drafts do not."""
        features = scores.features
        assert features is not None, "the target was not asked for features"
        for row, done, first in zip(batch, outcome.rows, scores.first_token, strict=True):
            if row.kv_len == 0:
                self._parts[done.request_id] = []
            kept = features[first : first + done.num_cached]
            self._parts[done.request_id].append(kept.to(torch.bfloat16))

    def take(self, request_id: RequestId) -> Hidden | None:
        """Give what was kept of a request, a row per token, and forget it; None if nothing was."""
        parts = self._parts.pop(request_id, None)
        return torch.cat(parts) if parts else None
