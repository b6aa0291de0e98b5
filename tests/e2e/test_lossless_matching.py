"""Matching: token for token what plain decoding says, for every drafter, batch and memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.drafters.block.drafter import BlockDrafter
from outrider.drafters.combined import CombinedDrafter, cheap_drafts
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.ngram_table import NgramTableDrafter
from outrider.drafters.ngram_table_file import NgramTable
from outrider.drafters.shared_suffix_index import SharedSuffixIndex
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.kvcache.blocks import BlockAllocator
from outrider.testing.scripted import (
    TinyEngine,
    ragged,
    random_drafter,
    requests_of,
    run_all,
    tiny_engine,
    told_drafter,
)
from outrider.testing.tiny import tiny_spec
from outrider.testing.tiny_block import tiny_block, tiny_block_config
from tests import oracle
from tests.backends import BACKENDS, Backend, Tiny, backend_of
from tests.tables import table_of_texts
from tests.unchecked import unchecked

VOCAB = 12
SPEC = tiny_spec(vocab_size=VOCAB, max_context_len=64)
TARGET = Tiny(SPEC, seed=1)
# It agrees with the target often, not always.
DRAFT = Tiny(SPEC, seed=1, noise=0.2)
COMMON = (3, 7, 2, 9, 3, 7, 2, 9)
# Nine requests, greedy and sampled in turn; prompts of 1 to 17 tokens, most with one beginning.
PROMPTS = [(5,)] + [(*COMMON, *(3 + (i * j) % 9 for j in range(i))) for i in range(2, 10)]
PARAMS = [
    SamplingParams(max_tokens=14 + i, temperature=0.0 if i % 2 else 0.8, ignore_eos=i % 3 > 0)
    for i in range(9)
]
REQUESTS = requests_of(PROMPTS, PARAMS)


@dataclass(frozen=True)
class Bed:
    """A backend with engines over the target, and what the oracle says of the requests."""

    backend: Backend
    tight_blocks: int
    """The requests would want several times as many in the end; any one of them has enough."""

    def options(self, **changes: Any) -> TinyEngine:
        """Engine options with this backend's blocks."""
        return TinyEngine(**{"block_size": self.backend.block_size, **changes})

    @property
    def roomy(self) -> TinyEngine:
        """Everything fits."""
        return self.options(prefix_caching=False)

    @property
    def chunked(self) -> TinyEngine:
        """Prompts are read in pieces."""
        return self.options(max_num_seqs=9, max_num_batched_tokens=10)

    @property
    def tight(self) -> TinyEngine:
        """Requests take blocks from each other."""
        return self.options(num_blocks=self.tight_blocks)

    def engine(self, drafter: Drafter | None, options: TinyEngine) -> Engine:
        """An engine over the target."""
        target = self.backend.target(TARGET, options.num_blocks, options.block_size)
        return tiny_engine(target, drafter, options)

    def draft_model(self) -> Drafter:
        """A draft model whose own cache is tight too: it must let go of requests and catch up."""
        num_blocks, block_size = 160 // self.backend.block_size, self.backend.block_size
        return DraftModelDrafter(
            self.backend.target(DRAFT, num_blocks),
            BlockAllocator(num_blocks, block_size),
            3,
            target_vocab_size=VOCAB,
            stop_tokens=SPEC.stop_token_ids,
        )

    def told(self, requests: Sequence[Request]) -> dict[RequestId, list[int]]:
        """What the oracle says."""
        logits = self.backend.next_logits(TARGET)
        stops, limit = SPEC.stop_token_ids, SPEC.max_context_len
        return {each.id: oracle.decode(logits, each, stops, limit) for each in requests}


BEDS = {"torch": Bed(BACKENDS["torch"], 14), "native": Bed(BACKENDS["native"], 5)}


@cache
def second_turn(bed: Bed) -> list[Request]:
    """Requests whose prompts are all of a first turn and a few tokens more."""
    runs = bed.told(REQUESTS)
    prompts = [(*each.prompt, *runs[each.id], 4, 5) for each in REQUESTS]
    return [
        replace(request, id=RequestId(f"again-{request.id}"))
        for request in requests_of(prompts, PARAMS)
    ]


@cache
def expected(bed: Bed) -> dict[RequestId, list[int]]:
    """What the oracle says of both turns."""
    return bed.told([*REQUESTS, *second_turn(bed)])


@cache
def ngram_table(bed: Bed) -> NgramTable:
    """Counted on what the target says, so that drafts hold now and then."""
    texts = [[*each.prompt, *expected(bed)[each.id]] for each in REQUESTS[::2]]
    return table_of_texts(texts, vocab_size=VOCAB)


def combined(bed: Bed, network: Drafter | None) -> Drafter:
    return CombinedDrafter(
        5,
        drafts=cheap_drafts(ngram_table(bed)),
        network=network,
        network_cost=0.2,
        min_survival=0.05,
    )


def block_drafter(bed: Bed, **changes: Any) -> Drafter:
    config = tiny_block_config(SPEC, **changes)
    blocks = {"num_blocks": 256, "block_size": bed.backend.block_size}
    runner = bed.backend.block_runner(TARGET, tiny_block(config, seed=4), **blocks)
    return BlockDrafter(
        runner, config, num_blocks=blocks["num_blocks"], block_size=blocks["block_size"]
    )


