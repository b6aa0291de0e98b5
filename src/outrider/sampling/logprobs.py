"""Log-probabilities of tokens that were already chosen, under the raw logits."""

from collections.abc import Sequence

import torch

from outrider.core.outcome import TokenLogprobs
from outrider.tensor.shapes import Logits


def token_logprobs(logits: Logits, tokens: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Report `tokens[i]` under `logits[i]`, and the `num_top` likeliest tokens of that row."""
    wide = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    logprobs = torch.log_softmax(wide, dim=-1)
    top = torch.topk(logprobs, min(num_top, logprobs.shape[-1]), dim=-1)
    return [
        TokenLogprobs(
            token=token,
            logprob=float(row[token]),
            rank=1 + int((row > row[token]).sum()),
            top=tuple(zip(ids, values, strict=True)),
        )
        for token, row, ids, values in zip(
            tokens, logprobs, top.indices.tolist(), top.values.tolist(), strict=True
        )
    ]
