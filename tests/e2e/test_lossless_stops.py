"""What ends an output, and what is delivered of it, inside and across verify windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import Finish, FinishReason
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.engine.engine import Engine
from outrider.engine.report import Delta
from outrider.testing.scripted import (
    TinyEngine,
    ragged,
    requests_of,
    table_drafter,
    tiny_engine,
    told_drafter,
)
from outrider.testing.table_target import SeededTable, TableTarget
from tests import oracle
from tests.sampling_matrix import proves
from tests.unchecked import unchecked

VOCAB, DRAFT_LEN, BLOCK = 7, 4, 4
# Short tokens and long ones, so that a stop string can lie in one token, or across three.
TEXTS = ("a", "b", "c", "ab", "bca", "<s>", "<e>")
SPECIAL = (5, 6)
END = frozenset({6})
CONTEXT_LEN = 24
TARGET = SeededTable(VOCAB, seed=3, recent=3, sharpness=1.2)
DRAFT = SeededTable(VOCAB, seed=4, recent=1, sharpness=0.5)
PROMPTS = [(0, 3), (1, 2, 1), (4,), (2, 2, 2, 5), (6, 0), (3, 4, 5), (2,), (1, 1, 0)]


class Letters:
    """A tokenizer of seven texts."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(TEXTS[i] for i in ids if not (skip_special_tokens and i in SPECIAL))


@dataclass(frozen=True)
class Ended:
    """What of a run of tokens is delivered, and why it ends."""

    tokens: list[int]
    text: str
    finish: Finish | None


def replay(run: Sequence[int], request: Request, context_len: int = CONTEXT_LEN) -> Ended:
    """Token by token, in plain Python: the first event ends the output."""
    params, text, output = request.params, "", list[int]()
    stops = params.stop_token_ids | (frozenset() if params.ignore_eos else END)
    for token in run:
        output.append(token)
        may_stop = len(output) >= params.min_tokens
        if may_stop and token in stops:
            return Ended(output, text, Finish(FinishReason.STOP, token))
        before = len(text)
        text += Letters().decode([token], skip_special_tokens=params.skip_special_tokens)
        found = [(text.find(s, max(0, before - len(s) + 1)), s) for s in params.stop]
        found = sorted(each for each in found if each[0] >= 0)
        if found and may_stop and len(text) > before:
            return Ended(output, text[: found[0][0]], Finish(FinishReason.STOP, found[0][1]))
        if len(output) >= params.max_tokens or len(request.prompt) + len(output) >= context_len:
            return Ended(output, text, Finish(FinishReason.LENGTH))
    return Ended(output, text, None)


STOPS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one-letter": {"stop": ("c",)},
    "across-tokens": {"stop": ("abab", "aa")},
    "inside-a-token": {"stop": ("bc",)},
    "nested": {"stop": ("bcab", "ca")},
    "special-text": {"stop": ("<s>",), "skip_special_tokens": False},
    "skipped-text": {"stop": ("<s>",), "skip_special_tokens": True},
    "token": {"stop_token_ids": frozenset({1, 5})},
    "token-and-text": {"stop_token_ids": frozenset({0}), "stop": ("ca",)},
    "no-end-of-text": {"ignore_eos": True},
    "no-end-but-a-token": {"ignore_eos": True, "stop_token_ids": frozenset({6})},
    "not-before": {"min_tokens": 4, "stop": ("a",)},
    "not-before-any": {"min_tokens": 6, "stop": ("c",), "stop_token_ids": frozenset({1})},
    "context": {"max_tokens": 60, "ignore_eos": True},
    **{f"max-{n}": {"max_tokens": n, "ignore_eos": True} for n in range(1, DRAFT_LEN + 3)},
}
every_stop = pytest.mark.parametrize("name", STOPS)


def requests(name: str, **more: Any) -> list[Request]:
    """The requests of a case, half of them greedy."""
    params = [
        SamplingParams(
            **{"max_tokens": 16, "temperature": float(i % 2), "logprobs": 2, **STOPS[name], **more}
        )
        for i in range(len(PROMPTS))
    ]
    return requests_of(PROMPTS, params)


