"""The block drafter's books and refusals; what it drafts is proven in e2e and native tests."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.core.ids import BlockId, RequestId
from outrider.core.outcome import Outcome, RowOutcome
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.drafter import MOST_KEPT, PATIENCE, BlockDrafter
from outrider.drafters.block.markov_loop import largest
from outrider.drafters.block.runner import BlockRow, NewContext
from outrider.drafters.trained_block import ascending, require_shape
from outrider.engine.llm import LLM
from outrider.errors import ConfigError, CorruptCheckpoint, IncompatibleDraft, ModelNotFound
from outrider.models.checkpoint import open_checkpoint
from outrider.models.fingerprint import target_hash
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import RowProposal, Scores
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.testing.tiny_block import tiny_block, tiny_block_config, write_tiny_block

SPEC = tiny_spec(vocab_size=64)
CONFIG = tiny_block_config(SPEC)
WIDTH = CONFIG.hidden_size * 2
TABLE = tuple(BlockId(block) for block in (2, 0, 1))


class Runner:
    """Remembers what it was given; drafts ones."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []
        self.rows: list[BlockRow] = []

    def draft(self, new: Sequence[NewContext], rows: Sequence[BlockRow]) -> list[RowProposal]:
        self.written += [(each.kv_len, len(each.features)) for each in new]
        self.rows += rows
        return [RowProposal((1,) * row.num_drafts) for row in rows]


def drafter_with(runner: Runner, max_draft_len: int | None = None) -> BlockDrafter:
    return BlockDrafter(runner, CONFIG, num_blocks=4, block_size=4, max_draft_len=max_draft_len)


def observed(drafter: BlockDrafter, kv_len: int, length: int, *, has_features: bool = True) -> None:
    outcome = RowOutcome(
        RequestId("r"), length, 0, 0, 0, (), is_finished=False, kv_len=kv_len, block_table=TABLE
    )
    features = torch.zeros(length + 2, WIDTH) if has_features else None
    drafter.observe(Outcome((outcome,)), Scores(torch.zeros(1, 64), (0,), features, (0,)))


def batch_of(length: int, max_draft_len: int = 4, num_known: int = 1) -> Batch:
    sequence = Tokens.of(Request(RequestId("r"), (3,) * length, SamplingParams(), 0))
    return Batch((BatchRow(sequence, length - num_known, num_known, max_draft_len, TABLE),))


def proposed(drafter: BlockDrafter, batch: Batch) -> int:
    return len(drafter.propose(batch, "matching").rows[0].tokens)


def test_a_request_drafts_once_all_its_positions_have_context() -> None:
    """Catches a draft over slots that hold nothing, or features that are never used."""
    runner = Runner()
    drafter = drafter_with(runner)
    assert proposed(drafter, batch_of(6)) == 0
    observed(drafter, 0, 5)
    assert proposed(drafter, batch_of(6)) == 4
    assert runner.written == [(0, 5)]
    assert proposed(drafter, batch_of(6, max_draft_len=2)) == 2
    assert proposed(drafter, batch_of(7)) == 0
    assert proposed(drafter, batch_of(6, num_known=2)) == 0


def test_features_never_shown_leave_a_gap() -> None:
    """Catches context of an earlier owner of a block that passes for the request's own."""
    drafter = drafter_with(Runner())
    observed(drafter, 0, 8)
    assert proposed(drafter, batch_of(9)) == 4
    observed(drafter, 2, 4, has_features=False)
    assert proposed(drafter, batch_of(7)) == 0
    observed(drafter, 2, 6)
    assert proposed(drafter, batch_of(9)) == 4


def test_blocks_beyond_the_pool_are_left_alone() -> None:
    """Catches an engine with more blocks than the drafter, such as a trial one, that fails."""
    runner = Runner()
    drafter = BlockDrafter(runner, CONFIG, num_blocks=2, block_size=4)
    observed(drafter, 0, 5)
    assert proposed(drafter, batch_of(6)) == 0
    assert runner.written == []


def test_a_long_prompt_is_turned_into_context_at_once() -> None:
    """Catches features of whole prompts that pile up until the first draft."""
    runner = Runner()
    drafter = BlockDrafter(runner, CONFIG, num_blocks=64, block_size=64)
    observed(drafter, 0, 60)
    assert runner.written == []
    observed(drafter, 60, 5)
    assert runner.written == [(0, 60), (60, 5)]


