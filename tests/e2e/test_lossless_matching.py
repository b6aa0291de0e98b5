"""Matching: token for token what plain decoding says, for every drafter, batch and memory."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.drafters.block.drafter import BlockDrafter
from outrider.drafters.block.torch_runner import TorchBlockRunner
from outrider.drafters.combined import CombinedDrafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.ngram_table import NgramTableDrafter
from outrider.drafters.ngram_table_file import NgramTable
from outrider.drafters.shared_suffix_index import SharedSuffixIndex
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.kvcache.blocks import BlockAllocator
from outrider.models.decoder import Decoder
from outrider.target.torch_target import TorchTarget
from outrider.testing.scripted import (
    TinyEngine,
    ragged,
    random_drafter,
    requests_of,
    run_all,
    tiny_engine,
    told_drafter,
)
from outrider.testing.tiny import tiny_decoder, tiny_spec
from outrider.testing.tiny_block import tiny_block, tiny_block_config
from tests import oracle
from tests.tables import table_of_texts
from tests.unchecked import unchecked

VOCAB = 12
SPEC = tiny_spec(vocab_size=VOCAB, max_context_len=64)
COMMON = (3, 7, 2, 9, 3, 7, 2, 9)
# Nine requests, greedy and sampled in turn; prompts of 1 to 17 tokens, most with one beginning.
PROMPTS = [(5,)] + [(*COMMON, *(3 + (i * j) % 9 for j in range(i))) for i in range(1, 9)]
PARAMS = [
    SamplingParams(max_tokens=14 + i, temperature=0.0 if i % 2 else 0.8, ignore_eos=i % 3 > 0)
    for i in range(9)
]
REQUESTS = requests_of(PROMPTS, PARAMS)
BLOCK = 4

ROOMY = TinyEngine(block_size=BLOCK, prefix_caching=False)
CHUNKED = TinyEngine(block_size=BLOCK, max_num_seqs=9, max_num_batched_tokens=10)
# Nine requests would want up to 90 blocks in the end; any one of them has enough with 11.
TIGHT = TinyEngine(block_size=BLOCK, num_blocks=14)


@cache
def target_decoder() -> Decoder:
    return tiny_decoder(SPEC, seed=1)


@cache
def draft_decoder() -> Decoder:
    """The target with noise on its weights: it agrees often, not always."""
    decoder = copy.deepcopy(target_decoder())
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in decoder.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(0.2 * weight.std() * noise if weight.numel() > 1 else 0.0)
    return decoder


def told(requests: Sequence[Request]) -> dict[RequestId, list[int]]:
    """What the oracle says."""
    logits = oracle.of_decoder(target_decoder())
    stops, limit = SPEC.stop_token_ids, SPEC.max_context_len
    return {each.id: oracle.decode(logits, each, stops, limit) for each in requests}


@cache
def second_turn() -> list[Request]:
    """Requests whose prompts are all of a first turn and a few tokens more."""
    runs = told(REQUESTS)
    prompts = [(*each.prompt, *runs[each.id], 4, 5) for each in REQUESTS]
    return [
        replace(request, id=RequestId(f"again-{request.id}"))
        for request in requests_of(prompts, PARAMS)
    ]


@cache
def expected() -> dict[RequestId, list[int]]:
    """What the oracle says of both turns."""
    return told([*REQUESTS, *second_turn()])


def engine_with(drafter: Drafter | None, options: TinyEngine) -> Engine:
    target = TorchTarget(
        target_decoder(), num_blocks=options.num_blocks, block_size=options.block_size
    )
    return tiny_engine(target, drafter, options)


def draft_model() -> Drafter:
    # The draft model's own cache is tight too: it must let go of requests and catch up again.
    model = TorchTarget(draft_decoder(), num_blocks=40, block_size=BLOCK)
    return DraftModelDrafter(
        model,
        BlockAllocator(40, BLOCK),
        3,
        target_vocab_size=VOCAB,
        stop_tokens=SPEC.stop_token_ids,
    )


@cache
def ngram_table() -> NgramTable:
    """Counted on what the target says, so that drafts hold now and then."""
    texts = [[*each.prompt, *expected()[each.id]] for each in REQUESTS[::2]]
    return table_of_texts(texts, vocab_size=VOCAB)


def combined(network: Drafter | None) -> Drafter:
    return CombinedDrafter(
        5, table=ngram_table(), network=network, network_cost=0.2, min_survival=0.05
    )


def block_drafter(**changes: Any) -> Drafter:
    config = tiny_block_config(SPEC, **changes)
    runner = TorchBlockRunner(
        tiny_block(config, seed=4), target_decoder(), num_blocks=256, block_size=BLOCK
    )
    return BlockDrafter(runner, config, num_blocks=256, block_size=BLOCK)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(4, min_len=1, max_len=3),
    "suffix": lambda: SuffixDrafter(5, min_survival=0.0, shared=None),
    "shared-suffix": lambda: SuffixDrafter(5, min_survival=0.1, shared=SharedSuffixIndex(64)),
    "ngram-table": lambda: NgramTableDrafter(ngram_table(), 4, min_survival=0.0),
    "combined": lambda: combined(None),
    "combined-network": lambda: combined(draft_model()),
    "combined-dspark": lambda: combined(block_drafter()),
    "draft-model": draft_model,
    "dspark": block_drafter,
    "dflash": lambda: block_drafter(layout="anchor-drop", markov_rank=0, draft_vocab_size=9),
    "random": lambda: random_drafter(4, VOCAB, seed=3),
    "oracle": lambda: told_drafter(4, expected(), VOCAB),
    "ragged-oracle": lambda: ragged(told_drafter(4, expected(), VOCAB)),
    "adversarial": lambda: told_drafter(4, expected(), VOCAB, lambda position: False),
    "half-right": lambda: told_drafter(4, expected(), VOCAB, lambda position: position % 3 > 0),
}
every_drafter = pytest.mark.parametrize("name", DRAFTERS)


def check(sequences: Sequence[Tokens]) -> None:
    """Every output must be the oracle's."""
    for sequence in sequences:
        assert list(sequence.output) == expected()[sequence.id], sequence.id


