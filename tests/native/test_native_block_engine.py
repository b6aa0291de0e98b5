"""The engine with a native block drafter: the tokens of plain decoding, features to the bit."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.drafters.base import Drafter
from outrider.drafters.block.drafter import BlockDrafter
from outrider.tensor.batch import Batch
from outrider.tensor.window import Proposal, Scores, Taps
from outrider.testing.scripted import (
    TinyEngine,
    random_drafter,
    requests_of,
    run_all,
    tiny_engine,
    told_drafter,
)
from tests.native.blocks import TinyBlock
from tests.native.machines import TinyModel, machine, require_native, whole, wide_spec
from tests.unchecked import unchecked

VOCAB = 12
MODEL = TinyModel(wide_spec(vocab_size=VOCAB, max_context_len=96), weight_format="q4")
BLOCK = TinyBlock(MODEL, (("block_size", 5), ("head_dim", 32)), kind="Q4_1")
COMMON = (3, 7, 2, 9, 3, 7, 2, 9, 5, 5, 4, 3, 7, 2, 9, 3, 7)
PROMPTS = [(5,)] + [(*COMMON, *(3 + (i * j) % 9 for j in range(i))) for i in range(1, 9)]
PARAMS = [
    SamplingParams(max_tokens=30 + i, temperature=0.0 if i % 2 else 0.8, ignore_eos=i % 3 > 0)
    for i in range(9)
]
REQUESTS = requests_of(PROMPTS, PARAMS)
ALONE = TinyEngine(block_size=16, prefix_caching=False, max_num_seqs=1)
ENGINES = {
    "roomy": TinyEngine(block_size=16),
    "chunked": TinyEngine(block_size=32, max_num_seqs=9, max_num_batched_tokens=10),
    "tight": TinyEngine(block_size=16, num_blocks=9),
}


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


def block_drafter(options: TinyEngine, threads: int) -> BlockDrafter:
    from outrider.drafters.block.native_runner import NativeBlockRunner, NativeHost

    on = machine(threads)
    host = NativeHost(on, MODEL.native_model(on).weights, MODEL.spec.stop_token_ids)
    blocks, size = options.num_blocks, options.block_size
    runner = NativeBlockRunner(
        BLOCK.checkpoint(), host, num_blocks=blocks, block_size=size, kind=BLOCK.kind
    )
    return BlockDrafter(runner, BLOCK.config, num_blocks=blocks, block_size=size)


def said(
    options: TinyEngine, requests: Sequence[Request], turns: int = 1
) -> dict[RequestId, list[int]]:
    """What the engine says with the block drafter, the last time it is asked."""
    target = MODEL.target(machine(2), options.num_blocks, options.block_size)
    engine = tiny_engine(target, block_drafter(options, 2), options)
    done = []
    for turn in range(turns):
        own = [replace(each, id=RequestId(f"{each.id}-{turn}")) for each in requests]
        done = run_all(engine, own)
    assert engine.acceptance.verified > 0
    assert engine.acceptance.accepted > 0
    assert (engine.num_preemptions > 0) == (options.num_blocks == 9)
    return {RequestId(each.id.rpartition("-")[0]): list(each.output) for each in done}


def plainly(requests: Sequence[Request]) -> dict[RequestId, list[int]]:
    engine = tiny_engine(MODEL.target(machine(1), 256, 16), None, ALONE)
    return {each.id: list(each.output) for each in run_all(engine, requests)}


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES.keys())
@unchecked()
def test_drafting_changes_no_token(options: TinyEngine) -> None:
    """Catches drafts, preemption, chunks or a second turn on cached blocks that change a token."""
    turns = 2 if options.num_blocks > 9 else 1
    assert said(options, REQUESTS, turns) == plainly(REQUESTS)


@unchecked()
def test_continuations_of_one_prompt() -> None:
    """Catches context in a shared block that one continuation writes over for the other."""
    requests = [
        Request(RequestId(f"n{i}"), tuple(COMMON * 2), PARAMS[0], seed=i, index=i) for i in range(2)
    ]
    assert said(ENGINES["roomy"], requests, 2) == plainly(requests)


@unchecked()
def test_greedy_requests_under_rejection() -> None:
    """Catches chance where there is none."""
    greedy = [replace(each, params=replace(each.params, temperature=0.0)) for each in REQUESTS]
    assert said(replace(ENGINES["tight"], rule="rejection"), greedy) == plainly(greedy)


class Recorder:
    """A drafter around another that keeps the features of every position it is shown."""

    def __init__(self, inner: Drafter, taps: Taps) -> None:
        self.max_draft_len = inner.max_draft_len
        self.taps = taps
        self.seen: dict[RequestId, dict[int, Tensor]] = {}
        self._inner = inner

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        return self._inner.propose(batch, rule)

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        assert scores.features is not None
        for row, first in zip(outcome.rows, scores.first_token, strict=True):
            seen = self.seen.setdefault(row.request_id, {})
            for i in range(row.num_cached):
                seen[row.kv_len + i] = scores.features[first + i].clone()
        self._inner.observe(outcome, scores)

    def forget(self, request_id: RequestId) -> None:
        self._inner.forget(request_id)


TAPS = (-1, 0, 1)
engines = st.builds(
    TinyEngine,
    block_size=st.sampled_from([16, 32]),
    num_blocks=st.sampled_from([9, 64]),
    max_num_batched_tokens=st.sampled_from([9, 23, 512]),
    max_num_seqs=st.sampled_from([3, 9]),
)


@settings(max_examples=8)
@given(options=engines, drafter=st.sampled_from(["none", "random", "half-right"]))
@unchecked()
def test_features_are_those_of_one_forward(options: TinyEngine, drafter: str) -> None:
    """Catches features of a rejected draft, of another row, or of a window whose size shows.

    Computed cached, in chunks, behind a shared prefix, after preemption and in verify windows,
    they must be those of one forward over the whole text, bit by bit.
    """
    expected = plainly(REQUESTS)
    inner = {
        "none": random_drafter(0, VOCAB),
        "random": random_drafter(4, VOCAB),
        "half-right": told_drafter(4, expected, VOCAB, lambda position: position % 3 > 0),
    }[drafter]
    recorder = Recorder(inner, TAPS)
    target = MODEL.target(machine(2), options.num_blocks, options.block_size)
    done = run_all(tiny_engine(target, recorder, options), REQUESTS)
    for sequence in done:
        assert list(sequence.output) == expected[sequence.id]
        cached = len(sequence) - 1
        alone = MODEL.target(machine(1)).score_spans(
            [whole(sequence.tokens[:cached], range(8))], TAPS
        )
        assert alone.features is not None
        seen = recorder.seen[sequence.id]
        first = sequence.num_cached_prompt
        assert set(range(first, cached)) <= set(seen)
        for position, own in seen.items():
            if position < cached:
                assert torch.equal(own, alone.features[position]), (sequence.id, position)