def test_no_draft_beyond_the_longest_context() -> None:
    """Catches positions the drafter was never trained for."""
    runner = Runner()
    short = replace(CONFIG, max_context_len=9)
    drafter = BlockDrafter(runner, short, num_blocks=4, block_size=4)
    observed(drafter, 0, 8)
    assert proposed(drafter, batch_of(6)) == 4
    assert proposed(drafter, batch_of(7)) == 0


def test_a_draft_longer_than_a_block_is_refused() -> None:
    """Catches slots that were never trained."""
    assert drafter_with(Runner(), 3).max_draft_len == 3
    with pytest.raises(ConfigError, match=r"is 5.*trained for 4.*ask for 4 or fewer"):
        drafter_with(Runner(), 5)
    dropped = replace(CONFIG, layout="anchor-drop")
    with pytest.raises(ConfigError, match="trained for 3"):
        BlockDrafter(Runner(), dropped, num_blocks=4, block_size=4, max_draft_len=4)


def test_another_shape_of_target_is_refused() -> None:
    """Catches a drafter that reads layers or shares rows the target does not have."""
    require_shape(CONFIG, SPEC)
    others = [
        replace(SPEC, num_layers=3),
        replace(SPEC, vocab_size=65),
        replace(SPEC, hidden_size=48),
    ]
    for other in others:
        with pytest.raises(IncompatibleDraft, match="use the target it was trained for"):
            require_shape(CONFIG, other)


def test_a_vocabulary_out_of_order_is_put_in_order() -> None:
    """Catches a Markov row that stays behind when its token moves."""
    given = tiny_block(replace(CONFIG, draft_vocab_size=9))
    assert given.draft_ids is not None
    assert given.network.markov_head is not None
    rows = given.network.markov_head.markov_w2.weight.clone()
    expected = {int(token): row for token, row in zip(given.draft_ids, rows, strict=True)}
    shuffled = torch.tensor([4, 0, 8, 2, 1, 7, 3, 6, 5])
    given.network.markov_head.markov_w2.weight.data = rows[shuffled]
    ordered = ascending(BlockCheckpoint(given.network, given.draft_ids[shuffled]))
    assert ordered.draft_ids is not None
    assert ordered.draft_ids.tolist() == sorted(expected)
    for token, row in zip(
        ordered.draft_ids, given.network.markov_head.markov_w2.weight, strict=True
    ):
        assert torch.equal(row, expected[int(token)])
    assert ascending(ordered) is ordered


def test_the_first_of_equals_is_a_candidate() -> None:
    """Catches candidates that depend on how ties are sorted, and NaN among them."""
    row = torch.tensor([1.0, 5.0, 2.0, torch.nan, 2.0, 2.0, -torch.inf])
    assert largest(row, 3).tolist() == [1, 2, 4]
    assert largest(row[:2], 3).tolist() == [0, 1]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target"), SPEC, seed=1)


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("method", ["dspark", "dflash"])
def test_llm_drafts_with_a_checkpoint(
    target: Path, tmp_path: Path, method: str, backend: str
) -> None:
    """Catches a checkpoint, a pool or a target's rows that do not reach the drafter."""
    config = replace(CONFIG, target_hash=target_hash(open_checkpoint(target)))
    drafter = write_tiny_block(tmp_path / "drafter", config)
    options: dict[str, Any] = {"backend": backend, "kv_cache_tokens": 512}
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    plain = LLM(str(target), **options)
    drafting = plain.sibling(speculative_config={"method": method, "model": str(drafter)})
    expected = plain.generate([[5, 9, 12, 40]], params)[0].outputs[0]
    drafted = drafting.generate([[5, 9, 12, 40]], params)[0].outputs[0]
    assert drafted.token_ids == expected.token_ids
    assert drafted.acceptance.verified > 0


def refused(target: Path, **config: Any) -> LLM:
    return LLM(str(target), backend="torch", speculative_config=config)


