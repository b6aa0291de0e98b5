"""What users and models get wrong: refused in a sentence, or failing one request and no other."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import FinishReason
from outrider.core.request import SamplingParams, VerifyRule
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.engine.engine import Engine
from outrider.errors import CapacityError, ConfigError, RequestRejected
from outrider.models.weights import EMBEDDING
from outrider.testing.scripted import (
    TinyEngine,
    random_drafter,
    requests_of,
    run_all,
    table_drafter,
    tiny_engine,
    told_drafter,
)
from outrider.testing.table_target import SeededTable, Table, TableTarget
from outrider.testing.tiny import tiny_spec
from outrider.verify.matching import EMPTY_MASK, NOT_NUMBERS
from tests.backends import BACKENDS, Tiny, backend_of

VOCAB = 6
TABLE = SeededTable(VOCAB, seed=1)
ROOMY = {"num_blocks": 32, "block_size": 4, "max_context_len": 24}


def engine_of(table: Table = TABLE, drafter: Drafter | None = None, **options: Any) -> Engine:
    made = TinyEngine(**{**ROOMY, **options})
    target = TableTarget(table, VOCAB, num_blocks=made.num_blocks, block_size=made.block_size)
    return tiny_engine(target, drafter, made)


def output(prompt: tuple[int, ...], **options: Any) -> Tokens:
    (sequence,) = run_all(engine_of(), requests_of([prompt], SamplingParams(**options)))
    return sequence


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ((), "the prompt is empty"),
        ((0, VOCAB), "prompt token 6 is outside the vocabulary of 6 ids"),
        ((-1,), "prompt token -1 is outside"),
        ((0,) * 24, "the prompt has 24 tokens, but the context holds 24"),
        ((0,) * 99, "shorten the prompt"),
    ],
)
def test_prompts_that_cannot_be_served(prompt: tuple[int, ...], says: str) -> None:
    """Catches a crash, or a request that is queued and never answered."""
    engine = engine_of()
    with pytest.raises(RequestRejected, match=says):
        engine.add(requests_of([prompt], SamplingParams())[0])
    assert not engine.has_work


def test_the_shortest_and_the_longest_prompt() -> None:
    """Catches limits that are off by one: one token to read, one place for the answer."""
    assert output((3,), max_tokens=1).num_output == 1
    longest = output((3,) * 23, max_tokens=9)
    assert longest.num_output == 1
    assert longest.finish is not None
    assert longest.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, but it must be an integer of 1 or more"),
        ({"max_tokens": -3}, "max_tokens is -3"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5, but it must be at most max_tokens"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"temperature": -0.1}, "temperature is -0.1, but it must be 0 or more"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0.0, but it must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1, but it must be between -2 and 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"logit_bias": {0: 101.0}}, "logit_bias"),
        ({"logit_bias": {0: math.nan}}, "logit_bias"),
        ({"allowed_token_ids": frozenset()}, "allowed_token_ids"),
        ({"n": 0}, "n is 0"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"max_draft_len": -1}, "max_draft_len is -1"),
        ({"stop": ("",)}, "stop is"),
        ({"temprature": 0.5}, "unknown sampling option 'temprature'; did you mean 'temperature'"),
        ({"best_of": 2}, "unknown sampling option 'best_of'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_out_of_range(options: dict[str, Any], says: str) -> None:
    """Catches a value that is silently clamped, ignored, or found out in the middle of a batch."""
    with pytest.raises(RequestRejected, match=says):
        SamplingParams.from_options(options)


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {9: 1.0}},
        {"allowed_token_ids": frozenset({6})},
        {"stop_token_ids": frozenset({7})},
    ],
    ids=str,
)
def test_token_ids_the_vocabulary_does_not_have(options: dict[str, Any]) -> None:
    """Catches an index error in the middle of a step, which would take the batch with it."""
    engine = engine_of()
    with pytest.raises(RequestRejected, match="the vocabulary has ids 0 to 5"):
        engine.add(requests_of([(0,)], SamplingParams(**options))[0])
    assert not engine.has_work


def test_a_request_the_cache_could_never_hold() -> None:
    """Catches a request that waits for ever, and one refused that would have fitted."""
    engine = engine_of(num_blocks=4, max_context_len=None)
    (fits,) = requests_of([(0,) * 8], SamplingParams(max_tokens=8))
    assert run_all(engine, [fits])[0].num_output == 8
    small = engine_of(num_blocks=3)
    with pytest.raises(CapacityError, match="lower max_tokens or raise kv_cache_tokens"):
        small.add(fits)
    assert not small.has_work


def test_an_id_twice() -> None:
    """Catches a second request that takes over the blocks of the first."""
    engine = engine_of()
    (request,) = requests_of([(0,)], SamplingParams())
    engine.add(request)
    with pytest.raises(RequestRejected, match="give every request its own"):
        engine.add(request)


def poisoned(value: float, *, whole_row: bool, at: int = 5) -> Table:
    """A table that is broken behind every prefix of `at` tokens that began with token 0."""

    def table(prefix: tuple[int, ...]) -> torch.Tensor:
        row = TABLE(prefix).clone()
        if prefix[0] == 0 and len(prefix) >= at:
            row[slice(None) if whole_row else 2] = value
        return row

    return table


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy-penalised": {"temperature": 0.0, "presence_penalty": 0.5},
    "matching": {"verify_rule": "matching"},
    "rejection": {"verify_rule": "rejection"},
    "nucleus": {"top_p": 0.9, "min_p": 0.01, "top_k": 5},
    "rejection-nucleus": {"top_p": 0.9, "verify_rule": "rejection"},
}


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "speculating"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("value", "whole_row"),
    [(math.nan, True), (math.nan, False), (math.inf, False), (-math.inf, True)],
    ids=["nan-row", "one-nan", "one-inf", "all-minus-inf"],
)
def test_broken_logits_fail_their_request_alone(
    value: float, whole_row: bool, sampling: str, drafts: bool
) -> None:
    """Catches a token drawn from NaN, and an exception that takes the batch down."""
    params = SamplingParams(max_tokens=8, **SAMPLINGS[sampling])
    listed = requests_of([(1, 2), (0, 3), (4,), (0,)], params)
    drafter = table_drafter(3, SeededTable(VOCAB, seed=9)) if drafts else None
    sound = run_all(engine_of(TABLE, drafter), listed)
    engine = engine_of(poisoned(value, whole_row=whole_row), drafter)
    broken = run_all(engine, listed)
    for index, (sequence, undisturbed) in enumerate(zip(broken, sound, strict=True)):
        if index in (0, 2):
            assert list(sequence.output) == list(undisturbed.output)
            assert sequence.finish == undisturbed.finish
        else:
            assert sequence.finish is not None
            assert sequence.finish.reason is FinishReason.ERROR
            assert sequence.finish.detail == NOT_NUMBERS
            # The tokens before the break were sound and stay.
            assert len(sequence) == 5
            assert list(sequence.output) == list(undisturbed.output)[: sequence.num_output]
    allocator = engine._parts.allocator
    assert allocator.num_free == allocator.num_blocks


@pytest.mark.parametrize("rule", ["matching", "rejection"])
def test_a_mask_that_leaves_nothing(rule: VerifyRule) -> None:
    """Catches a token that the mask forbids, chosen because something had to be."""
    params = SamplingParams(
        max_tokens=8, token_mask=lambda out: set() if len(out) == 2 else None, verify_rule=rule
    )
    engine = engine_of(TABLE, table_drafter(3, SeededTable(VOCAB, seed=9)))
    listed = requests_of([(1, 2), (0, 3)], [params, SamplingParams(max_tokens=8)])
    masked, mate = run_all(engine, listed)
    assert masked.finish is not None
    assert masked.finish.detail == EMPTY_MASK
    assert masked.num_output == 2
    assert mate.num_output == 8


def _raising(output: Sequence[int]) -> list[int]:
    raise LookupError(f"no rule after {len(output)} tokens")


@pytest.mark.parametrize("rule", ["matching", "rejection"])
@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (_raising, "the token mask raised LookupError: no rule after 0 tokens"),
        (lambda _: [VOCAB], "the token mask allows token 6"),
        (lambda _: [-1, 0], "the token mask allows token -1"),
        (lambda _: 3, "the token mask raised TypeError"),
    ],
)
def test_a_broken_mask_fails_its_request_alone(
    rule: VerifyRule, mask: Callable[[Sequence[int]], Any], says: str
) -> None:
    """Catches one user's callback that stops the engine for everybody."""
    engine = engine_of(drafter=random_drafter(3, VOCAB, seed=4))
    sound = SamplingParams(max_tokens=8, seed=2, verify_rule=rule)
    (expected,) = run_all(engine_of(), requests_of([(1, 2)], sound))
    good = requests_of([(1, 2)], sound)[0]
    bad = replace(
        requests_of([(3,)], SamplingParams(token_mask=mask, verify_rule=rule))[0],
        id=RequestId("bad"),
    )
    mates = run_all(engine, [good, bad])
    assert mates[1].finish is not None
    assert mates[1].finish.reason is FinishReason.ERROR
    assert says in str(mates[1].finish.detail)
    if rule == "matching":
        assert mates[0].output == expected.output
    assert len(mates[0].output) == 8


