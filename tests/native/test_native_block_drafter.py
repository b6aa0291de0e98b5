"""The native block drafter: the torch runner's drafts, in any batch, pieces and threads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.request import SamplingParams, VerifyRule
from outrider.drafters.block.runner import BlockRow, BlockRunner
from outrider.sampling.draw import draw
from outrider.sampling.noise import Purpose, uniform
from outrider.tensor.window import RowProposal
from outrider.testing.tiny import tiny_spec
from tests.native.blocks import TinyBlock, context, features_of, row_of
from tests.native.machines import TinyModel, machine, require_native, text, wide_spec
from tests.unchecked import unchecked

VOCAB = 200
MODEL = TinyModel(tiny_spec("qwen3", vocab_size=VOCAB, tied_head=False))
WIDE = TinyModel(wide_spec("llama", vocab_size=VOCAB), weight_format="q8")
DRAFTERS = {
    "vanilla": TinyBlock(MODEL),
    "gated": TinyBlock(MODEL, (("markov_type", "gated"),)),
    "rnn": TinyBlock(MODEL, (("markov_type", "rnn"), ("draft_vocab_size", 150))),
    "dflash": TinyBlock(
        MODEL,
        (
            ("markov_rank", 0),
            ("has_confidence_head", False),
            ("layout", "anchor-drop"),
            ("draft_vocab_size", 20),
        ),
    ),
    "plain-confidence": TinyBlock(MODEL, (("confidence_with_markov", False), ("fc_norm", True))),
}
QUANTISED = TinyBlock(WIDE, (("block_size", 7), ("draft_vocab_size", 150)), kind="Q8_0")
LENGTH = 150  # More than one softmax chunk.
TABLE = (3, 0, 21, 7, 12, 1, 9, 2, 15, 4, 20, 5)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.7),
    "truncated": SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
    "history": SamplingParams(
        temperature=0.9,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.7,
        logit_bias={5: 3.0, 8: -100.0},
        min_tokens=2,
        stop_token_ids=frozenset({7, 9}),
    ),
    "few": SamplingParams(temperature=1.0, allowed_token_ids=frozenset(range(0, VOCAB, 3))),
}


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


def drafts_of(
    runner: BlockRunner, drafter: TinyBlock, rows: Sequence[BlockRow]
) -> list[RowProposal]:
    features = features_of(LENGTH, drafter.config, 1)
    return runner.draft([context(features, 0, TABLE)], rows)


def rows_for(drafter: TinyBlock, rule: VerifyRule) -> list[BlockRow]:
    tokens = text(LENGTH + 1, VOCAB, 2)
    most = drafter.config.num_drafts
    return [row_of(tokens, TABLE, most, params, rule) for params in PARAMS.values()]


@pytest.mark.parametrize("rule", ["matching", "rejection"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_drafts_are_those_of_torch(name: str, rule: VerifyRule) -> None:
    """Catches a slot off by one, a head on the wrong row, a warp in another order, other noise.

    Tolerance: 1e-4 on confidences and probabilities.
    """
    drafter = DRAFTERS[name]
    rows = rows_for(drafter, rule)
    expected = drafts_of(drafter.torch(), drafter, rows)
    for own, theirs in zip(drafts_of(drafter.native(), drafter, rows), expected, strict=True):
        assert own.tokens == theirs.tokens
        assert len(own.tokens) > 0
        assert (own.confidence is None) == (theirs.confidence is None)
        if own.confidence is not None and theirs.confidence is not None:
            assert own.confidence == pytest.approx(theirs.confidence, abs=1e-4)
        assert (own.probs is None) == (theirs.probs is None)
        if own.probs is not None and theirs.probs is not None:
            torch.testing.assert_close(own.probs, theirs.probs, atol=1e-4, rtol=0)


def test_quantised_drafts_are_near_those_of_torch() -> None:
    """Catches scales of another row, or a matrix that is quantised across its outputs.

    Activations are rounded to 8 bits, so single logits differ by a few hundredths: probabilities
    and confidences may differ by 0.05, and first tokens only where two are that close.
    """
    rows = rows_for(QUANTISED, "rejection")
    expected = drafts_of(QUANTISED.torch(), QUANTISED, rows)
    for own, theirs in zip(drafts_of(QUANTISED.native(), QUANTISED, rows), expected, strict=True):
        assert own.confidence is not None
        assert theirs.confidence is not None
        assert own.confidence[0] == pytest.approx(theirs.confidence[0], abs=0.05)
        if own.probs is not None and theirs.probs is not None:
            assert float((own.probs[0] - theirs.probs[0]).abs().max()) < 0.05


def test_a_token_is_drawn_from_what_is_handed_over() -> None:
    """Catches a distribution of another slot, or before a warp: rejection would then be lossy."""
    rows = rows_for(DRAFTERS["vanilla"], "rejection")
    for row, draft in zip(
        rows, drafts_of(DRAFTERS["vanilla"].native(), DRAFTERS["vanilla"], rows), strict=True
    ):
        if row.sequence.params.is_greedy:
            assert draft.probs is None
            continue
        assert draft.probs is not None
        torch.testing.assert_close(draft.probs.sum(-1), torch.ones(len(draft.tokens)).double())
        for slot, token in enumerate(draft.tokens):
            number = uniform(row.sequence.request.seed, Purpose.DRAFT, 0, slot)
            assert draw(draft.probs[slot], number) == token


@dataclass(frozen=True)
class Way:
    """How a request's context comes, and beside whom it drafts."""

    pieces: tuple[int, ...]
    num_mates: int
    place: int
    threads: int
    shuffle: int


