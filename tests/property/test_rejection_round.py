"""One round of rejection by the code that serves requests: its exact law, and its edges."""

import math
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.ids import RequestId
from outrider.core.outcome import Origin
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.sampling.noise import Purpose
from outrider.tensor.window import RowProposal, RowVerdict
from outrider.testing.table_target import SeededTable
from outrider.verify import rejection
from outrider.verify.matching import EMPTY_MASK, NOT_NUMBERS
from tests import exact
from tests.strategies import normalised
from tests.unchecked import unchecked

VOCAB = 3
SAMPLED = SamplingParams(temperature=1.0)


def sequence(params: SamplingParams = SAMPLED, num_rounds: int = 0) -> Tokens:
    made = Tokens.of(Request(RequestId("r"), (0,), params, seed=1))
    made.num_rounds = num_rounds
    return made


def judged(
    patch: pytest.MonkeyPatch,
    rows: Sequence[Tensor | None],
    draft: RowProposal,
    accept: Sequence[float],
    added: float,
) -> RowVerdict:
    """The verdict under chosen noise."""

    def chosen(seed: int, purpose: Purpose, round_number: int, *slot: int) -> float:
        return added if purpose is Purpose.ADD else accept[slot[0]]

    patch.setattr(rejection, "uniform", chosen)
    return rejection.reject_rows(rows, draft, sequence())


