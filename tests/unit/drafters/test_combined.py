"""The combined drafter asks the network where it pays and keeps what each source is good at."""

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import replace
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Protocol

import pytest
import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome, RowOutcome
from outrider.core.price import DraftPrice
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.core.sequence import Sequence
from outrider.drafters.cheap import CheapDrafts, PlainDrafts
from outrider.drafters.combined import CombinedDrafter, cheap_drafts, located
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.ngram_table_file import NgramTable
from outrider.engine.llm import LLM
from outrider.errors import ConfigError
from outrider.models.checkpoint import open_checkpoint
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.native.machines import require_native
from tests.tables import table_of_texts
from tests.unchecked import unchecked

VOCAB = 30
NEW = [5]  # nothing repeats, and the table below knows nothing about it
LOOP = [1, 2, 3, 4] * 6
SAMPLED = SamplingParams(temperature=1.0)
GREEDY = SamplingParams(temperature=0.0)
EMPTY = Scores(torch.empty(0, VOCAB), (-1,), None, (0,))


class FakeNetwork:
    """Says the same to every row it is asked for, and notes what it was asked."""

    max_draft_len = 4
    taps: Taps = (1, 3)

    def __init__(self, said: RowProposal) -> None:
        self.said = said
        self.asked: list[list[int]] = []
        self.observed = 0
        self.forgotten: list[str] = []

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        self.asked.append([row.max_draft_len for row in batch])
        return Proposal(
            tuple(
                self.said.first(row.max_draft_len) if row.max_draft_len else NO_PROPOSAL
                for row in batch
            )
        )

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        self.observed += 1

    def forget(self, request_id: RequestId) -> None:
        self.forgotten.append(request_id)


def says(tokens: Tokens[int], chance: float, *, is_drawn: bool = False) -> RowProposal:
    probs = torch.full((len(tokens), VOCAB), 1 / VOCAB) if is_drawn else None
    return RowProposal(tuple(tokens), probs, (chance,) * len(tokens), ("dspark",) * len(tokens))


def row(
    tokens: Tokens[int], most: int = 6, params: SamplingParams = GREEDY, name: str = "r"
) -> BatchRow:
    request = Request(RequestId(name), tuple(tokens), params, seed=0)
    return BatchRow(Sequence.of(request), len(tokens) - 1, 1, most, ())


class Maker(Protocol):
    """Makes a combined drafter of up to 6 tokens that ends no draft early."""

    def __call__(
        self,
        network: FakeNetwork | None,
        cost: float = 0.0,
        texts: Tokens[Tokens[int]] = (),
    ) -> CombinedDrafter: ...


@pytest.fixture(params=["plain", "native"])
def combined(request: pytest.FixtureRequest) -> Maker:
    """With cheap drafts made in Python, and made in C++."""
    make: Callable[[NgramTable | None], CheapDrafts] = PlainDrafts
    if request.param == "native":
        require_native()
        make = cheap_drafts

    def made(
        network: FakeNetwork | None, cost: float = 0.0, texts: Tokens[Tokens[int]] = ()
    ) -> CombinedDrafter:
        table = table_of_texts(texts, vocab_size=VOCAB) if texts else None
        return CombinedDrafter(
            6, drafts=make(table), network=network, network_cost=cost, min_survival=0.0
        )

    return made


def proposed(drafter: CombinedDrafter, one: BatchRow, rule: VerifyRule = "matching") -> RowProposal:
    return drafter.propose(Batch((one,)), rule).rows[0]


def test_the_network_drafts_only_rows_for_which_it_pays(combined: Maker) -> None:
    """Catches a network that is run for a row that copies itself, or for one without leave."""
    network = FakeNetwork(says([7, 8], 0.9))
    drafter = combined(network, cost=0.3)
    batch = Batch((row(LOOP, name="a"), row(NEW, name="b"), row(NEW, 0, name="c")))
    rows = drafter.propose(batch, "matching").rows
    assert network.asked == [[0, 6, 0]]
    assert rows[0].sources == ("suffix",) * 6
    assert rows[1].tokens == (7, 8)
    assert rows[1].sources == ("dspark", "dspark")
    assert rows[2] == NO_PROPOSAL
    drafter.propose(Batch((row(LOOP, name="a"),)), "matching")
    assert len(network.asked) == 1


def test_a_dear_network_is_not_asked_and_a_free_one_always(combined: Maker) -> None:
    """Catches a cost that is left out, or counted twice."""
    for cost, is_asked in ((0.0, True), (100.0, False)):
        network = FakeNetwork(says([7], 0.9))
        combined(network, cost).propose(Batch((row(NEW),)), "matching")
        assert bool(network.asked) is is_asked


def judged(drafter: CombinedDrafter, one: BatchRow, accepted: int) -> None:
    """One round in which `accepted` of the draft held."""
    drafts = proposed(drafter, one).tokens
    done = RowOutcome(one.sequence.id, 1, len(drafts), len(drafts), accepted, (0,), False)
    drafter.observe(Outcome((done,)), EMPTY)