@dataclass(frozen=True)
class Poisoned(Tiny):
    """A token whose embedding is not a number."""

    bad: int = 7

    def tensors(self) -> Mapping[str, torch.Tensor]:
        tensors = dict(super().tensors())
        tensors[EMBEDDING][self.bad] = math.nan
        return tensors


@pytest.mark.parametrize("name", BACKENDS)
def test_a_nan_in_one_cache_does_not_reach_the_others(name: str) -> None:
    """Catches broken keys of another that get into a row, or a row that ignores its own."""
    backend = backend_of(name)
    # With a tied head a NaN embedding would be a NaN logit of every request.
    spec = tiny_spec(max_context_len=64, stop_token_ids=frozenset(), tied_head=False)
    model = Poisoned(spec)
    params = SamplingParams(
        max_tokens=9, temperature=0.7, allowed_token_ids=frozenset({3, 4, 5, 6, 8, 9})
    )
    prompts = [(model.bad, 3), (3, 4, 5, 6), (5,), (6, 4, 3)]
    block_size = 2 if name == "torch" else backend.block_size

    def fresh() -> Engine:
        target = backend.target(model, 32, block_size)
        options = TinyEngine(num_blocks=32, block_size=block_size)
        return tiny_engine(target, random_drafter(3, model.bad), options)

    listed = requests_of(prompts, params)
    together = run_all(fresh(), listed)
    assert together[0].finish is not None
    assert together[0].finish.reason is FinishReason.ERROR
    for sequence, request in list(zip(together, listed, strict=True))[1:]:
        (alone,) = run_all(fresh(), [request])
        assert list(sequence.output) == list(alone.output)
        assert sequence.num_output == 9