def law_of_the_code(
    patch: pytest.MonkeyPatch, rows: Sequence[Tensor], draft: RowProposal
) -> exact.Law:
    """Integrate the verdict over its noise, by the borders of its steps."""
    law: exact.Law = {}
    reach, num_drafts = 1.0, len(draft.tokens)
    for slot in range(num_drafts + 1):
        before = [0.0] * slot
        rest = [0.0] * (num_drafts - slot - 1)
        chance = 0.0
        if slot < num_drafts:
            chance = exact.threshold(
                lambda x, b=before, r=rest, s=slot: (  # type: ignore[misc]
                    judged(patch, rows, draft, [*b, x, *r], 0.5).accepted > s
                )
            )
        if chance < 1.0:
            noise = [*before, 1.0, *rest][:num_drafts]
            split = exact.masses(lambda x, n=noise: judged(patch, rows, draft, n, x).added)  # type: ignore[misc]
            for token, mass in split.items():
                exact.add(law, (*draft.tokens[:slot], token), reach * (1 - chance) * mass)
        reach *= chance
    return law


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_probs", [True, False], ids=["probs", "certain"])
@unchecked()
def test_a_round_has_exactly_the_law_of_the_formula(
    seed: int, with_probs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches p and q swapped, a wrong residual, a bonus from the draft: all of it, without chance.

    The verdict is integrated over its noise to 1e-12 for every draft of 0 to 2 tokens. Completed by
    the target it must be the target's chain: averaged over the drafts' own law where they were
    drawn, for each draft where it is certain.
    """
    target = SeededTable(VOCAB, seed, sharpness=1.5)
    draft = SeededTable(VOCAB, seed + 100, sharpness=1.5)
    target_rows = exact.probabilities_of(target)
    for length in range(3):
        whole: exact.Law = {}
        chain = exact.chain_law(target_rows, (0,), length + 1)
        for drafts in product(range(VOCAB), repeat=length):
            past = [(0, *drafts[:slot]) for slot in range(length + 1)]
            own = [target(each) for each in past]
            if with_probs:
                draft_rows = exact.probabilities_of(draft)
                probs = torch.stack([draft(each) for each in past]).exp()[:length]
            else:
                draft_rows = lambda prefix, run=drafts: [  # type: ignore[misc] # noqa: E731
                    float(token == run[len(prefix) - 1]) for token in range(VOCAB)
                ]
                probs = None
            drawn = math.prod(draft_rows(each)[t] for each, t in zip(past, drafts, strict=False))
            law = law_of_the_code(monkeypatch, own, RowProposal(drafts, probs))
            formula = exact.window_law(target_rows, draft_rows, (0,), drafts)
            assert exact.distance(law, formula) < 1e-12
            completed = exact.completed(law, target_rows, (0,), length + 1)
            if not with_probs:
                assert exact.distance(completed, chain) < 1e-12
            for run, mass in completed.items():
                exact.add(whole, run, drawn * mass)
        assert not with_probs or exact.distance(whole, chain) < 1e-12


@given(st.integers(0, 1 << 30), st.integers(0, 3), st.integers(0, 1 << 20))
def test_noise_is_keyed_by_round_and_slot(seed: int, length: int, round_number: int) -> None:
    """Catches a position that is drafted again and meets the very noise that rejected it."""
    asked: list[tuple[int, ...]] = []

    def noted(*key: int) -> float:
        asked.append(key)
        return 0.0

    own = Tokens.of(Request(RequestId("r"), (0,), SAMPLED, seed=seed))
    own.num_rounds = round_number
    rows = [normalised([1.0, 1.0, 1.0]).log()] * (length + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rejection, "uniform", noted)
        rejection.reject_rows(rows, RowProposal((1,) * length), own)
    assert len(set(asked)) == len(asked) == length + 1
    assert all(key[0] == seed and key[2] == round_number for key in asked)


def test_a_token_that_cannot_come_is_never_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches `<=` in the accept test: noise of exactly 0 accepts a token of probability 0."""
    rows = [normalised([0.0, 0.5, 0.5]).log()] * 2
    verdict = judged(monkeypatch, rows, RowProposal((0,)), [0.0], 0.0)
    assert verdict == RowVerdict(0, 1, Origin.RECOVERED)


def test_a_certain_token_is_always_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a division that makes min(1, p/q) a little less than 1."""
    rows = [normalised([0.0, 1.0, 0.0]).log()] * 2
    probs = torch.tensor([[0.3, 0.3, 0.4]], dtype=torch.float64)
    largest = 1.0 - 2.0**-53
    verdict = judged(monkeypatch, rows, RowProposal((1,), probs), [largest], largest)
    assert verdict == RowVerdict(1, 1, Origin.BONUS)


def test_origins_name_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a round without drafts that reports a bonus."""
    rows = [normalised([1.0, 1.0, 1.0]).log()] * 2
    assert judged(monkeypatch, rows, RowProposal(), [], 0.5).origin is Origin.TARGET
    assert judged(monkeypatch, rows, RowProposal((0,)), [0.0], 0.5).origin is Origin.BONUS
    assert judged(monkeypatch, rows, RowProposal((0,)), [0.9], 0.5).origin is Origin.RECOVERED


def test_what_cannot_be_judged_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a token drawn from NaN, or from a mask that leaves nothing."""
    nothing = torch.full((VOCAB,), -math.inf, dtype=torch.float64)
    sound = normalised([1.0, 1.0, 1.0]).log()
    broken: list[tuple[list[Tensor | None], str]] = [
        ([None, sound], NOT_NUMBERS),
        ([sound, None], NOT_NUMBERS),
        ([nothing, sound], EMPTY_MASK),
        ([sound, nothing], EMPTY_MASK),
    ]
    for rows, sentence in broken:
        verdict = judged(monkeypatch, rows, RowProposal((0,)), [0.0], 0.5)
        assert verdict.failure == sentence
    # A broken row behind the rejected token is nobody's business.
    verdict = judged(monkeypatch, [sound, None], RowProposal((0,)), [0.9], 0.5)
    assert verdict.failure is None


def test_at_temperature_zero_a_draft_holds_iff_it_is_the_arg_max() -> None:
    """Catches chance in a greedy request under the rejection rule."""
    rows = [normalised([0.2, 0.5, 0.3]).log(), normalised([0.2, 0.3, 0.5]).log()]
    for seed in range(20):
        own = Tokens.of(Request(RequestId("r"), (0,), SamplingParams(temperature=0), seed=seed))
        for token in range(VOCAB):
            verdict = rejection.reject_rows(rows, RowProposal((token,)), own)
            held = token == 1
            origin = Origin.BONUS if held else Origin.RECOVERED
            assert verdict == RowVerdict(int(held), 2 if held else 1, origin)
