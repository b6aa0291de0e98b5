"""What drafters need beyond scoring: blocks without a mask, given context, parts of the head."""

import pytest
import torch
from torch import Tensor

from outrider.models.decoder import Decoder, DecoderLayer
from outrider.models.layers import rotate
from outrider.models.spec import Architecture
from outrider.tensor.shapes import KeysValues, Queries
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

TOLERANCE = 1e-4
TABLE = (3, 0, 2, 1)
CONTEXT, BLOCK = 21, 8


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


class UnmaskedBlock:
    """A cache in plain torch: every query sees all given keys of its layer and all of the block."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        self._keys, self._values = keys, values

    def attend(self, layer: int, queries: Queries, keys: KeysValues, values: KeysValues) -> Queries:
        every_key = torch.cat([self._keys[layer], keys]).repeat_interleave(2, 1)
        every_value = torch.cat([self._values[layer], values]).repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, every_key) * queries.shape[-1] ** -0.5
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), every_value)


def projected(decoder: Decoder, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of every layer, made of `rows` as they are."""
    spec = decoder.spec
    tables = decoder.rotary.tables(torch.arange(len(rows)), torch.float32)
    keys, values = [], []
    for layer in decoder.layers:
        assert isinstance(layer, DecoderLayer)
        heads = layer.attention.qkv(rows).view(len(rows), -1, spec.head_dim)[:, spec.num_heads :]
        own = heads[:, : spec.num_kv_heads]
        if layer.attention.key_norm is not None:
            own = layer.attention.key_norm(own)
        keys.append(rotate(own, *tables))
        values.append(heads[:, spec.num_kv_heads :])
    return keys, values


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@torch.inference_mode()
def test_a_block_sees_the_context_and_all_of_itself(architecture: Architecture) -> None:
    """Catches a causal mask inside the block, context rows that are normed or not turned, and
    inputs that are taken for token ids."""
    model = TinyModel(tiny_spec(architecture))
    decoder = model.reference()
    generator = torch.Generator().manual_seed(3)
    context = torch.randn(CONTEXT, model.spec.hidden_size, generator=generator)
    inputs = torch.randn(BLOCK, model.spec.hidden_size, generator=generator)
    target = model.target(machine(2), kv_type="float32")
    placeholder = [0] * CONTEXT
    target.runner.write_context([span_of(placeholder, 0, TABLE, 0)], context)
    block = span_of(placeholder[:BLOCK], CONTEXT, TABLE, BLOCK)
    normed, features = target.runner.block([block], inputs, (0, 1))

    hidden, cache = inputs, UnmaskedBlock(*projected(decoder, context))
    tables = decoder.rotary.tables(torch.arange(CONTEXT, CONTEXT + BLOCK), torch.float32)
    expected = []
    for layer, network in enumerate(decoder.layers):
        hidden = network(hidden, tables, cache, layer)
        expected.append(hidden)
    assert features is not None
    torch.testing.assert_close(features, torch.cat(expected, -1), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(normed, decoder.norm(hidden), atol=TOLERANCE, rtol=0)
    logits = target.runner.head(normed)
    torch.testing.assert_close(logits, decoder.logits(normed), atol=TOLERANCE, rtol=0)


def test_a_part_of_the_head_gives_the_same_bits() -> None:
    """Catches rows of the head in another order, or rounded a second time."""
    model = TinyModel(wide_spec("llama"), weight_format="q4")
    tokens = text(20, model.spec.vocab_size)
    runner = model.target(machine(1)).runner
    span = whole(tokens, TABLE)
    expected = runner.score([span]).logits
    normed, _ = model.target(machine(1)).runner.block([span_of(tokens, 0, TABLE, 20)])
    some = [5, 76, 0, 33]
    assert torch.equal(runner.head(normed, runner.head_part(some)), runner.head(normed)[:, some])
    assert not torch.equal(runner.head(normed), expected), "the block was masked"


def test_greedy_ids_are_the_arg_max() -> None:
    """Catches ids of another row, or a tie that goes to the higher id."""
    model = TinyModel(wide_spec("qwen2"), weight_format="q8")
    tokens = text(40, model.spec.vocab_size)
    runner = model.target(machine(2)).runner
    spans = [whole(tokens, TABLE), span_of(tokens[:3], 0, [4], 2)]
    logits = runner.score(spans).logits
    assert runner.greedy(spans)[0] == logits.argmax(-1).tolist()


def test_results_outlive_later_calls() -> None:
    """Catches memory that is handed out again while somebody still reads it."""
    model = TinyModel(tiny_spec())
    tokens = text(30, model.spec.vocab_size)
    target = model.target(machine(1))
    first = target.score_spans([whole(tokens, TABLE)], (0,))
    assert first.features is not None
    kept = (first.logits.clone(), first.features.clone())
    for seed in range(5):
        target.score_spans([whole(text(30, model.spec.vocab_size, seed), TABLE)], (0,))
    assert torch.equal(first.logits, kept[0])
    assert torch.equal(first.features, kept[1])
