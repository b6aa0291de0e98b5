"""Requests side by side: seeds, rules, draft lengths of their own, continuations, aborts."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import FinishReason, Origin
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.drafters.base import Drafter
from outrider.engine.continuation import continuation_seed
from outrider.engine.engine import Engine
from outrider.engine.llm import LLM
from outrider.errors import ConfigError, RequestRejected
from outrider.kvcache.blocks import BlockAllocator
from outrider.models.checkpoint import open_checkpoint
from outrider.schedule.lengths import BatchShape
from outrider.schedule.search import Survival
from outrider.testing.scripted import (
    TinyEngine,
    ragged,
    requests_of,
    run_all,
    table_drafter,
    tiny_engine,
)
from outrider.testing.table_target import SeededTable, TableTarget
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests import oracle
from tests.backends import BACKENDS, backend_of
from tests.sampling_matrix import proves
from tests.unchecked import unchecked

VOCAB, DRAFT_LEN = 8, 4
TARGET = SeededTable(VOCAB, seed=5, sharpness=1.5)
DRAFT = SeededTable(VOCAB, seed=6, sharpness=1.0)
PROMPTS = [(1, 2, 3, 4, 5, i, i + 1) for i in range(6)]
RULES: tuple[VerifyRule, ...] = ("matching", "rejection")
both_rules = pytest.mark.parametrize("rule", RULES)


def engine_of(drafter: Drafter | None = None, **options: Any) -> Engine:
    made = TinyEngine(**{"num_blocks": 96, **options})
    target = TableTarget(TARGET, VOCAB, num_blocks=made.num_blocks, block_size=made.block_size)
    return tiny_engine(target, drafter, made)


def drafter() -> Drafter:
    return table_drafter(DRAFT_LEN, DRAFT)


def outputs(engine: Engine, listed: Sequence[Request]) -> dict[str, list[int]]:
    return {each.id: list(each.output) for each in run_all(engine, listed)}


def truth(listed: Sequence[Request]) -> dict[str, list[int]]:
    return {each.id: oracle.decode(TARGET, each) for each in listed}


@pytest.mark.parametrize("rule", ["plain", *RULES])
@unchecked()
@proves("plain", "seed")
@proves("matching", "seed")
@proves("rejection", "seed")
def test_a_seed_fixes_the_output_whoever_else_is_served(rule: str) -> None:
    """Catches noise that depends on batch mates, on the order of arrival or on the engine."""
    speculates = rule != "plain"
    params = [SamplingParams(max_tokens=9, seed=100 + i) for i in range(6)]
    listed = requests_of(PROMPTS, params)

    def fresh() -> Engine:
        rules: Any = rule if speculates else "matching"
        return engine_of(drafter() if speculates else None, rule=rules)

    together = outputs(fresh(), listed)
    assert outputs(fresh(), listed[::-1]) == together
    alone: dict[str, list[int]] = {}
    for request in listed:
        alone |= outputs(fresh(), [request])
    assert alone == together
    other = requests_of([PROMPTS[0]] * 6, params)
    assert len({tuple(run) for run in outputs(fresh(), other).values()}) == 6
    if rule != "rejection":
        assert together == truth(listed)


@unchecked()
@proves("matching", "verify_rule")
@proves("rejection", "verify_rule")
def test_rules_mixed_in_one_batch() -> None:
    """Catches a rule that is read from the engine, or from a batch mate, instead of the request."""
    rules: list[VerifyRule | None] = [None, "rejection", "matching", "rejection", None, "matching"]
    for engine_rule in RULES:
        params = [SamplingParams(max_tokens=12, verify_rule=rule) for rule in rules]
        listed = requests_of(PROMPTS, params)
        mixed = outputs(engine_of(drafter(), rule=engine_rule), listed)
        alone = {
            rule: outputs(
                engine_of(drafter(), rule=rule),
                requests_of(PROMPTS, SamplingParams(max_tokens=12)),
            )
            for rule in RULES
        }
        assert alone["matching"] == truth(listed) != alone["rejection"]
        for request, rule in zip(listed, rules, strict=True):
            assert mixed[request.id] == alone[rule or engine_rule][request.id]


@unchecked()
@proves("plain", "verify_rule")
def test_without_drafts_rejection_draws_from_the_target() -> None:
    """Catches a rule that changes what is possible when there is nothing to reject."""
    params = SamplingParams(max_tokens=6, verify_rule="rejection", top_k=2)
    for sequence in run_all(engine_of(), requests_of(PROMPTS, params)):
        assert set(sequence.origins) == {Origin.TARGET}
        for index, token in enumerate(sequence.output):
            row = TARGET(tuple(sequence.tokens[: sequence.num_prompt + index]))
            assert token in row.topk(2).indices.tolist()


@both_rules
@unchecked()
@proves("matching", "max_draft_len")
@proves("rejection", "max_draft_len")
def test_draft_lengths_of_their_own(rule: VerifyRule) -> None:
    """Catches a request that is drafted for although it asked not to be, and mates that suffer."""
    lens = [0, 1, 2, None, 9, 0]
    params = [SamplingParams(max_tokens=12, max_draft_len=length) for length in lens]
    listed = requests_of(PROMPTS, params)
    sequences = run_all(engine_of(drafter(), rule=rule), listed)
    for sequence, length in zip(sequences, lens, strict=True):
        most = DRAFT_LEN if length is None else min(length, DRAFT_LEN)
        acceptance = sequence.acceptance
        assert len(acceptance.verified_at) == most
        assert acceptance.drafted <= most * acceptance.rounds
        assert (set(sequence.origins) == {Origin.TARGET}) == (most == 0)
        if rule == "matching":
            assert list(sequence.output) == truth(listed)[sequence.id]


@unchecked()
@proves("plain", "max_draft_len")
def test_a_draft_length_means_nothing_without_a_drafter() -> None:
    """Catches room or budget that is set aside for drafts that never come."""
    listed = requests_of(PROMPTS, SamplingParams(max_tokens=7, max_draft_len=4))
    assert outputs(engine_of(max_num_batched_tokens=6, max_num_seqs=6), listed) == truth(listed)


@pytest.mark.parametrize("rule", ["plain", *RULES])
@unchecked()
@proves("plain", "abort")
@proves("matching", "abort")
@proves("rejection", "abort")
def test_an_abort_in_the_middle(rule: str) -> None:
    """Catches blocks, drafter state or batch mates that suffer when a request goes away."""
    rules: Any = rule if rule != "plain" else "matching"
    engine = engine_of(drafter() if rule != "plain" else None, rule=rules)
    listed = requests_of(PROMPTS, SamplingParams(max_tokens=14))
    undisturbed = outputs(engine, listed)
    sequences = [engine.add(request) for request in listed]
    for _ in range(2):
        engine.step()
    for victim in (1, 4, 1):
        engine.abort(listed[victim].id)
    while engine.has_work:
        engine.step()
    for index, sequence in enumerate(sequences):
        if index in (1, 4):
            assert sequence.finish is not None
            assert sequence.finish.reason is FinishReason.ABORT
            run = undisturbed[sequence.id]
            assert 0 < sequence.num_output < 14
            assert list(sequence.output) == run[: sequence.num_output]
        else:
            assert list(sequence.output) == undisturbed[sequence.id]
    allocator: BlockAllocator = engine._parts.allocator
    assert allocator.num_free == allocator.num_blocks


@unchecked()
def test_a_waiting_request_can_be_aborted() -> None:
    """Catches an abort that knows running requests only."""
    engine = engine_of(max_num_seqs=1, max_num_batched_tokens=16)
    listed = requests_of(PROMPTS[:3], SamplingParams(max_tokens=5))
    sequences = [engine.add(request) for request in listed]
    engine.step()
    engine.abort(listed[1].id)
    engine.abort(RequestId("nobody"))
    while engine.has_work:
        engine.step()
    assert [each.num_output for each in sequences] == [5, 0, 5]


@both_rules
@unchecked()
def test_preempted_requests_with_rules_lengths_and_seeds_of_their_own(rule: VerifyRule) -> None:
    """Catches state that is lost when a request is read again: its round, its rule, its output."""
    params = [
        SamplingParams(
            max_tokens=20,
            temperature=0.9,
            frequency_penalty=0.5,
            verify_rule="matching" if i % 2 else None,
            max_draft_len=None if i % 3 else 1,
        )
        for i in range(6)
    ]
    listed = requests_of(PROMPTS, params)
    engine = engine_of(
        ragged(drafter()), rule=rule, num_blocks=12, max_num_batched_tokens=13, max_num_seqs=5
    )
    served = outputs(engine, listed)
    assert engine.num_preemptions > 0
    expected = truth(listed)
    for request in listed:
        if (request.params.verify_rule or rule) == "matching":
            assert served[request.id] == expected[request.id]
        assert len(served[request.id]) == 20


class LooksAtTheDraft:
    """A policy that may bias rejection, and says so."""

    anticipating = True

    def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:
        return [len(row) for row in survival]


@unchecked()
def test_an_anticipating_policy_is_refused_with_rejection_only() -> None:
    """Catches a biased pair of rule and policy that is served without a word."""
    engine = engine_of(drafter(), lengths=LooksAtTheDraft())
    listed = requests_of(PROMPTS[:1], SamplingParams(max_tokens=5))
    assert outputs(engine, listed) == truth(listed)
    params = SamplingParams(max_tokens=5, verify_rule="rejection")
    with pytest.raises(RequestRejected, match="length policy"):
        engine.add(requests_of(PROMPTS[:1], params)[0])
    with pytest.raises(ConfigError, match="length policy"):
        engine_of(drafter(), lengths=LooksAtTheDraft(), rule="rejection")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny"
    return str(write_tiny_checkpoint(path, tiny_spec(vocab_size=64), seed=3))


@pytest.fixture(scope="module", params=BACKENDS)
def plain_llm(checkpoint: str, request: pytest.FixtureRequest) -> LLM:
    return LLM(checkpoint, **backend_of(request.param).llm_options, is_checked=True)


def speculating(llm: LLM, **options: Any) -> LLM:
    speculative = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3}
    return llm.sibling(speculative_config=speculative, **options)


TEXT = "one two one two one"


@pytest.fixture(params=["plain", *RULES])
def llm(request: pytest.FixtureRequest, plain_llm: LLM) -> Iterator[LLM]:
    if request.param == "plain":
        yield plain_llm
    else:
        yield speculating(plain_llm, verify_rule=request.param)


def next_logits(llm: LLM, tokens: tuple[int, ...]) -> torch.Tensor:
    return llm.score_tokens(tokens, [0])[0]


@proves("plain", "n")
@proves("matching", "n")
@proves("rejection", "n")
def test_continuations_are_requests_of_their_own(llm: LLM, plain_llm: LLM, checkpoint: str) -> None:
    """Catches continuations that share noise, or a seed that means another thing with n > 1."""
    params = SamplingParams(max_tokens=12, n=3, seed=9, ignore_eos=True)
    (group,) = llm.generate(TEXT, params)
    assert [output.index for output in group.outputs] == [0, 1, 2]
    runs = [output.token_ids for output in group.outputs]
    assert len({tuple(run) for run in runs}) == 3
    (again,) = llm.generate(TEXT, params)
    assert [output.token_ids for output in again.outputs] == runs
    (first,) = llm.generate(TEXT, SamplingParams(max_tokens=12, seed=9, ignore_eos=True))
    assert first.outputs[0].token_ids == runs[0]
    if llm.config.verify_rule == "matching":
        prompt = tuple(plain_llm.tokenizer.encode(TEXT))
        logits = oracle.of_decoder(open_checkpoint(checkpoint).load_decoder(torch.float64))
        if llm.backend == "native":
            logits = partial(next_logits, plain_llm)
        for index, run in enumerate(runs):
            seed = continuation_seed(9, index)
            request = Request(RequestId("r"), prompt, params, seed)
            assert run == oracle.decode(logits, request)


def test_closing_a_stream_frees_its_blocks(llm: LLM) -> None:
    """Catches a consumer who stops reading and leaves a request behind that is served for ever."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    stream = llm.stream([TEXT, TEXT], params)
    next(stream)
    allocator = llm.engine._parts.allocator
    assert allocator.num_free < allocator.num_blocks
    assert isinstance(stream, Generator)
    stream.close()
    assert not llm.engine.has_work
    assert allocator.num_free == allocator.num_blocks