@pytest.mark.parametrize("name", BACKENDS)
def test_a_draft_that_is_not_a_number_harms_nobody(name: str) -> None:
    """Catches a request that fails because of a rejected draft's keys and values."""
    backend = backend_of(name)
    spec = tiny_spec(max_context_len=64, stop_token_ids=frozenset(), tied_head=False)
    model = Poisoned(spec)
    params = SamplingParams(max_tokens=9, temperature=0.7, logit_bias={model.bad: -100.0})
    listed = requests_of([(3, 4, 5, 6), (5,)], params)

    def said(drafter: Drafter | None) -> list[list[int]]:
        target = backend.target(model, 32)
        options = TinyEngine(num_blocks=32, block_size=backend.block_size)
        return [
            list(each.output) for each in run_all(tiny_engine(target, drafter, options), listed)
        ]

    plain = said(None)
    outputs = {request.id: [model.bad] * 9 for request in listed}
    assert said(told_drafter(3, outputs, spec.vocab_size)) == plain
    half_right = {
        request.id: [token if i % 3 < 2 else model.bad for i, token in enumerate(output)]
        for request, output in zip(listed, plain, strict=True)
    }
    assert said(told_drafter(4, half_right, spec.vocab_size)) == plain
    assert all(len(output) == 9 for output in plain)


def test_taps_of_a_table_are_refused() -> None:
    """Catches a drafter that wants features and silently gets none."""
    drafter = random_drafter(2, VOCAB)
    drafter.taps = (0,)
    engine = engine_of(TABLE, drafter)
    engine.add(requests_of([(0,)], SamplingParams())[0])
    with pytest.raises(ConfigError, match="no layers"):
        engine.step()
