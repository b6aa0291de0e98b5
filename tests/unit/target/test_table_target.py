"""The table target must notice what it is there to notice."""

from collections.abc import Sequence

import pytest
import torch

from outrider.core.ids import BlockId, RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import Proposal, RowProposal, Scores, VerifyWindow
from outrider.testing.scripted import random_drafter, requests_of, run_all, tiny_engine
from outrider.testing.table_target import ScoredWindow, SeededTable, TableTarget

VOCAB = 5
TABLE = SeededTable(VOCAB, seed=1)


def new_target() -> TableTarget:
    return TableTarget(TABLE, VOCAB, num_blocks=6, block_size=2)


def row(tokens: Sequence[int], kv_len: int, known: int, blocks: Sequence[int]) -> BatchRow:
    made = Tokens.of(Request(RequestId(str(blocks)), tuple(tokens), SamplingParams(), 0))
    return BatchRow(made, kv_len, known, 9, tuple(BlockId(b) for b in blocks))


def score(target: TableTarget, *rows: BatchRow, drafts: Sequence[Sequence[int]] = ()) -> Scores:
    runs = [tuple(run) for run in drafts] or [()] * len(rows)
    proposal = Proposal(tuple(RowProposal(run) for run in runs))
    window = VerifyWindow.build(Batch(rows), proposal, [len(run) for run in runs])
    return target.score(window)


def test_rows_are_the_tables() -> None:
    """Catches a fake that would hide a mistake by looking at the sequence instead of the memory."""
    target = new_target()
    score(target, row([1, 2, 3, 4], 0, 3, [4, 0]))
    scores = score(target, row([1, 2, 3, 4], 3, 1, [4, 0, 1]), drafts=[(0, 2)])
    assert torch.equal(scores.logits[0], TABLE((1, 2, 3, 4)))
    assert torch.equal(scores.logits[2], TABLE((1, 2, 3, 4, 0, 2)))
    assert target.windows == [ScoredWindow(3, 0), ScoredWindow(3, 3)]
    # A cache that holds more, or another text, than the sequence has gives another answer.
    scores = score(target, row([1, 2, 3, 0, 0], 4, 1, [4, 0, 1]))
    assert torch.equal(scores.logits[0], TABLE((1, 2, 3, 4, 0)))


def test_equal_blocks_behind_different_prefixes_are_told_apart() -> None:
    """Catches a prefix cache that looks at the tokens of a block and not at what was before it."""
    target = new_target()
    score(target, row([1, 2, 3, 4, 0], 0, 4, [0, 1]))
    score(target, row([2, 2, 3, 4, 0], 0, 4, [2, 3]))
    with pytest.raises(AssertionError, match="belongs to another prefix"):
        score(target, row([1, 2, 3, 4, 0], 4, 1, [0, 3, 4]))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row([1, 2, 3], 0, 3, [0, 0])], "twice"),
        ([row([1, 2, 3], 0, 3, [0])], "cannot hold"),
        ([row([1, 2, 3], 2, 1, [0, 1])], "never written"),
        ([row([1, 2, 3], 0, 3, [0, 1]), row([1, 2, 3], 0, 3, [2, 1])], "written twice"),
        ([row([1], 0, 1, [0]), row([1, 2, 3], 2, 1, [0, 1])], "read as cached"),
    ],
    ids=["block-twice", "table-too-short", "unwritten", "shared-write", "write-into-prefix"],
)
def test_impossible_windows_are_noticed(rows: list[BatchRow], says: str) -> None:
    """Catches block tables that a real cache would serve garbage from."""
    with pytest.raises(AssertionError, match=says):
        score(new_target(), *rows)


def test_tables_are_fixed_by_their_seed_and_see_what_they_should() -> None:
    """Catches a table that ignores its prefix, so that any cache would do."""
    assert torch.equal(TABLE((1, 2)), SeededTable(VOCAB, seed=1)((1, 2)))
    assert not torch.equal(TABLE((1, 2)), SeededTable(VOCAB, seed=2)((1, 2)))
    assert not torch.equal(TABLE((1, 2, 3)), TABLE((0, 2, 3)))
    short = SeededTable(VOCAB, seed=1, recent=2)
    assert torch.equal(short((1, 2, 3)), short((0, 2, 3)))
    assert not torch.equal(short((1, 2, 3)), short((1, 1, 3)))
    assert float(TABLE((1,)).exp().sum()) == pytest.approx(1.0, abs=1e-12)


def test_one_forward_per_step_and_no_row_too_many() -> None:
    """Catches a second forward for drafts, and rows that are computed and thrown away.

    Speculation must also need fewer forwards than plain decoding when the drafts are good.
    """
    params = SamplingParams(max_tokens=6, temperature=0)
    listed = requests_of([(1, 2, 3), (4,)], params)
    target = TableTarget(TABLE, VOCAB, num_blocks=64, block_size=4)
    plain = run_all(tiny_engine(target), listed)
    assert [window.num_tokens for window in target.windows] == [4, 2, 2, 2, 2, 2]
    assert all(window.num_judged == 2 for window in target.windows)

    target = TableTarget(TABLE, VOCAB, num_blocks=64, block_size=4)
    engine = tiny_engine(target, random_drafter(3, VOCAB))
    speculated = run_all(engine, listed)
    assert [list(s.output) for s in speculated] == [list(s.output) for s in plain]
    num_rows = sum(window.num_judged for window in target.windows)
    assert num_rows == engine.acceptance.verified + engine.acceptance.rounds
    assert sum(w.num_tokens for w in target.windows) == 4 - 2 + num_rows