def test_a_network_that_never_holds_is_asked_less(combined: Maker) -> None:
    """Catches a gain that is not learnt, or a request that never forgives its network."""
    network = FakeNetwork(says([7, 8], 0.9))
    drafter = combined(network, cost=0.5)
    for _ in range(40):
        judged(drafter, row(NEW), 0)
    assert 0 < len(network.asked) < 20
    network = FakeNetwork(says([7, 8], 0.9))
    drafter = combined(network, cost=0.5)
    for _ in range(40):
        judged(drafter, row(NEW), 2)
    assert len(network.asked) == 40


def test_a_draft_goes_on_behind_the_network(combined: Maker) -> None:
    """Catches a table that has nothing to add to the network's tokens."""
    drafter = combined(FakeNetwork(says([7, 8], 0.9)), texts=[[8, 9, 10]] * 5)
    draft = proposed(drafter, row(NEW))
    assert draft.tokens[:4] == (7, 8, 9, 10)
    assert draft.sources is not None
    assert draft.sources[:4] == ("dspark", "dspark", "ngram-table", "ngram-table")


def test_another_source_takes_over_where_it_promises_more(combined: Maker) -> None:
    """Catches a network that is followed to the end whatever the others know."""
    drafter = combined(FakeNetwork(says([7, 12, 13], 0.2)), texts=[[7, 8, 9, 10]] * 20)
    draft = proposed(drafter, row(NEW))
    assert draft.tokens[:4] == (7, 8, 9, 10)
    assert draft.sources is not None
    assert draft.sources[:2] == ("dspark", "ngram-table")


def test_agreement_makes_a_token_likelier(combined: Maker) -> None:
    """Catches two sources that say the same and are believed like one."""
    alone = proposed(combined(FakeNetwork(says([8], 0.5))), row(NEW))
    both = proposed(combined(FakeNetwork(says([8], 0.5)), texts=[[5, 8, 2]] * 2), row(NEW))
    assert alone.tokens[0] == both.tokens[0] == 8
    assert alone.confidence is not None
    assert both.confidence is not None
    assert alone.confidence[0] == pytest.approx(0.5)
    assert both.confidence[0] > 0.7


@pytest.mark.parametrize("token", [8, 11])
@pytest.mark.parametrize("chance", [0.05, 0.95])
def test_under_rejection_the_source_is_chosen_before_the_token_is_seen(
    combined: Maker, token: int, chance: float
) -> None:
    """Catches a drawn token that is kept because of what it is: its law is then another one."""
    network = FakeNetwork(says([token, 12], chance, is_drawn=True))
    drafter = combined(network, texts=[[5, 8, 9, 10]] * 9)
    draft = proposed(drafter, row(NEW, params=SAMPLED), "rejection")
    assert draft.sources is not None
    assert draft.confidence is not None
    if chance < 0.5:
        assert draft.sources[0] == "ngram-table"
        assert draft.probs is None
    else:
        assert draft.sources[0] == "dspark"
        assert draft.confidence[0] == pytest.approx(0.95)
        assert draft.probs is not None


def test_probs_are_those_each_token_was_drawn_from(combined: Maker) -> None:
    """Catches a copied token with the network's distribution, or the reverse."""
    network = FakeNetwork(says([7, 8], 0.9, is_drawn=True))
    drafter = combined(network, texts=[[8, 9, 10]] * 5)
    draft = proposed(drafter, row(NEW, params=SAMPLED), "rejection")
    assert draft.sources is not None
    assert draft.sources[:3] == ("dspark", "dspark", "ngram-table")
    assert draft.probs is not None
    assert draft.probs.shape == (len(draft.tokens), VOCAB)
    assert torch.equal(draft.probs[:2], torch.full((2, VOCAB), 1 / VOCAB))
    for token, probs in zip(draft.tokens[2:], draft.probs[2:], strict=True):
        assert probs.sum() == probs[token] == 1


def test_the_network_is_told_everything(combined: Maker) -> None:
    """Catches features that do not reach the network in rounds it did not draft."""
    network = FakeNetwork(says([7], 0.9))
    drafter = combined(network, cost=100.0)
    assert drafter.taps == (1, 3)
    assert combined(None).taps == ()
    judged(drafter, row(NEW), 0)
    assert network.observed == 1
    drafter.forget(RequestId("r"))
    drafter.forget(RequestId("r"))
    assert network.forgotten == ["r", "r"]


def test_a_network_without_confidence_is_learnt(combined: Maker) -> None:
    """Catches a draft model, which gives no confidence, whose chances stay at one half."""
    network = FakeNetwork(RowProposal((7, 8)))
    drafter = combined(network)
    for _ in range(60):
        judged(drafter, row(NEW), 2)
    draft = proposed(drafter, row(NEW))
    assert draft.sources == ("network", "network")
    assert draft.confidence is not None
    assert min(draft.confidence) > 0.6


