"""Warps: the model's logits of one position → the logits the request is sampled from.

A warped row holds logits up to a constant; minus infinity marks tokens that cannot come. Target and
drafter go through the same functions, which is what makes the accept rules exact.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.request import SamplingParams, TokenMask
from outrider.errors import RequestFailed, RequestRejected
from outrider.tensor.shapes import LogitRow, Probs

NUCLEUS_GUESS = 512


@dataclass(frozen=True, slots=True)
class Context:
    """What a position knows of the past.

    `output` includes the drafted prefix of this window; `stop_tokens` are the ids that min_tokens
    holds back; `allowed` is a mask with a bit per token id (see `core.matcher`), None allows all.
    """

    prompt: Sequence[int]
    output: Sequence[int]
    stop_tokens: frozenset[int] = frozenset()
    allowed: bytes | None = None


def warp(logits: LogitRow, params: SamplingParams, context: Context) -> LogitRow:
    """Apply every warp of `params` in its documented order.

    At temperature 0 the result keeps the shape of the penalised logits: its arg-max is the token.

    Raises:
        RequestFailed: The request's token mask raised or named an unknown id.
    """
    row = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    row = _mask(row, params, context)
    row = _penalise(row, params, context)
    if params.is_greedy:
        return row
    if params.temperature != 1.0:
        row = row / params.temperature
    return _truncate(row, params)


def probabilities(warped: LogitRow, params: SamplingParams) -> Probs:
    """Turn warped logits into float64 probabilities; a point mass at temperature 0."""
    if params.is_greedy:
        return torch.zeros_like(warped, dtype=torch.float64).index_fill_(0, warped.argmax(), 1.0)
    return torch.softmax(warped.to(torch.float64), dim=-1)


def _mask(row: Tensor, params: SamplingParams, context: Context) -> Tensor:
    allowed = params.allowed_token_ids
    if params.token_mask is not None:
        by_mask = _ask(params.token_mask, context.output, row.numel())
        if by_mask is not None:
            allowed = by_mask if allowed is None else allowed & by_mask
    if allowed is not None:
        keep = _ids(allowed, row)
        row = torch.full_like(row, -torch.inf).index_copy_(0, keep, row[keep])
    if context.allowed is not None:
        row = row.masked_fill(~_bits(context.allowed, row), -torch.inf)
    if params.logit_bias:
        ids = _ids(params.logit_bias, row)
        bias = torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
        row = row.index_add(0, ids, bias)
    if len(context.output) < params.min_tokens and context.stop_tokens:
        row = row.index_fill(0, _ids(context.stop_tokens, row), -torch.inf)
    return row


def _ask(mask: TokenMask, output: Sequence[int], vocab_size: int) -> frozenset[int] | None:
    """Call a user's mask; whatever it does wrong is the request's failure, not the engine's."""
    try:
        answer = mask(output)
        allowed = None if answer is None else frozenset(answer)
        outside = next((t for t in allowed or () if not 0 <= t < vocab_size), None)
    except Exception as error:
        raise RequestFailed(f"the token mask raised {type(error).__name__}: {error}") from error
    if outside is not None:
        raise RequestFailed(
            f"the token mask allows token {outside}, but the vocabulary has ids 0 to "
            f"{vocab_size - 1}"
        )
    return allowed


def _bits(mask: bytes, row: Tensor) -> Tensor:
    """Unpack a mask to a truth value per token."""
    packed = torch.frombuffer(bytearray(mask), dtype=torch.uint8).to(row.device)
    places = torch.arange(8, dtype=torch.uint8, device=row.device)
    return ((packed[:, None] >> places) & 1).bool().reshape(-1)[: row.numel()]


def _penalise(row: Tensor, params: SamplingParams, context: Context) -> Tensor:
    if params.repetition_penalty != 1.0:
        seen = _ids(set(context.prompt) | set(context.output), row)
        values = row[seen]
        scale = params.repetition_penalty
        row = row.index_copy(0, seen, torch.where(values > 0, values / scale, values * scale))
    if params.presence_penalty or params.frequency_penalty:
        counts = Counter(context.output)
        penalty = [
            params.presence_penalty + params.frequency_penalty * count for count in counts.values()
        ]
        ids = _ids(counts, row)
        row = row.index_add(0, ids, -torch.tensor(penalty, dtype=row.dtype, device=row.device))
    return row


def _truncate(row: Tensor, params: SamplingParams) -> Tensor:
    if params.min_p > 0:
        floor = row.max() + torch.log(torch.tensor(params.min_p, dtype=row.dtype))
        row = row.masked_fill(row < floor, -torch.inf)
    if 0 < params.top_k < row.numel():
        border = torch.topk(row, params.top_k).values[-1]
        row = row.masked_fill(row < border, -torch.inf)
    if params.top_p < 1.0:
        row = _nucleus(row, params.top_p)
    return row


def _nucleus(row: Tensor, top_p: float) -> Tensor:
    """Keep the fewest tokens whose probability reaches `top_p`; the likeliest always stays."""
    # Sorting a whole vocabulary costs more than everything else here, and is rarely needed.
    values, mass = _largest(row, min(NUCLEUS_GUESS, row.numel()))
    if float(mass[-1]) < top_p:
        values, mass = _largest(row, row.numel())
    num_kept = 1 + int((mass[:-1] < top_p).sum())
    return row.masked_fill(row < values[num_kept - 1], -torch.inf)


def _largest(row: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Give the largest values, falling, and the probability up to each of them."""
    values = torch.topk(row, number).values
    wide = values.to(torch.float64)
    return values, (wide - row.to(torch.float64).logsumexp(0)).exp().cumsum(0)


def _ids(tokens: Iterable[int], row: Tensor) -> Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64, device=row.device)


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that the vocabulary does not have.

    Raises:
        RequestRejected: Names the option and the id.
    """
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise RequestRejected(
                    f"{name} names token {token}, but the vocabulary has ids 0 to {vocab_size - 1}"
                )
