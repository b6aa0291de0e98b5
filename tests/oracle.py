"""The slowest possible decoding: no cache, no batch, no speculation, one full forward per token."""

from collections.abc import Callable

import torch

from outrider.core.request import Request
from outrider.models.attention import FullCausal
from outrider.models.decoder import Decoder
from outrider.sampling.noise import Purpose, gumbel
from outrider.sampling.warp import Context
from tests.plain_warp import plainly

NextLogits = Callable[[tuple[int, ...]], torch.Tensor]


def of_decoder(decoder: Decoder) -> NextLogits:
    """Logits behind a text, computed from nothing."""

    @torch.inference_mode()
    def logits(tokens: tuple[int, ...]) -> torch.Tensor:
        cache = FullCausal([len(tokens)])
        hidden, _ = decoder(torch.tensor(tokens), torch.arange(len(tokens)), cache)
        return decoder.logits(hidden[-1:])[0]

    return logits


def decode(
    next_logits: NextLogits,
    request: Request,
    end_of_text: frozenset[int] = frozenset(),
    max_context_len: int = 1 << 30,
) -> list[int]:
    """What plain decoding must deliver; knows nothing of text, so no stop strings."""
    params, prompt, output = request.params, request.prompt, list[int]()
    stops = params.stop_token_ids | (frozenset() if params.ignore_eos else end_of_text)
    while len(output) < params.max_tokens and len(prompt) + len(output) < max_context_len:
        logits = next_logits((*prompt, *output)).tolist()
        row = plainly(logits, params, Context(prompt, output, stops))
        if params.temperature > 0:
            tokens = torch.arange(len(row))
            noise = gumbel(request.seed, Purpose.MATCH, len(output), tokens).tolist()
            row = [value + own for value, own in zip(row, noise, strict=True)]
        output.append(row.index(max(row)))
        if output[-1] in stops and len(output) >= params.min_tokens:
            break
    return output