@pytest.mark.parametrize("options", [ROOMY, CHUNKED, TIGHT], ids=["roomy", "chunked", "tight"])
def test_plain_decoding_is_the_oracle(options: TinyEngine) -> None:
    """Catches paging, batching or chunking that changes a token without any speculation."""
    check(run_all(engine_with(None, options), REQUESTS))


@every_drafter
@pytest.mark.parametrize("batch_size", range(1, 10))
@unchecked()
def test_any_drafter_and_batch_size(name: str, batch_size: int) -> None:
    """Catches an accept rule, a row offset or a roll-back that lets drafts change the output."""
    engine = engine_with(DRAFTERS[name](), ROOMY)
    check(run_all(engine, REQUESTS[:batch_size]))
    assert engine.acceptance.verified > 0 or batch_size == 1


@every_drafter
def test_chunked_prompts(name: str) -> None:
    """Catches drafts behind an unfinished prompt, or a budget that cuts a window in the middle."""
    check(run_all(engine_with(DRAFTERS[name](), CHUNKED), REQUESTS))


@every_drafter
def test_preemption(name: str) -> None:
    """Catches state of a preempted request that is believed to be still cached."""
    engine = engine_with(DRAFTERS[name](), TIGHT)
    check(run_all(engine, REQUESTS))
    assert engine.num_preemptions > 0


@every_drafter
def test_prefix_cache_hits(name: str) -> None:
    """Catches a prefix block that holds rejected drafts, or belongs to another prefix."""
    options = TinyEngine(block_size=BLOCK)
    engine = engine_with(DRAFTERS[name](), options)
    check(run_all(engine, REQUESTS))
    again = run_all(engine, REQUESTS)
    check(again)
    assert all(each.num_cached_prompt >= len(COMMON) for each in again[1:])


@every_drafter
def test_a_conversation_goes_on(name: str) -> None:
    """Catches a cached block whose last token was delivered but never computed."""
    engine = engine_with(DRAFTERS[name](), TinyEngine(block_size=BLOCK))
    check(run_all(engine, REQUESTS))
    second = run_all(engine, second_turn())
    check(second)
    for sequence in second:
        # All but the last delivered token of the first turn was cached, in full blocks.
        cached = (sequence.num_prompt - 3) // BLOCK * BLOCK
        assert sequence.num_cached_prompt == cached


@every_drafter
def test_greedy_requests_under_rejection(name: str) -> None:
    """Catches chance where there is none: at temperature 0 both rules say the same."""
    greedy = [replace(each, params=replace(each.params, temperature=0.0)) for each in REQUESTS]
    engine = engine_with(DRAFTERS[name](), replace(TIGHT, rule="rejection"))
    runs = told(greedy)
    for sequence in run_all(engine, greedy):
        assert list(sequence.output) == runs[sequence.id]
