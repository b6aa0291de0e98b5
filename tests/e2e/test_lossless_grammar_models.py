"""Structured outputs on networks, both backends: every kind of drafter, tight memory, streams."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams, StructuredOutputsParams
from outrider.drafters.base import Drafter
from outrider.drafters.block.drafter import BlockDrafter
from outrider.drafters.combined import CombinedDrafter, cheap_drafts
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.engine.llm import LLM
from outrider.errors import RequestFailed, RequestRejected
from outrider.kvcache.blocks import BlockAllocator
from outrider.testing.scripted import (
    TinyEngine,
    random_drafter,
    requests_of,
    run_all,
    tiny_engine,
    told_drafter,
)
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.testing.tiny_block import tiny_block, tiny_block_config
from tests import harness, oracle
from tests.backends import Backend, Tiny, backend_of
from tests.e2e.test_lossless_grammar import EXPRESSIONS, assert_form
from tests.grammars import END, VOCAB, compiler, form, token_mask, tokenizer
from tests.tables import table_of_texts
from tests.unchecked import unchecked

harness.require_module("llguidance")

SPEC = tiny_spec(vocab_size=VOCAB, max_context_len=64)
TARGET, DRAFT = Tiny(SPEC, seed=1), Tiny(SPEC, seed=1, noise=0.2)
PROMPTS = [(5,), (3, 7, 2, 9, 3, 7, 2, 9), (3, 7, 2, 9, 3, 7, 2, 9, 4, 11), (8, 2)]
NAMES = list(EXPRESSIONS)
EXPRESSION_OF = {RequestId(f"r{i}"): EXPRESSIONS[NAMES[i % len(NAMES)]] for i in range(8)}
REQUESTS = requests_of(
    [*PROMPTS, *PROMPTS],
    [
        SamplingParams(
            max_tokens=14, temperature=0.8 * (i // 4), structured_outputs=form(expression)
        )
        for i, expression in enumerate(EXPRESSION_OF.values())
    ],
)


def told(backend: Backend, listed: Sequence[Request]) -> dict[RequestId, list[int]]:
    """What the oracle says, with masks of its own."""
    logits = backend.next_logits(TARGET)
    plain = [
        replace(
            each,
            params=replace(
                each.params,
                structured_outputs=None,
                token_mask=token_mask(EXPRESSION_OF[each.id]),
            ),
        )
        for each in listed
    ]
    return {each.id: oracle.decode(logits, each, frozenset({END})) for each in plain}


def engine_of(backend: Backend, drafter: Drafter | None, **options: Any) -> Engine:
    made = TinyEngine(
        grammars=compiler(), decoder=tokenizer(), block_size=backend.block_size, **options
    )
    return tiny_engine(backend.target(TARGET, made.num_blocks, made.block_size), drafter, made)


def draft_model(backend: Backend) -> Drafter:
    return DraftModelDrafter(
        backend.target(DRAFT, 64),
        BlockAllocator(64, backend.block_size),
        3,
        target_vocab_size=VOCAB,
        stop_tokens=SPEC.stop_token_ids,
    )


def block_drafter(backend: Backend) -> Drafter:
    config = tiny_block_config(SPEC)
    size = backend.block_size
    runner = backend.block_runner(TARGET, tiny_block(config, seed=4), 256, size)
    return BlockDrafter(runner, config, num_blocks=256, block_size=size)


def combined(backend: Backend) -> Drafter:
    texts = [[*each.prompt, *told(backend, REQUESTS)[each.id]] for each in REQUESTS[::2]]
    table = table_of_texts(texts, vocab_size=VOCAB)
    return CombinedDrafter(
        5,
        drafts=cheap_drafts(table),
        network=draft_model(backend),
        network_cost=0.2,
        min_survival=0.05,
    )


DRAFTERS: dict[str, Callable[[Backend], Drafter | None]] = {
    "plain": lambda backend: None,
    "ngram": lambda backend: NgramDrafter(4, min_len=1, max_len=3),
    "suffix": lambda backend: SuffixDrafter(5, min_survival=0.0, shared=None),
    "draft-model": draft_model,
    "dspark": block_drafter,
    "combined": combined,
    "random": lambda backend: random_drafter(4, VOCAB, seed=3),
    "half-right": lambda backend: told_drafter(
        4, told(backend, REQUESTS), VOCAB, lambda position: position % 3 > 0
    ),
}


@pytest.fixture(params=["torch", "native"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param)


@pytest.mark.parametrize("name", DRAFTERS)
@unchecked()
def test_matching_is_the_oracle(backend: Backend, name: str) -> None:
    """Catches masks, pruning or matcher state that change a token, with any drafter."""
    wanted = told(backend, REQUESTS)
    for options in ({}, {"num_blocks": 64 // backend.block_size + 3}, {"max_num_seqs": 3}):
        engine = engine_of(backend, DRAFTERS[name](backend), **options)
        for sequence in run_all(engine, REQUESTS):
            assert list(sequence.output) == wanted[sequence.id], sequence.id
            assert_form(sequence, EXPRESSION_OF[sequence.id])


@pytest.mark.parametrize("name", ["draft-model", "dspark", "combined", "random"])
@unchecked()
def test_rejection_keeps_the_form(backend: Backend, name: str) -> None:
    """Catches a token that no mask saw; at temperature 0 the output is the oracle's."""
    wanted = told(backend, REQUESTS)
    engine = engine_of(backend, DRAFTERS[name](backend), rule="rejection")
    for sequence in run_all(engine, REQUESTS):
        assert_form(sequence, EXPRESSION_OF[sequence.id])
        if sequence.params.is_greedy:
            assert list(sequence.output) == wanted[sequence.id]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["x", "yé"]}, "minItems": 1, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "tags", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of single bytes, padded."""
    spec = tiny_spec(vocab_size=262, max_context_len=256)
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", spec, seed=3)


def checked(text: str) -> None:
    """The schema, spelled out."""
    found = json.loads(text)
    assert list(found) == ["name", "tags", "ok"]
    assert isinstance(found["name"], str)
    assert len(found["name"]) <= 6
    assert found["tags"]
    assert set(found["tags"]) <= {"x", "yé"}
    assert isinstance(found["ok"], bool)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@unchecked()
def test_json_through_the_whole_engine(
    backend: Backend, checkpoint: Path, temperature: float
) -> None:
    """Catches a stream, a continuation or a text that differs; the model writes random bytes."""
    plain = LLM(str(checkpoint), **backend.llm_options, is_checked=True)
    spoken = plain.sibling(speculative_config={"method": "suffix"})
    bias = dict.fromkeys(plain.tokenizer.encode('"}]'), 8.0)
    params = SamplingParams(
        temperature=temperature,
        max_tokens=200,
        n=2,
        seed=5,
        logit_bias=bias,
        structured_outputs=StructuredOutputsParams(json=SCHEMA),
    )
    prompts = ["a", '{"name": "a", "tags": ["x"], "ok": true}']
    wanted = plain.generate(prompts, params)
    found = spoken.generate(prompts, params)
    for ours, theirs in zip(wanted, found, strict=True):
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert one.token_ids == other.token_ids
            assert (one.text, one.finish_reason) == (other.text, "stop")
            checked(one.text)
    if temperature:
        assert wanted[0].outputs[0].text != wanted[0].outputs[1].text
    texts = {(i, j): "" for i in range(2) for j in range(2)}
    for index, chunk in spoken.stream(prompts, params):
        texts[index, chunk.index] += chunk.text
    for (i, j), text in texts.items():
        assert text == wanted[i].outputs[j].text
    assert spoken.engine.acceptance.accepted > 0


@unchecked()
def test_what_cannot_be_held_is_refused_or_fails_alone(checkpoint: Path) -> None:
    """Catches a bad form that is queued, and one request that fails with its neighbours."""
    llm = LLM(str(checkpoint), **backend_of("torch").llm_options)
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(a"))
    with pytest.raises(RequestRejected, match="unclosed"):
        llm.generate("a", bad)
    assert not llm.engine.has_work
    held = SamplingParams(
        temperature=0,
        max_tokens=8,
        min_tokens=4,
        structured_outputs=StructuredOutputsParams(choice=("ab",)),
    )
    with pytest.raises(RequestFailed, match=r"prompt 1 failed after 2 tokens: .* no token"):
        llm.generate(["a", "b"], [SamplingParams(max_tokens=3), held])
    assert llm.generate("a", SamplingParams(max_tokens=3))[0].outputs[0].finish_reason == "length"


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@unchecked()
def test_the_default_model(default_model: Path, temperature: float) -> None:
    """Catches a real vocabulary's tokens, or a real model's habits, that the tiny ones lack."""
    plain = LLM(str(default_model), threads=1, max_context_len=512)
    spoken = plain.sibling(speculative_config={"method": "suffix"})
    prompt = plain.chat_prompt(
        [{"role": "user", "content": 'Give me {"name": "Ada", "tags": ["x"], "ok": true} again.'}]
    )
    params = [
        SamplingParams(temperature=temperature, max_tokens=60, seed=i, structured_outputs=each)
        for i, each in enumerate(
            [
                StructuredOutputsParams(json=SCHEMA),
                StructuredOutputsParams(regex=r"(Ada|Bob) is \d{1,3} years old\."),
                StructuredOutputsParams(choice=("yes", "no, never")),
                StructuredOutputsParams(grammar='start: "(" start ")" | "x"{1,3} | /[a-f]{2}/'),
            ]
        )
    ]
    wanted = plain.generate([prompt] * 4, params)
    found = spoken.generate([prompt] * 4, params)
    for ours, theirs in zip(wanted, found, strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        assert ours.outputs[0].text == theirs.outputs[0].text
    checked(wanted[0].outputs[0].text)
    assert wanted[2].outputs[0].text in ("yes", "no, never")
    assert all(each.outputs[0].finish_reason == "stop" for each in wanted[:3])