def test_nothing_to_combine_is_refused(tmp_path: Path) -> None:
    """Catches a combined drafter that is the suffix drafter under another name."""
    model = str(write_tiny_checkpoint(tmp_path / "model", tiny_spec(), seed=1))
    with pytest.raises(ConfigError, match="needs something to combine"):
        LLM(model, dtype="float32", speculative_config={"method": "combined"})


@unchecked()
def test_a_draft_model_can_be_the_network(tmp_path: Path) -> None:
    """Catches a network that is built from the wrong options, or not at all."""
    spec = tiny_spec(vocab_size=64)
    model = str(write_tiny_checkpoint(tmp_path / "model", spec, seed=1))
    tokenizer = open_checkpoint(model).tokenizer.fingerprint
    table = tmp_path / "table.safetensors"
    table_of_texts([[3, 4, 5, 6]], vocab_size=64, tokenizer=tokenizer).save(table)
    config = {
        "method": "combined",
        "model": model,
        "network": "draft-model",
        "ngram_table": str(table),
        "network_cost": 0,
        "min_survival": 0,
    }
    llm = LLM(model, dtype="float64", speculative_config=config)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    output = llm.generate([[3, 9, 4]], params)[0].outputs[0]
    plain = LLM(model, dtype="float64").generate([[3, 9, 4]], params)[0].outputs[0]
    assert output.token_ids == plain.token_ids
    # The target drafts for itself, so its drafts hold.
    assert output.acceptance.by_source["draft-model"].accept_rate == 1.0
    assert output.acceptance.acceptance_length > 2


def test_a_folder_of_drafters_says_what_it_holds(tmp_path: Path) -> None:
    """Catches a table beside the network that is overlooked, or a network that is not there."""

    def found(folder: Path, named: str | None = None) -> tuple[str | None, str | None]:
        config = SpeculativeConfig(method="combined", model=str(folder), ngram_table=named)
        return located(config).model, located(config).ngram_table

    empty, both, flat, table = (tmp_path / name for name in ("empty", "both", "flat", "table"))
    for folder in (empty, both / "network", flat, table):
        folder.mkdir(parents=True)
    for path in (both / "network" / "config.json", flat / "config.json"):
        path.write_text("{}", "utf-8")
    for folder in (both, flat, table):
        (folder / "ngram-table.safetensors").write_bytes(b"")
    assert found(empty) == (str(empty), None)
    assert found(both) == (str(both / "network"), str(both / "ngram-table.safetensors"))
    assert found(flat) == (str(flat), str(flat / "ngram-table.safetensors"))
    assert found(table) == (None, str(table / "ngram-table.safetensors"))
    assert found(both, "other") == (str(both / "network"), "other")
    assert located(SpeculativeConfig(method="combined")) == SpeculativeConfig(method="combined")


def price(step_seconds: float, row_seconds: float = 0.0, judged: int = 2) -> DraftPrice:
    """A step in which the network takes one second per request."""
    return DraftPrice(judged, step_seconds, row_seconds, float)


def test_the_network_is_asked_for_as_many_rows_as_pay(combined: Maker) -> None:
    """Catches a price of one request that is taken for that of a batch, and rows in any order."""

    def asked(at: DraftPrice) -> list[list[int]]:
        network = FakeNetwork(says([7, 8], 0.9))
        rows = (row(LOOP, name="a"), row(NEW, name="b"))
        combined(network, cost=100.0).propose(Batch(rows, at), "matching")
        return network.asked

    # Two tokens and nine that the copy promises come in 100 seconds; 0.2 and 0.8 more from it.
    assert asked(price(100.0)) == [[6, 6]]
    assert asked(price(20.0)) == [[0, 6]]
    assert asked(price(5.0)) == []
    # Rows at a tenth of a token each leave the gain, at nine tenths nothing.
    assert asked(price(20.0, 1.0)) == [[0, 6]]
    assert asked(price(20.0, 9.0)) == []


def test_a_dear_row_ends_a_draft(combined: Maker) -> None:
    """Catches tokens that are drafted although none of them can be worth its row."""
    batch = Batch((row([1, 2, 1]),))
    free = combined(None).propose(batch, "matching").rows[0]
    dear = combined(None).propose(replace(batch, price=price(4.0, 2.0)), "matching").rows[0]
    assert free.confidence is not None
    assert dear.confidence is not None
    survival = list(accumulate(free.confidence, mul))
    assert len(free.tokens) == 6
    assert len(dear.tokens) == sum(value >= 0.5 for value in survival) < 6


@pytest.mark.parametrize("holds", [True, False])
def test_the_gain_is_learnt_from_drafts_that_were_cut(combined: Maker, holds: bool) -> None:
    """Catches a network that keeps its first credit because no draft is verified whole."""
    network = FakeNetwork(says([7, 8, 9], 0.9))
    drafter = combined(network, cost=0.5)
    for _ in range(40):
        one = row(NEW)
        num_drafted = len(proposed(drafter, one).tokens)
        done = RowOutcome(one.sequence.id, 1, num_drafted, 1, int(holds), (0,), False)
        drafter.observe(Outcome((done,)), EMPTY)
    assert (len(network.asked) == 40) is holds
    assert len(network.asked) > 0