def test_streams_add_up(llm: LLM) -> None:
    """Catches text that is lost, repeated or out of order between a stream and its result."""
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=4, n=2, stop=("zz",), logprobs=1)
    texts: dict[tuple[int, int], str] = {}
    tokens: dict[tuple[int, int], list[int]] = {}
    for group, chunk in llm.stream([TEXT, "abc abc"], params):
        key = (group, chunk.index)
        texts[key] = texts.get(key, "") + chunk.text
        tokens.setdefault(key, []).extend(chunk.token_ids)
        assert len(chunk.logprobs) == len(chunk.token_ids) == len(chunk.origins)
    for group, result in enumerate(llm.generate([TEXT, "abc abc"], params)):
        for output in result.outputs:
            assert texts[group, output.index] == output.text
            assert tokens[group, output.index] == output.token_ids


def test_a_stream_and_a_call_in_the_middle_of_it(plain_llm: LLM) -> None:
    """Catches one call that takes the tokens of another, or trips over them."""
    params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0)
    (whole,) = plain_llm.generate(TEXT, params)
    stream = plain_llm.stream(TEXT, params)
    chunks = [next(stream)[1]]
    (other,) = plain_llm.generate("abc", params)
    assert len(other.outputs[0].token_ids) == 20
    chunks += [chunk for _, chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == whole.outputs[0].text
