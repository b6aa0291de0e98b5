"""A verify window as flat rows: which token, at which position, in which slot, judged or not.

Rows of the window are grouped for attention: requests whose windows and contexts have similar sizes
share one padded attention call, so a long prompt chunk does not blow up the padding of its mates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from outrider.tensor.shapes import Positions, TokenIds
from outrider.tensor.span import Span
from outrider.tensor.window import VerifyWindow

Mask = Bool[Tensor, "spans 1 width context"]

# Padding may at most multiply the attention work of a group by this.
MAX_PADDING = 1.6


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows that attend in one padded call.

    `rows` are the flat rows of `num_spans` spans of `width` tokens, padding repeats a row of its
    span; `slots` are the KV slots of each span's context, padding repeats the first and is masked.
    `mask` is None where every row sees the whole context of its span. `scatter` picks the real
    rows, None if all are.
    """

    num_spans: int
    width: int
    rows: Int[Tensor, " spans_width"]
    slots: Int[Tensor, " spans_context"]
    mask: Mask | None
    scatter: Int[Tensor, " real"] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Flat tensors of a window."""

    tokens: TokenIds
    positions: Positions
    slots: Int[Tensor, " tokens"]
    judged: Int[Tensor, " judged"]
    groups: tuple[AttentionGroup, ...]
    first_row: tuple[int, ...]
    first_token: tuple[int, ...]


def spans_of(window: VerifyWindow) -> list[Span]:
    """Read the spans off a verify window."""
    return [
        Span(
            tokens=[*row.known_tokens, *draft.tokens],
            kv_len=row.kv_len,
            block_table=row.block_table,
            num_judged=len(draft.tokens) + 1 if row.is_judged else 0,
        )
        for row, draft in zip(window.batch, window.drafts, strict=True)
    ]


def lay_out(spans: Sequence[Span], block_size: int, device: torch.device) -> Layout:
    """Flatten spans in order."""
    tokens: list[int] = []
    positions: list[int] = []
    judged: list[int] = []
    first_row, first_token = [], []
    contexts: list[Tensor] = []
    offsets = torch.arange(block_size)
    for span in spans:
        first_token.append(len(tokens))
        first_row.append(len(judged) if span.num_judged else -1)
        tokens.extend(span.tokens)
        positions.extend(range(span.kv_len, span.context_len))
        judged.extend(range(len(tokens) - span.num_judged, len(tokens)))
        blocks = torch.tensor(span.block_table[: -(-span.context_len // block_size)])
        slots = (blocks[:, None] * block_size + offsets).flatten()
        contexts.append(slots[: span.context_len])
    new_slots = [slots[span.kv_len :] for slots, span in zip(contexts, spans, strict=True)]
    return Layout(
        tokens=torch.tensor(tokens, device=device),
        positions=torch.tensor(positions, device=device),
        slots=torch.cat(new_slots).to(device),
        judged=torch.tensor(judged, dtype=torch.int64, device=device),
        groups=tuple(
            _group(
                [spans[i] for i in g], [contexts[i] for i in g], [first_token[i] for i in g], device
            )
            for g in _groups(spans)
        ),
        first_row=tuple(first_row),
        first_token=tuple(first_token),
    )


def _groups(spans: Sequence[Span]) -> list[list[int]]:
    """Put spans together as long as padding stays small; biggest windows first."""
    order = sorted(range(len(spans)), key=lambda i: (-len(spans[i].tokens), -spans[i].context_len))
    groups: list[list[int]] = []
    work = width = context = 0
    for i in order:
        span = spans[i]
        cost = len(span.tokens) * span.context_len
        wide = max(context, span.context_len)
        if groups and width * wide * (len(groups[-1]) + 1) <= MAX_PADDING * (work + cost) + 4096:
            groups[-1].append(i)
            work, context = work + cost, wide
        else:
            groups.append([i])
            work, width, context = cost, len(span.tokens), span.context_len
    return [sorted(group) for group in groups]


def _group(
    spans: Sequence[Span],
    contexts: Sequence[Tensor],
    first_tokens: Sequence[int],
    device: torch.device,
) -> AttentionGroup:
    width = max(len(span.tokens) for span in spans)
    context = max(span.context_len for span in spans)
    slots = torch.empty(len(spans), context, dtype=torch.int64)
    for i, own in enumerate(contexts):
        slots[i, : len(own)] = own
        # Not a slot of somebody else: a NaN there would survive the mask's weight of zero.
        slots[i, len(own) :] = own[0]
    lens = torch.tensor([len(span.tokens) for span in spans])
    kv_lens = torch.tensor([span.kv_len for span in spans])
    # A padding row repeats the last real row of its span, so it never sees an empty context.
    column = torch.minimum(torch.arange(width), lens[:, None] - 1)
    rows = torch.tensor(first_tokens)[:, None] + column
    sees = (kv_lens[:, None] + column)[:, None, :, None]
    is_full = width == 1 and len({span.context_len for span in spans}) == 1
    mask = None if is_full else torch.arange(context) <= sees
    is_padded = int(lens.sum()) != rows.numel()
    real = torch.arange(width) < lens[:, None]
    return AttentionGroup(
        num_spans=len(spans),
        width=width,
        rows=rows.flatten().to(device),
        slots=slots.flatten().to(device),
        mask=None if mask is None else mask.to(device),
        scatter=real.flatten().nonzero().squeeze(1).to(device) if is_padded else None,
    )
