"""The bits of a row depend on its tokens and positions alone.

One sequence is computed whole, by itself, on one thread. Then the same sequence is computed in
drawn pieces, in drawn blocks, beside other sequences: logits and features must be equal bit by bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.testing.tiny import tiny_spec
from tests.native.machines import (
    TinyModel,
    machine,
    require_native,
    span_of,
    text,
    whole,
    wide_spec,
)
from tests.unchecked import unchecked

TAPS = (-1, 0, 1)
LENGTH = 600  # More than two softmax chunks.
MATE_TABLE = tuple(range(40))

MODELS = {
    "llama-q4": TinyModel(wide_spec("llama"), weight_format="q4"),
    "qwen2-q8": TinyModel(wide_spec("qwen2", num_heads=14), weight_format="q8"),
    "qwen3-f32": TinyModel(tiny_spec("qwen3", tied_head=False), weight_format="f32"),
    "llama-bf16": TinyModel(wide_spec("llama", head_dim=24), weight_format="bf16"),
}


@dataclass(frozen=True)
class Way:
    """How to compute the sequence."""

    pieces: tuple[int, ...]
    block_size: int
    shuffle: int
    num_mates: int
    threads: int


ways = st.builds(
    Way,
    pieces=st.lists(st.integers(1, 64) | st.sampled_from([1, 1, 8, 255, 256, 257]), min_size=1).map(
        tuple
    ),
    block_size=st.sampled_from([16, 32, 48]),
    shuffle=st.integers(0, 1000),
    num_mates=st.integers(0, 3),
    threads=st.integers(1, 2),
)


def computed(model: TinyModel, way: Way, tokens: Sequence[int], isa: str = "auto") -> list[Tensor]:
    """Logits and features of every token, computed that way."""
    num_blocks = -(-LENGTH // way.block_size)
    generator = torch.Generator().manual_seed(way.shuffle)
    table = (torch.randperm(num_blocks, generator=generator) + len(MATE_TABLE)).tolist()
    target = model.target(machine(way.threads, isa), num_blocks + len(MATE_TABLE), way.block_size)
    mates = text(64, model.spec.vocab_size, way.shuffle)
    logits, features = [], []
    start, turn = 0, 0
    while start < len(tokens):
        piece = tokens[start : start + way.pieces[turn % len(way.pieces)]]
        own = span_of(piece, start, table, len(piece))
        others = [
            span_of(mates[: 1 + 7 * i + turn % 5], 0, MATE_TABLE[10 * i :], i)
            for i in range(way.num_mates)
        ]
        place = way.shuffle % (way.num_mates + 1)
        scored = target.score_spans([*others[:place], own, *others[place:]], TAPS)
        assert scored.features is not None
        row = sum(span.num_judged for span in others[:place])
        token = sum(len(span.tokens) for span in others[:place])
        logits.append(scored.logits[row : row + len(piece)].clone())
        features.append(scored.features[token : token + len(piece)].clone())
        start, turn = start + len(piece), turn + 1
    return [torch.cat(logits), torch.cat(features)]


ALONE = Way(pieces=(LENGTH,), block_size=16, shuffle=0, num_mates=0, threads=1)


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12)
@given(way=ways)
@unchecked()
def test_bits_do_not_depend_on_the_way(name: str, way: Way) -> None:
    """Catches a sum whose order follows the window, the blocks, the mates or the threads."""
    model = MODELS[name]
    tokens = text(LENGTH, model.spec.vocab_size)
    for ours, expected in zip(computed(model, way, tokens), _alone(name), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("name", MODELS)
def test_bits_do_not_depend_on_the_instruction_set(name: str) -> None:
    """Catches a kernel that contracts, reorders or rounds differently from the others."""
    from outrider.native.availability import instruction_sets

    model = MODELS[name]
    tokens = text(LENGTH, model.spec.vocab_size)
    way = Way(pieces=(64, 1, 7), block_size=16, shuffle=3, num_mates=1, threads=2)
    for isa in instruction_sets():
        for ours, expected in zip(computed(model, way, tokens, isa), _alone(name), strict=True):
            assert torch.equal(ours, expected), isa


def test_a_cached_prefix_gives_the_same_bits() -> None:
    """Catches keys that depend on whether their block was written by this sequence."""
    model = MODELS["llama-q4"]
    tokens = text(100, model.spec.vocab_size)
    target = model.target(machine(2))
    cold = target.score_spans([whole(tokens, range(7))]).logits.clone()
    # Another sequence shares the first four blocks and continues in blocks of its own.
    shared = [0, 1, 2, 3, 20, 21, 22]
    hit = target.score_spans([span_of(tokens[64:], 64, shared, 36)]).logits
    assert torch.equal(hit, cold[64:])


def test_what_a_row_must_not_see_does_not_matter() -> None:
    """Catches masked positions that still count, such as zero times the NaN of a rejected draft."""
    model = MODELS["llama-bf16"]
    tokens = text(20, model.spec.vocab_size)
    target = model.target(machine(1))
    expected = target.score_spans([whole(tokens[:5], [0, 1])]).logits.clone()
    nowhere = torch.full((15, model.spec.hidden_size), torch.nan)
    target.runner.write_context([span_of(tokens[5:], 5, [0, 1], 0)], nowhere)
    assert torch.equal(target.score_spans([span_of(tokens[:5], 0, [0, 1], 5)]).logits, expected)
    again = target.score_spans([span_of(tokens[2:5], 2, [0, 1], 3)]).logits
    assert torch.equal(again, expected[2:])


_known: dict[str, Any] = {}


def _alone(name: str) -> list[Tensor]:
    if name not in _known:
        model = MODELS[name]
        _known[name] = computed(model, ALONE, text(LENGTH, model.spec.vocab_size))
    expected: list[Tensor] = _known[name]
    return expected