ways = st.builds(
    Way,
    pieces=st.lists(st.integers(1, 70), min_size=1, max_size=5).map(tuple),
    num_mates=st.integers(0, 4),
    place=st.integers(0, 4),
    threads=st.integers(1, 2),
    shuffle=st.integers(0, 1000),
)


def drafted_that_way(way: Way, rule: VerifyRule, isa: str = "auto") -> list[RowProposal]:
    """The drafts of one request with every parameter of PARAMS."""
    runner = QUANTISED.native(machine(way.threads, isa), kv_type="int16")
    features = features_of(LENGTH, QUANTISED.config, 1)
    generator = torch.Generator().manual_seed(way.shuffle)
    blocks = torch.randperm(24, generator=generator).tolist()
    table, spare = blocks[:11], blocks[11:]
    start = turn = 0
    while start < LENGTH:
        piece = features[start : start + way.pieces[turn % len(way.pieces)]]
        mate = context(features_of(9, QUANTISED.config, turn), 0, spare[:1])
        runner.draft([mate, context(piece, start, table)], [])
        start, turn = start + len(piece), turn + 1
    tokens = text(LENGTH + 1, VOCAB, 2)
    mates = [
        row_of(text(10, VOCAB, i), spare[:2], 1 + i, PARAMS["sampled"], rule, seed=i)
        for i in range(way.num_mates)
    ]
    place = min(way.place, len(mates))
    drafts = []
    for params in PARAMS.values():
        row = row_of(tokens, table, 7, params, rule)
        drafts.append(runner.draft([], [*mates[:place], row, *mates[place:]])[place])
    return drafts


ALONE = Way(pieces=(LENGTH,), num_mates=0, place=0, threads=1, shuffle=0)


def same(one: RowProposal, other: RowProposal) -> bool:
    """Whether two proposals are equal to the bit."""
    probs = one.probs is other.probs is None or (
        one.probs is not None and other.probs is not None and torch.equal(one.probs, other.probs)
    )
    return probs and one.tokens == other.tokens and one.confidence == other.confidence


@settings(max_examples=10)
@given(way=ways)
@unchecked()
def test_bits_do_not_depend_on_the_way(way: Way) -> None:
    """Catches a draft that depends on its mates, on how the context came, on blocks or threads."""
    for rule in ("matching", "rejection"):
        for own, expected in zip(
            drafted_that_way(way, rule), drafted_that_way(ALONE, rule), strict=True
        ):
            assert same(own, expected)


def test_bits_do_not_depend_on_the_instruction_set() -> None:
    """Catches a kernel that adds up or rounds differently from the others."""
    from outrider.native.availability import instruction_sets

    expected = drafted_that_way(ALONE, "rejection")
    for isa in instruction_sets():
        for own, theirs in zip(drafted_that_way(ALONE, "rejection", isa), expected, strict=True):
            assert same(own, theirs), isa


def test_a_short_table_gets_spare_blocks() -> None:
    """Catches a block whose last slots are written into blocks of somebody else."""
    runner = QUANTISED.native()
    features = features_of(30, QUANTISED.config, 1)
    runner.draft([context(features, 0, [0, 1])], [])
    runner.draft([context(features, 0, [2, 3])], [])
    tokens = text(31, VOCAB, 2)
    other = row_of(tokens, [2, 3, 4], 7, PARAMS["greedy"])
    before = runner.draft([], [other])[0]
    # Position 30 is the last but one of two blocks: five slots of seven lie beyond the table.
    short = row_of(tokens, [0, 1], 1, PARAMS["greedy"])
    for draft in runner.draft([], [short, replace(short)]):
        assert draft.tokens == before.tokens[:1]
    assert same(runner.draft([], [other])[0], before)


def test_no_numbers_no_draft() -> None:
    """Catches an arg-max over NaN that names a token, or reads outside the candidates."""
    runner = QUANTISED.native()
    features = torch.full((3, QUANTISED.config.hidden_size * 2), torch.nan)
    row = row_of([1, 2, 3, 4], [0], 7, PARAMS["greedy"])
    assert runner.draft([context(features, 0, [0])], [row])[0].tokens == ()


def test_a_token_mask_holds_for_the_first_slot_and_may_fail() -> None:
    """Catches a user's broken mask that stops the other requests, or a mask that is ignored."""
    runner = DRAFTERS["vanilla"].native()
    tokens = text(LENGTH + 1, VOCAB, 2)

    def broken(output: Sequence[int]) -> Sequence[int]:
        raise RuntimeError(len(output))

    masks = [lambda output: [40, 41], broken, lambda output: [VOCAB]]
    rows = [
        row_of(tokens, TABLE, 4, SamplingParams(temperature=0.0, token_mask=mask)) for mask in masks
    ]
    rows.append(row_of(tokens, TABLE, 4, PARAMS["greedy"]))
    held, failed, outside, free = drafts_of(runner, DRAFTERS["vanilla"], rows)
    assert len(held.tokens) <= 1
    assert set(held.tokens) <= {40, 41}
    assert failed.tokens == outside.tokens == ()
    assert len(free.tokens) == 4