def test_wrong_drafters_are_refused(target: Path, tmp_path: Path) -> None:
    """Catches a drafter of another target, none at all, or one that cannot be read."""
    with pytest.raises(ConfigError, match="'dspark' needs a drafter"):
        refused(target, method="dspark")
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        refused(target, method="dspark", model=str(tmp_path))
    other = write_tiny_block(tmp_path / "other", replace(CONFIG, target_hash="00ff"))
    with pytest.raises(IncompatibleDraft, match="00ff"):
        refused(target, method="dspark", model=str(other))
    foreign = tiny_block_config(replace(SPEC, num_layers=5))
    deeper = write_tiny_block(tmp_path / "deeper", foreign)
    with pytest.raises(IncompatibleDraft, match="a number of layers of 5"):
        refused(target, method="dflash", model=str(deeper))
    fine = write_tiny_block(tmp_path / "fine", CONFIG)
    with pytest.raises(ConfigError, match="num_speculative_tokens is 9"):
        refused(target, method="dflash", model=str(fine), num_speculative_tokens=9)
    with pytest.raises(CorruptCheckpoint, match="mask_token_id is 64"):
        replace(CONFIG, mask_token_id=64)
    with pytest.raises(CorruptCheckpoint, match="target_layer_ids"):
        replace(CONFIG, target_layer_ids=(0, 7))


def unasked(rounds: int, length: int = 1) -> tuple[Runner, BlockDrafter]:
    """A drafter that has seen so many rounds of one request since it last drafted."""
    runner = Runner()
    drafter = BlockDrafter(runner, CONFIG, num_blocks=64, block_size=4096)
    observed(drafter, 0, 4)
    assert proposed(drafter, batch_of(5)) == 4
    for number in range(rounds):
        observed(drafter, 4 + number * length, length)
    return runner, drafter


def test_context_that_nobody_asks_for_is_not_computed() -> None:
    """Catches a drafter that works beside every step of an engine that never asks it."""
    runner, drafter = unasked(PATIENCE + 100)
    assert runner.written == [(0, 4)]
    observed(drafter, PATIENCE + 104, 80)
    assert runner.written == [(0, 4)]
    assert proposed(drafter, batch_of(PATIENCE + 185)) == 4
    assert [kv_len for kv_len, _ in runner.written[1:]] == list(range(4, PATIENCE + 105))
    # It is in use again, so a prompt is turned into context at once.
    num_written = len(runner.written)
    observed(drafter, PATIENCE + 184, 80)
    assert len(runner.written) == num_written + 1


def test_context_waits_while_far_more_requests_run_than_asked() -> None:
    """Catches prompts of a full house that are turned into context nobody will ask for."""
    runner = Runner()
    drafter = BlockDrafter(runner, CONFIG, num_blocks=64, block_size=4096)

    def prompts(number: int) -> None:
        """Of so many requests, a block each."""
        rows = tuple(
            RowOutcome(
                RequestId(f"r{index}"), 40, 0, 0, 0, (), is_finished=False, kv_len=0,
                block_table=(BlockId(index),),
            )
            for index in range(number)
        )  # fmt: skip
        firsts = tuple(40 * index for index in range(number))
        features = torch.zeros(40 * number, WIDTH)
        drafter.observe(Outcome(rows), Scores(torch.zeros(1, 64), firsts, features, firsts))

    prompts(3)
    assert runner.written == []
    prompts(2)
    assert runner.written == [(0, 40)] * 5


def test_the_oldest_of_too_many_features_are_given_up() -> None:
    """Catches features that pile up without end, or a draft over slots that were given up."""
    runner, drafter = unasked(PATIENCE + 2, 60)
    written = len(runner.written)
    observed(drafter, 4 + 60 * (PATIENCE + 2), MOST_KEPT)
    assert proposed(drafter, batch_of(5 + 60 * (PATIENCE + 2) + MOST_KEPT)) == 0
    assert len(runner.written) == written
    # A request that computes those slots anew has all it needs.
    observed(drafter, 0, 8)
    assert proposed(drafter, batch_of(9)) == 4


def test_features_of_a_request_that_ended_unasked_are_given_up() -> None:
    """Catches features of the dead that push out those of the living."""
    runner, drafter = unasked(PATIENCE + 2)
    drafter.forget(RequestId("other"))
    assert proposed(drafter, batch_of(PATIENCE + 7)) == 4
    runner, drafter = unasked(PATIENCE + 2)
    drafter.forget(RequestId("r"))
    assert proposed(drafter, batch_of(PATIENCE + 7)) == 0
    assert runner.written == [(0, 4)]
