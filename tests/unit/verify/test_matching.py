"""Matching and the verifier: rows against tokens taken one by one."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ids import BlockId, RequestId
from outrider.core.outcome import Origin
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.core.sequence import Sequence as Tokens
from outrider.sampling import rows
from outrider.sampling.draw import coupled_token
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import Proposal, RowProposal, Scores, VerifyWindow
from outrider.verify.matching import EMPTY_MASK, NOT_NUMBERS, added_origin, match_ids, match_rows
from outrider.verify.verifier import RuleVerifier
from tests.strategies import logit_rows

VOCAB = 4
RUNS = st.lists(st.integers(0, VOCAB - 1), max_size=4)


def sequence(params: SamplingParams, seed: int = 0, num_output: int = 0) -> Tokens:
    made = Tokens.of(Request(RequestId(f"r{seed}"), (0, 1), params, seed))
    made.tokens += [2] * num_output
    return made


@given(RUNS, st.data())
def test_ids_are_matched_from_the_left(drafts: list[int], data: st.DataObject) -> None:
    """Catches a token accepted behind a rejected one, or an added token of the wrong position."""
    size = len(drafts) + 1
    targets = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size))
    verdict = match_ids(targets, drafts)
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == targets[accepted]:
        accepted += 1
    assert (verdict.accepted, verdict.added) == (accepted, targets[accepted])
    assert verdict.origin is added_origin(accepted, len(drafts))


@pytest.mark.parametrize(
    ("code", "reason"), [(rows.NOT_NUMBERS, NOT_NUMBERS), (rows.NONE_LEFT, EMPTY_MASK)]
)
def test_what_is_no_token_matters_only_where_it_is_reached(code: int, reason: str) -> None:
    """Catches a request that fails because of logits behind its rejected draft."""
    assert match_ids([1, code, 3], [0, 2]).failure is None
    assert match_ids([1, code, 3], [1, 2]).failure == reason
    assert match_ids([1, code, 3], [1, code]).failure == reason


@given(
    st.integers(0, 1 << 30), st.integers(0, 5), st.lists(logit_rows(VOCAB), min_size=4, max_size=4)
)
def test_rows_are_matched_by_the_noise_of_their_position(
    seed: int, num_output: int, given_rows: list[torch.Tensor]
) -> None:
    """Catches noise that is a position off, and a greedy row that is sampled."""
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=0.0)):
        own = sequence(params, seed, num_output)
        wanted = [
            coupled_token(row, seed, num_output + i, is_greedy=params.is_greedy)
            for i, row in enumerate(given_rows)
        ]
        for num_right in range(4):
            drafts = [*wanted[:num_right], *((t + 1) % VOCAB for t in wanted[num_right:3])]
            verdict = match_rows(given_rows, drafts, own)
            assert (verdict.accepted, verdict.added) == (num_right, wanted[num_right])


@pytest.mark.parametrize(
    ("accepted", "verified", "origin"),
    [
        (0, 0, Origin.TARGET),
        (0, 2, Origin.RECOVERED),
        (1, 2, Origin.RECOVERED),
        (2, 2, Origin.BONUS),
    ],
)
def test_origins(accepted: int, verified: int, origin: Origin) -> None:
    """Catches statistics that call a plain step a bonus."""
    assert added_origin(accepted, verified) is origin


def judged(
    sequences: Sequence[Tokens],
    drafts: Sequence[tuple[int, ...]],
    logits: torch.Tensor,
    rule: VerifyRule,
) -> list[tuple[int, int] | None]:
    """Verdicts of a batch whose second row is still reading its prompt."""
    batch, proposals, first_row, count = [], [], [], 0
    for index, (own, run) in enumerate(zip(sequences, drafts, strict=True)):
        unfinished = index == 1
        known = 1 if unfinished else len(own)
        batch.append(BatchRow(own, 0, known, len(run), (BlockId(index),)))
        proposals.append(RowProposal(run))
        first_row.append(-1 if unfinished else count)
        count += 0 if unfinished else len(run) + 1
    proposal = Proposal(tuple(proposals))
    window = VerifyWindow.build(Batch(tuple(batch)), proposal, [len(run) for run in drafts])
    scores = Scores(logits, tuple(first_row), None, tuple(range(len(batch))))
    verdicts = RuleVerifier(rule, frozenset()).judge(window, scores).rows
    return [None if each is None else (each.accepted, each.added) for each in verdicts]


@pytest.mark.parametrize("rule", ["matching", "rejection"])
def test_each_row_gets_its_own_logits(rule: VerifyRule) -> None:
    """Catches rows shifted by a mate that is not judged, or by the greedy short cut of another."""
    certain = torch.full((6, VOCAB), -math.inf, dtype=torch.float64)
    wanted = [3, 1, 2, 0, 2, 1]
    certain[range(6), wanted] = 0.0
    sequences = [
        sequence(SamplingParams(temperature=0), 0),
        sequence(SamplingParams(), 1),
        sequence(SamplingParams(temperature=1.0), 2),
        sequence(SamplingParams(temperature=0, presence_penalty=0.5), 3),
    ]
    drafts = [(3, 1), (), (0,), ()]
    assert judged(sequences, drafts, certain, rule) == [(2, 2), None, (1, 2), (0, 1)]