def engine_of(drafter: Drafter | None, rule: VerifyRule = "matching") -> Engine:
    target = TableTarget(TARGET, VOCAB, num_blocks=64, block_size=BLOCK, stop_token_ids=END)
    options = TinyEngine(
        rule=rule,
        num_blocks=64,
        block_size=BLOCK,
        max_context_len=CONTEXT_LEN,
        decoder=Letters(),
    )
    return tiny_engine(target, drafter, options)


def run(engine: Engine, listed: Sequence[Request]) -> list[tuple[Tokens, list[Delta]]]:
    """Run the requests; what each delivered in the end, and step by step."""
    sequences = [engine.add(request) for request in listed]
    deltas: dict[str, list[Delta]] = {request.id: [] for request in listed}
    while engine.has_work:
        for delta in engine.step().deltas:
            deltas[delta.request_id].append(delta)
    return [(sequence, deltas[sequence.id]) for sequence in sequences]


def ended(sequence: Tokens) -> Ended:
    return Ended(list(sequence.output), sequence.text, sequence.finish)


def check_delivery(sequence: Tokens, deltas: Sequence[Delta]) -> None:
    """The deltas add up to the result, and every token has its true log-probabilities."""
    assert "".join(delta.text for delta in deltas) == sequence.text
    assert [t for delta in deltas for t in delta.tokens] == list(sequence.output)
    assert [o for delta in deltas for o in delta.origins] == sequence.origins
    assert [entry for delta in deltas for entry in delta.logprobs] == sequence.logprobs
    assert [delta.finish for delta in deltas][-1] == sequence.finish
    assert len(sequence.origins) == len(sequence.logprobs) == sequence.num_output
    for index, entry in enumerate(sequence.logprobs):
        row = TARGET(tuple(sequence.tokens[: sequence.num_prompt + index]))
        assert entry.token == sequence.output[index]
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-12)
        order = torch.sort(row, descending=True, stable=True)
        assert [token for token, _ in entry.top] == order.indices[:2].tolist()
        assert [v for _, v in entry.top] == pytest.approx(order.values[:2].tolist(), abs=1e-12)
        assert entry.rank == 1 + int((row > row[entry.token]).sum())


def expected(listed: Sequence[Request]) -> dict[RequestId, list[int]]:
    """What would be said if no text ended it."""
    return {each.id: oracle.decode(TARGET, each, END, CONTEXT_LEN) for each in listed}


