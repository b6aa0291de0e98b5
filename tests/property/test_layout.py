"""Windows as flat rows, against the same thing said slot by slot; and attention through them."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ids import BlockId
from outrider.kvcache.pool import KVPool
from outrider.models.attention import FullCausal
from outrider.target.layout import AttentionGroup, lay_out
from outrider.target.paged import PagedAttention
from outrider.target.torch_target import TorchTarget
from outrider.tensor.span import Span
from outrider.testing.tiny import tiny_decoder, tiny_spec

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 4


@dataclass(frozen=True)
class Cut:
    """One sequence: cached, computed and judged lengths, and spare blocks behind."""

    cached: int
    computed: int
    judged: int
    spare: int


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    computed = draw(st.integers(1, 3) | st.integers(1, 40))
    cached = draw(st.sampled_from([0, 0, 1, 3, 30]) | st.integers(0, 20))
    return Cut(cached, computed, draw(st.integers(0, computed)), draw(st.integers(0, 2)))


windows = st.tuples(
    st.lists(cuts(), min_size=1, max_size=6), st.integers(1, 5), st.randoms(use_true_random=False)
)


def spans_from(drawn: tuple[list[Cut], int, object]) -> tuple[list[Span], int]:
    """Spans with scattered block tables, and the number of blocks of all of them."""
    all_cuts, block_size, random = drawn
    sizes = [-(-(cut.cached + cut.computed) // block_size) + cut.spare for cut in all_cuts]
    # One block belongs to nobody; whoever reads it reads garbage.
    blocks = list(range(sum(sizes) + 1))
    random.shuffle(blocks)  # type: ignore[attr-defined]
    spans, token = [], 0
    for cut, size in zip(all_cuts, sizes, strict=True):
        table = [BlockId(blocks.pop()) for _ in range(size)]
        tokens = list(range(token, token + cut.computed))
        token += cut.computed
        spans.append(Span(tokens, cut.cached, table, cut.judged))
    return spans, sum(sizes) + 1


def slot(span: Span, position: int, block_size: int) -> int:
    return span.block_table[position // block_size] * block_size + position % block_size


@given(windows)
def test_flat_rows(drawn: tuple[list[Cut], int, object]) -> None:
    """Catches a row at a wrong position or slot, and judged rows that are not the last ones."""
    spans, _ = spans_from(drawn)
    size = drawn[1]
    layout = lay_out(spans, size, CPU)
    rows = [(i, span.kv_len + j) for i, span in enumerate(spans) for j in range(len(span.tokens))]
    assert layout.tokens.tolist() == list(range(len(rows)))
    assert layout.positions.tolist() == [position for _, position in rows]
    assert layout.slots.tolist() == [slot(spans[i], position, size) for i, position in rows]
    judged = [
        row
        for row, (i, position) in enumerate(rows)
        if position >= spans[i].context_len - spans[i].num_judged
    ]
    assert layout.judged.tolist() == judged
    for i, span in enumerate(spans):
        first = layout.first_token[i]
        assert rows[first] == (i, span.kv_len)
        if span.num_judged:
            first_judged = rows[judged[layout.first_row[i]]]
            assert first_judged == (i, span.context_len - span.num_judged)
        else:
            assert layout.first_row[i] == -1


def seen_slots(group: AttentionGroup, span: int, column: int) -> list[int]:
    """The slots a row of a group attends to."""
    slots = group.slots.view(group.num_spans, -1)[span]
    if group.mask is None:
        return slots.tolist()
    return slots[group.mask[span, 0, column]].tolist()


@given(windows)
def test_every_row_sees_its_own_past_and_nothing_else(
    drawn: tuple[list[Cut], int, object],
) -> None:
    """Catches a mask off by one, a row lost in grouping, padding that reaches other requests."""
    spans, _ = spans_from(drawn)
    size = drawn[1]
    layout = lay_out(spans, size, CPU)
    rows = [(i, span.kv_len + j) for i, span in enumerate(spans) for j in range(len(span.tokens))]
    met: list[int] = []
    for group in layout.groups:
        flat = group.rows.tolist()
        real = range(len(flat)) if group.scatter is None else group.scatter.tolist()
        for index in real:
            met.append(flat[index])
            i, position = rows[flat[index]]
            past = [slot(spans[i], each, size) for each in range(position + 1)]
            assert seen_slots(group, index // group.width, index % group.width) == past
        for j in range(group.num_spans):
            i = rows[flat[j * group.width]][0]
            own = {slot(spans[i], each, size) for each in range(spans[i].context_len)}
            padded = set(group.slots.view(group.num_spans, -1)[j].tolist())
            assert padded <= own, "a masked slot of another request can still spread its NaN"
    assert sorted(met) == list(range(len(rows)))


def test_a_long_prompt_does_not_pad_its_mates() -> None:
    """Catches decoding requests that are padded to the width of a prompt chunk."""
    lens = [(0, 200), *((150 + i, 1) for i in range(8)), (3, 2)]
    spans = [
        Span([0] * computed, cached, [BlockId(10 * i + b) for b in range(10)], num_judged=1)
        for i, (cached, computed) in enumerate(lens)
    ]
    groups = lay_out(spans, 32, CPU).groups
    assert len(groups) == 2
    assert sorted(group.width for group in groups) == [2, 200]


@given(windows, st.integers(0, 1 << 30))
def test_paged_attention_is_full_attention(drawn: tuple[list[Cut], int, object], seed: int) -> None:
    """Catches a wrong scale, head, mask or slot, and garbage of foreign slots that leaks in."""
    spans, num_blocks = spans_from(drawn)
    size = drawn[1]
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    pool = KVPool.empty((1, KV_HEADS, HEAD_DIM), num_blocks, size, torch.float64, CPU)
    pool.keys.fill_(math.nan)
    pool.values.fill_(math.nan)
    whole = [
        (
            randn(s.context_len, HEADS, HEAD_DIM),
            randn(s.context_len, KV_HEADS, HEAD_DIM),
            randn(s.context_len, KV_HEADS, HEAD_DIM),
        )
        for s in spans
    ]
    for span, (_, keys, values) in zip(spans, whole, strict=True):
        cached = torch.tensor([slot(span, i, size) for i in range(span.kv_len)], dtype=torch.int64)
        pool.write(0, cached, keys[: span.kv_len], values[: span.kv_len])
    new = [
        torch.cat([parts[which][span.kv_len :] for span, parts in zip(spans, whole, strict=True)])
        for which in range(3)
    ]
    attended = PagedAttention(pool, lay_out(spans, size, CPU)).attend(0, *new)
    for span, (queries, keys, values), rows in zip(
        spans, whole, attended.split([len(span.tokens) for span in spans]), strict=True
    ):
        expected = FullCausal([span.context_len]).attend(0, queries, keys, values)
        torch.testing.assert_close(rows, expected[span.kv_len :], rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_logits_do_not_depend_on_chunks_or_mates(chunk: int) -> None:
    """Catches keys that are rotated, written or read at the wrong position when a prompt is cut."""
    decoder = tiny_decoder(tiny_spec(), seed=5)
    target = TorchTarget(decoder, num_blocks=24, block_size=4)
    texts = [[(7 * i * i + 3 * start) % 64 for i in range(17)] for start in range(3)]
    tables = [[BlockId(b) for b in range(start, 18, 3)] for start in range(3)]
    for start in range(0, 17, chunk):
        spans = [
            Span(text[start : start + chunk], start, table, num_judged=1)
            for text, table in zip(texts, tables, strict=True)
        ]
        logits = target.score_spans(spans).logits
        end = min(start + chunk, 17)
        with torch.inference_mode():
            for row, text in zip(logits, texts, strict=True):
                tokens, cache = torch.tensor(text[:end]), FullCausal([end])
                hidden, _ = decoder(tokens, torch.arange(end), cache)
                torch.testing.assert_close(row, decoder.logits(hidden[-1:])[0], rtol=0, atol=1e-10)
