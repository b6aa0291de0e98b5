"""The engine on the native target: with any drafter and memory, the tokens of plain decoding.

Equality is exact: there are no ties to excuse, since a row's bits do not depend on the window.
"""

from collections.abc import Callable, Sequence

import pytest

from outrider.core.ids import RequestId
from outrider.core.request import SamplingParams
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.testing.scripted import (
    TinyEngine,
    random_drafter,
    requests_of,
    run_all,
    tiny_engine,
    told_drafter,
)
from tests.native.machines import TinyModel, machine, require_native, wide_spec
from tests.unchecked import unchecked

VOCAB = 12
MODEL = TinyModel(wide_spec(vocab_size=VOCAB, max_context_len=96), weight_format="q4")
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


def tokens(
    options: TinyEngine, drafter: Drafter | None, threads: int
) -> dict[RequestId, Sequence[int]]:
    target = MODEL.target(machine(threads), options.num_blocks, options.block_size)
    done = run_all(tiny_engine(target, drafter, options), REQUESTS)
    return {each.id: each.output for each in done}


DRAFTERS: dict[str, Callable[[dict[RequestId, Sequence[int]]], Drafter | None]] = {
    "plain": lambda said: None,
    "random": lambda said: random_drafter(5, VOCAB),
    "ngram": lambda said: NgramDrafter(4, min_len=1, max_len=3),
    "told": lambda said: told_drafter(7, said, VOCAB, lambda position: position % 5 > 0),
}


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES.keys())
@pytest.mark.parametrize("name", DRAFTERS)
@unchecked()
def test_speculation_changes_no_token(name: str, options: TinyEngine) -> None:
    """Catches a row whose bits depend on the drafts behind it, its mates or its blocks."""
    said = tokens(ALONE, None, 1)
    assert tokens(options, DRAFTERS[name](said), 2) == said