@every_stop
@unchecked()
@proves("plain", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs")
@proves("plain", "skip_special_tokens", "context limit", "stream")
def test_plain(name: str) -> None:
    """Catches a stop rule that is wrong without any speculation."""
    listed = requests(name)
    runs = expected(listed)
    for request, (sequence, deltas) in zip(listed, run(engine_of(None), listed), strict=True):
        assert ended(sequence) == replay(runs[request.id], request)
        check_delivery(sequence, deltas)


DRAFTERS: dict[str, Callable[[dict[RequestId, list[int]]], Drafter]] = {
    "all-right": lambda runs: told_drafter(DRAFT_LEN, runs, VOCAB),
    "half-right": lambda runs: told_drafter(DRAFT_LEN, runs, VOCAB, lambda at: at % 3 > 0),
    "ragged": lambda runs: ragged(table_drafter(DRAFT_LEN, TARGET)),
}


@every_stop
@pytest.mark.parametrize("drafter", DRAFTERS)
@unchecked()
@proves("matching", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs")
@proves("matching", "skip_special_tokens", "context limit", "stream")
def test_matching(name: str, drafter: str) -> None:
    """Catches tokens, text or log-probabilities behind the event that ended the output."""
    listed = requests(name)
    # The drafter is told what comes after the end, too: it must not be believed.
    beyond = expected(requests(name, max_tokens=40, stop_token_ids=frozenset(), ignore_eos=True))
    runs = expected(listed)
    told = {i: [*own, *beyond[i][len(own) :]] for i, own in runs.items()}
    engine = engine_of(DRAFTERS[drafter](told))
    for request, (sequence, deltas) in zip(listed, run(engine, listed), strict=True):
        assert ended(sequence) == replay(runs[request.id], request)
        check_delivery(sequence, deltas)
    assert engine.acceptance.delivered <= engine.acceptance.emitted


@every_stop
@pytest.mark.parametrize("draft", [TARGET, DRAFT], ids=["all-accepted", "some-accepted"])
@unchecked()
@proves("rejection", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
@proves("rejection", "logprobs", "skip_special_tokens", "context limit", "stream")
def test_rejection(name: str, draft: SeededTable) -> None:
    """Catches the same under rejection: no event may lie before the last token, one must lie there.

    Greedy requests have one right answer under any rule. A drafter that is the target is accepted
    always, so that every event falls inside a window.
    """
    listed = requests(name)
    runs = expected(listed)
    engine = engine_of(table_drafter(DRAFT_LEN, draft), "rejection")
    for request, (sequence, deltas) in zip(listed, run(engine, listed), strict=True):
        assert ended(sequence) == replay(list(sequence.output), request)
        check_delivery(sequence, deltas)
        if request.params.is_greedy:
            assert ended(sequence) == replay(runs[request.id], request)
    acceptance = engine.acceptance
    # The drafter holds no stop token back, so before min_tokens its law is another one.
    if draft is TARGET and "min_tokens" not in STOPS[name]:
        assert acceptance.accepted == acceptance.verified


@unchecked()
def test_the_cases_end_in_every_way() -> None:
    """Catches cases that all end by max_tokens, so that no stop rule is ever tried."""
    reasons: dict[str, set[object]] = {}
    for name in STOPS:
        listed = requests(name)
        runs = expected(listed)
        ends = [replay(runs[each.id], each).finish for each in listed]
        reasons[name] = {end.detail for end in ends if end is not None}
    assert {"c"} <= reasons["one-letter"]
    assert {"abab", "aa"} & reasons["across-tokens"]
    assert {"bc"} <= reasons["inside-a-token"]
    assert {"ca"} <= reasons["nested"]
    assert {"<s>"} <= reasons["special-text"]
    assert "<s>" not in reasons["skipped-text"]
    assert {1, 5} <= reasons["token"]
    assert {0, "ca"} <= reasons["token-and-text"]
    assert 6 not in reasons["no-end-of-text"]
    assert 6 in reasons["no-end-but-a-token"]
    assert reasons["context"] == {None}
    assert 6 in reasons["nothing"]


@pytest.mark.parametrize("rule", ["matching", "rejection"])
@unchecked()
def test_nothing_behind_the_end_stays_cached(rule: VerifyRule) -> None:
    """Catches drafts behind a stop that are accepted, cut, and then served to the next request."""
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    longer = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    told = expected(requests_of(PROMPTS, longer))
    engine = engine_of(told_drafter(DRAFT_LEN, told, VOCAB), rule)
    first = run(engine, requests_of(PROMPTS, params))
    prompts = [(*prompt, *told[RequestId(f"r{i}")][:12]) for i, prompt in enumerate(PROMPTS)]
    again = run(engine, requests_of(prompts, params))
    for (before, _), (after, _) in zip(first, again, strict=True):
        assert after.num_cached_prompt == (len(before) - 1) // BLOCK * BLOCK
    assert any(after.num_cached_prompt for after, _ in again)


@pytest.mark.parametrize("rule", ["matching", "rejection"])
@pytest.mark.parametrize("max_tokens", range(1, DRAFT_LEN + 3))
@unchecked()
def test_no_more_is_verified_than_can_be_delivered(rule: VerifyRule, max_tokens: int) -> None:
    """Catches drafts whose acceptance could not be used: the last token needs none."""
    engine = engine_of(table_drafter(DRAFT_LEN, TARGET), rule)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for sequence, _ in run(engine, requests_of(PROMPTS, params)):
        assert sequence.num_output == max_tokens
        assert sequence.acceptance.emitted == sequence.acceptance.delivered
