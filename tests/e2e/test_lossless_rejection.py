"""Rejection through the whole engine: the joint law of four tokens against exact enumeration."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from scipy import stats

from outrider.core.request import SamplingParams, VerifyRule
from outrider.drafters.base import Drafter
from outrider.drafters.combined import CombinedDrafter, cheap_drafts
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import Proposal, RowProposal, Taps
from outrider.testing.scripted import (
    RowDrafter,
    ScriptedLengths,
    TinyEngine,
    ragged,
    random_drafter,
    requests_of,
    run_all,
    table_drafter,
    tiny_engine,
)
from outrider.testing.table_target import SeededTable, TableTarget
from outrider.verify.accept import acceptance_prob, residual
from tests import exact
from tests.tables import table_of_texts
from tests.unchecked import unchecked

VOCAB, LENGTH, DRAFT_LEN = 4, 4, 3
PROMPT = (0, 1)
NUM_SEQUENCES = 5000
FALSE_ALARM = 1e-6
# Cells expected less often than this are counted as one.
SMALL = 5.0

TARGET = SeededTable(VOCAB, seed=1, sharpness=1.0)
DRAFT = SeededTable(VOCAB, seed=2, sharpness=1.0)


def likeliest(row: BatchRow, rule: str) -> RowProposal:
    """A certain drafter that has studied the target: each time its most likely token."""
    tokens = list(row.sequence.tokens)
    for _ in range(DRAFT_LEN):
        tokens.append(int(TARGET(tuple(tokens)).argmax()))
    return RowProposal(tuple(tokens[len(row.sequence) :]))


class Moody:
    """A drafter that is sure of itself in every second slot only."""

    taps: Taps = ()
    max_draft_len = DRAFT_LEN

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.observe, self.forget = inner.observe, inner.forget

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        rows = self._inner.propose(batch, rule).rows
        moods = (0.02, 0.9, 0.02)
        return Proposal(tuple(replace(row, confidence=moods[: len(row.tokens)]) for row in rows))


def combined() -> Drafter:
    """Drawn and copied tokens in one draft, chosen slot by slot."""
    run = list(PROMPT)
    for _ in range(LENGTH):
        run.append(int(TARGET(tuple(run)).argmax()))
    table = table_of_texts([run] * 40, vocab_size=VOCAB)
    network = Moody(table_drafter(DRAFT_LEN, DRAFT))
    return CombinedDrafter(
        DRAFT_LEN, drafts=cheap_drafts(table), network=network, network_cost=0.0, min_survival=0.0
    )


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "drawn": lambda: table_drafter(DRAFT_LEN, DRAFT),
    "drawn-ragged": lambda: ragged(table_drafter(DRAFT_LEN, DRAFT)),
    "random": lambda: random_drafter(DRAFT_LEN, VOCAB),
    "combined": combined,
    "likeliest": lambda: RowDrafter(DRAFT_LEN, likeliest),
}


@cache
def expected() -> exact.Law:
    return exact.chain_law(exact.probabilities_of(TARGET), PROMPT, LENGTH)


def chi_square(counts: dict[exact.Run, float], num: int) -> tuple[float, int]:
    """The statistic against `expected`, and its degrees of freedom."""
    large = [run for run, mass in expected().items() if num * mass >= SMALL]
    rest_expected = num * (1.0 - sum(expected()[run] for run in large))
    rest = num - sum(counts.get(run, 0.0) for run in large)
    statistic = sum(
        (counts.get(run, 0.0) - num * expected()[run]) ** 2 / (num * expected()[run])
        for run in large
    )
    if rest_expected >= SMALL:
        return statistic + (rest - rest_expected) ** 2 / rest_expected, len(large)
    return statistic, len(large) - 1


def power(alternative: exact.Law) -> float:
    """Chance that the test below notices a decoder with this law."""
    noncentrality, degrees = chi_square(
        {run: NUM_SEQUENCES * mass for run, mass in alternative.items()}, NUM_SEQUENCES
    )
    border = stats.chi2.isf(FALSE_ALARM, degrees)
    return float(stats.ncx2.sf(border, degrees, noncentrality))


@pytest.mark.stat
@pytest.mark.parametrize("name", DRAFTERS)
@unchecked()
def test_joint_law_of_four_tokens(name: str) -> None:
    """n = 5,000 requests with seeds of their own, 4 tokens of 4, chi-square over their runs.

    False-alarm rate 1e-6 per drafter, seeds fixed. Power against the named alternatives below is
    above 0.99. Catches noise shared between rounds, slots or purposes, which no formula shows.
    """
    target = TableTarget(TARGET, VOCAB, num_blocks=256, block_size=4)
    options = TinyEngine(rule="rejection", lengths=ScriptedLengths([3, 1, 2, 0, 3, 3]))
    engine = tiny_engine(target, DRAFTERS[name](), options)
    params = SamplingParams(max_tokens=LENGTH, temperature=1.0)
    sequences = run_all(engine, requests_of([PROMPT] * NUM_SEQUENCES, params))
    counts = Counter(tuple(each.output) for each in sequences)
    assert all(len(run) == LENGTH for run in counts)
    statistic, degrees = chi_square(dict(counts), NUM_SEQUENCES)
    assert statistic < stats.chi2.isf(FALSE_ALARM, degrees)
    acceptance = engine.acceptance
    assert 0 < acceptance.accepted < acceptance.verified


def without_residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    return target


def greedy_residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    law = residual(target, draft)
    return torch.eye(len(law), dtype=law.dtype)[law.argmax()]


def generous(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    return acceptance_prob(target, draft).sqrt()


def swapped(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    return acceptance_prob(draft, target)


@pytest.mark.parametrize(
    "rule",
    [
        exact.AcceptRule(recovered=without_residual),
        exact.AcceptRule(recovered=greedy_residual),
        exact.AcceptRule(chance=generous),
        exact.AcceptRule(chance=swapped),
    ],
    ids=["no-residual", "greedy-residual", "generous", "swapped"],
)
@unchecked()
def test_the_statistics_can_see_the_named_mistakes(rule: exact.AcceptRule) -> None:
    """Catches a sample too small to notice a wrong accept rule; the power is computed exactly."""
    rows = exact.probabilities_of(TARGET), exact.probabilities_of(DRAFT)
    # Longer drafts make a mistake more visible, and take longer to enumerate.
    assert power(exact.decoding_law(*rows, PROMPT, LENGTH, 1, rule)) > 0.99


@unchecked()
def test_rounds_of_the_formula_add_up_to_the_target() -> None:
    """Catches an enumeration that is wrong itself: drafts of two tokens, round after round."""
    rows = exact.probabilities_of(TARGET), exact.probabilities_of(DRAFT)
    law = exact.decoding_law(*rows, PROMPT, 3, draft_len=2)
    chain = exact.chain_law(rows[0], PROMPT, 3)
    assert exact.distance(law, chain) < 1e-12


@pytest.mark.parametrize("rule", ["matching", "rejection"])
@unchecked()
def test_rejection_is_what_it_costs(rule: str) -> None:
    """Catches a drafter that does not use the request's rule, or a rule that accepts too little.

    n = 1,500 first drafts. Exactly, rejection accepts 1 − TV of them, and shared noise at least
    (1 − TV)/(1 + TV); a deviation of 5 standard errors is called a failure, once in 10^6.
    """
    target = TableTarget(TARGET, VOCAB, num_blocks=256, block_size=4)
    engine = tiny_engine(target, table_drafter(1, DRAFT), TinyEngine(rule=rule))  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=2, temperature=1.0)
    num = 1500
    run_all(engine, requests_of([PROMPT] * num, params))
    overlap = float(torch.minimum(TARGET(PROMPT).exp(), DRAFT(PROMPT).exp()).sum())
    rate = engine.acceptance.accepted_at[0] / num
    error = 5 * (overlap * (1 - overlap) / num) ** 0.5
    if rule == "rejection":
        assert abs(rate - overlap) < error
    else:
        distance = 1 - overlap
        assert (1 - distance) / (1 + distance) - error < rate < overlap + error