def told(bed: Bed, is_right: Callable[[int], bool] = lambda position: True) -> Drafter:
    return told_drafter(4, expected(bed), VOCAB, is_right)


DRAFTERS: dict[str, Callable[[Bed], Drafter]] = {
    "ngram": lambda bed: NgramDrafter(4, min_len=1, max_len=3),
    "suffix": lambda bed: SuffixDrafter(5, min_survival=0.0, shared=None),
    "shared-suffix": lambda bed: SuffixDrafter(5, min_survival=0.1, shared=SharedSuffixIndex(64)),
    "ngram-table": lambda bed: NgramTableDrafter(ngram_table(bed), 4, min_survival=0.0),
    "combined": lambda bed: combined(bed, None),
    "combined-network": lambda bed: combined(bed, bed.draft_model()),
    "combined-dspark": lambda bed: combined(bed, block_drafter(bed)),
    "draft-model": lambda bed: bed.draft_model(),
    "dspark": block_drafter,
    "dflash": lambda bed: block_drafter(
        bed, layout="anchor-drop", markov_rank=0, draft_vocab_size=9
    ),
    "random": lambda bed: random_drafter(4, VOCAB, seed=3),
    "oracle": told,
    "ragged-oracle": lambda bed: ragged(told(bed)),
    "adversarial": lambda bed: told(bed, lambda position: False),
    "half-right": lambda bed: told(bed, lambda position: position % 3 > 0),
}
every_drafter = pytest.mark.parametrize("name", DRAFTERS)


@pytest.fixture(params=BEDS)
def bed(request: pytest.FixtureRequest) -> Bed:
    backend_of(request.param)
    return BEDS[request.param]


def check(bed: Bed, sequences: Sequence[Tokens]) -> None:
    """Every output must be the oracle's."""
    for sequence in sequences:
        assert list(sequence.output) == expected(bed)[sequence.id], sequence.id


@pytest.mark.parametrize("kind", ["roomy", "chunked", "tight"])
def test_plain_decoding_is_the_oracle(bed: Bed, kind: str) -> None:
    """Catches paging, batching or chunking that changes a token without any speculation."""
    check(bed, run_all(bed.engine(None, getattr(bed, kind)), REQUESTS))


BATCHES = [*(("torch", size) for size in range(1, 10)), *(("native", size) for size in (2, 5, 9))]


@every_drafter
@pytest.mark.parametrize(("bed", "batch_size"), BATCHES, indirect=["bed"])
@unchecked()
def test_any_drafter_and_batch_size(bed: Bed, name: str, batch_size: int) -> None:
    """Catches an accept rule, a row offset or a roll-back that lets drafts change the output."""
    engine = bed.engine(DRAFTERS[name](bed), bed.roomy)
    check(bed, run_all(engine, REQUESTS[:batch_size]))
    assert engine.acceptance.verified > 0 or batch_size == 1


@every_drafter
def test_chunked_prompts(bed: Bed, name: str) -> None:
    """Catches drafts behind an unfinished prompt, or a budget that cuts a window in the middle."""
    check(bed, run_all(bed.engine(DRAFTERS[name](bed), bed.chunked), REQUESTS))


@every_drafter
def test_preemption(bed: Bed, name: str) -> None:
    """Catches state of a preempted request that is believed to be still cached."""
    engine = bed.engine(DRAFTERS[name](bed), bed.tight)
    check(bed, run_all(engine, REQUESTS))
    assert engine.num_preemptions > 0


@every_drafter
def test_prefix_cache_hits(bed: Bed, name: str) -> None:
    """Catches a prefix block that holds rejected drafts, or belongs to another prefix."""
    engine = bed.engine(DRAFTERS[name](bed), bed.options())
    check(bed, run_all(engine, REQUESTS))
    again = run_all(engine, REQUESTS)
    check(bed, again)
    block = bed.backend.block_size
    for sequence in again:
        # All but the last token of the prompt, in full blocks.
        assert sequence.num_cached_prompt == (sequence.num_prompt - 1) // block * block
    assert again[-1].num_cached_prompt > 0


@every_drafter
def test_a_conversation_goes_on(bed: Bed, name: str) -> None:
    """Catches a cached block whose last token was delivered but never computed."""
    engine = bed.engine(DRAFTERS[name](bed), bed.options())
    check(bed, run_all(engine, REQUESTS))
    second = run_all(engine, second_turn(bed))
    check(bed, second)
    for sequence in second:
        # All but the last delivered token of the first turn was cached, in full blocks.
        block = bed.backend.block_size
        assert sequence.num_cached_prompt == (sequence.num_prompt - 3) // block * block


@every_drafter
def test_greedy_requests_under_rejection(bed: Bed, name: str) -> None:
    """Catches chance where there is none: at temperature 0 both rules say the same."""
    greedy = [replace(each, params=replace(each.params, temperature=0.0)) for each in REQUESTS]
    engine = bed.engine(DRAFTERS[name](bed), replace(bed.tight, rule="rejection"))
    runs = bed.told(greedy)
    for sequence in run_all(engine, greedy):
        assert list(sequence.output) == runs[sequence.id]
