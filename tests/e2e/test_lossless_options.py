"""Every option that changes a distribution, under each rule, over a table target."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats

from outrider.core.ids import RequestId
from outrider.core.request import SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.sampling.rows import RowSampler
from outrider.sampling.warp import Context
from outrider.tensor.window import RowProposal, RowVerdict
from outrider.testing.scripted import (
    TinyEngine,
    ragged,
    requests_of,
    run_all,
    table_drafter,
    tiny_engine,
    told_drafter,
)
from outrider.testing.table_target import SeededTable, TableTarget
from outrider.verify import verifier
from outrider.verify.matching import WarpedPositions
from outrider.verify.rejection import reject_rows
from tests import exact, oracle
from tests.plain_warp import plainly
from tests.sampling_matrix import proves
from tests.unchecked import unchecked

VOCAB, DRAFT_LEN = 7, 4
TARGET = SeededTable(VOCAB, seed=1, recent=3, sharpness=2.0)
DRAFT = SeededTable(VOCAB, seed=2, recent=2, sharpness=1.0)
PROMPTS = [(0, 3), (1, 2, 1), (4,), (2, 2, 2, 5), (6, 0), (3, 4, 5)]
END = frozenset({6})


def even_after_odd(output: Sequence[int]) -> set[int] | None:
    """A grammar: nothing is forbidden at first, then parities alternate."""
    return {t for t in range(VOCAB) if (t + output[-1]) % 2} if output else None


# Per option, settings under which it does a lot.
WARPS: dict[str, list[dict[str, Any]]] = {
    "temperature": [{"temperature": 0.4}, {"temperature": 2.5}],
    "top_k": [{"top_k": 1}, {"top_k": 3}],
    "top_p": [{"top_p": 0.4}, {"top_p": 0.8}],
    "min_p": [{"min_p": 0.5}, {"min_p": 1.0}],
    "repetition_penalty": [{"repetition_penalty": 3.0}, {"repetition_penalty": 0.4}],
    "presence_penalty": [{"presence_penalty": 2.0}, {"presence_penalty": -2.0}],
    "frequency_penalty": [{"frequency_penalty": 1.5}, {"frequency_penalty": -0.7}],
    "logit_bias": [{"logit_bias": {1: 3.0, 4: -100.0}}],
    "allowed_token_ids": [{"allowed_token_ids": frozenset({0, 2, 5, 6})}],
    "token_mask": [{"token_mask": even_after_odd}],
    "min_tokens": [{"min_tokens": 9}, {"min_tokens": 5, "stop_token_ids": frozenset({2, 3})}],
}
# These leave the arg-max where it is.
SHAPES = ("temperature", "top_k", "top_p", "min_p")
GREEDY: dict[str, Any] = {"temperature": 0.0}
ALL_AT_ONCE: dict[str, Any] = {
    "temperature": 1.3,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.02,
    "repetition_penalty": 1.4,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
    "logit_bias": {2: 1.0},
    "allowed_token_ids": frozenset({0, 1, 2, 3, 5}),
    "token_mask": even_after_odd,
}
settings = pytest.mark.parametrize(
    "setting",
    [
        *(one for each in WARPS.values() for one in each),
        # The same while greedy, where penalties and masks move the arg-max.
        *({**one, **GREEDY} for name in WARPS if name not in SHAPES for one in WARPS[name]),
        GREEDY,
        ALL_AT_ONCE,
    ],
    # No function's repr: with its address in them the ids would differ from run to run.
    ids=lambda setting: "-".join(
        f"{name}={getattr(value, '__name__', value)}" for name, value in setting.items()
    )[:60],
)


@dataclass(frozen=True)
class Case:
    """Requests under one setting, and what the oracle says of them."""

    setting: Mapping[str, Any]

    def requests(self, **more: Any) -> list[Any]:
        options = {"max_tokens": 11, "temperature": 1.0, **self.setting, **more}
        return requests_of(PROMPTS, SamplingParams(**options))

    def expected(self) -> dict[RequestId, list[int]]:
        return {each.id: oracle.decode(TARGET, each, END) for each in self.requests()}


def engine_of(
    drafter: Drafter | None = None,
    options: TinyEngine | None = None,
    sampler: RowSampler | None = None,
) -> Any:
    target = TableTarget(
        TARGET, VOCAB, num_blocks=256, block_size=4, stop_token_ids=END, sampler=sampler
    )
    return tiny_engine(target, drafter, options)


def outputs(sequences: Sequence[Tokens]) -> dict[RequestId, list[int]]:
    return {sequence.id: list(sequence.output) for sequence in sequences}


@settings
@unchecked()
@proves("plain", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty")
@proves("plain", "frequency_penalty", "logit_bias", "allowed_token_ids", "token_mask", "min_tokens")
def test_plain(setting: Mapping[str, Any], sampler: RowSampler) -> None:
    """Catches an engine that does not hand an option, or its history, to the warp."""
    case = Case(setting)
    assert outputs(run_all(engine_of(sampler=sampler), case.requests())) == case.expected()


@settings
@unchecked()
@proves("matching", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
@proves("matching", "presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids")
@proves("matching", "token_mask", "min_tokens")
def test_matching(setting: Mapping[str, Any], sampler: RowSampler) -> None:
    """Catches penalties that overlook the drafted prefix, or remember rejected tokens."""
    case = Case(setting)
    expected = case.expected()
    drafters = [
        told_drafter(DRAFT_LEN, expected, VOCAB, lambda position: position % 3 > 0),
        told_drafter(DRAFT_LEN, expected, VOCAB),
        ragged(table_drafter(DRAFT_LEN, DRAFT)),
    ]
    for drafter in drafters:
        engine = engine_of(drafter, sampler=sampler)
        assert outputs(run_all(engine, case.requests())) == expected
        assert engine.acceptance.verified > 0
    # The drafter that is half right must have been wrong and right, or it shows nothing.
    engine = engine_of(drafters[0], sampler=sampler)
    run_all(engine, case.requests())
    assert 0 < engine.acceptance.accepted < engine.acceptance.verified


@pytest.mark.parametrize("option", WARPS)
@unchecked()
def test_the_settings_matter(option: str) -> None:
    """Catches a setting under which the option does nothing, so that no test can miss it."""
    for base in ({}, GREEDY) if option in ("token_mask", "logit_bias") else ({},):
        for setting in WARPS[option]:
            assert Case({**setting, **base}).expected() != Case(base).expected()


@dataclass
class Judged:
    """What one call of the rejection rule saw."""

    sequence: Tokens
    output: tuple[int, ...]
    draft: RowProposal
    rows: list[torch.Tensor | None]


def spy(patch: pytest.MonkeyPatch) -> list[Judged]:
    """Keep the warped rows of every window the rejection rule judges."""
    seen: list[Judged] = []

    def spying(positions: WarpedPositions, draft: RowProposal, sequence: Tokens) -> RowVerdict:
        rows = [positions[i] for i in range(len(draft.tokens) + 1)]
        seen.append(Judged(sequence, tuple(sequence.output), draft, rows))
        return reject_rows(positions, draft, sequence)

    patch.setattr(verifier, "reject_rows", spying)
    return seen


def softmax(row: Sequence[float]) -> list[float]:
    weights = [math.exp(value - max(row)) for value in row]
    return [weight / sum(weights) for weight in weights]


@settings
@unchecked()
@proves("rejection", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
@proves("rejection", "presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids")
@proves("rejection", "token_mask", "min_tokens")
def test_rejection(setting: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches any position judged by another distribution than plain decoding would use there.

    Together with the exact law of a round given its distributions this is the law of the output.
    The drafts' own distributions are checked too: they must be the ones the drafts were drawn from.
    """
    case = Case(setting)
    judged = spy(monkeypatch)
    engine = engine_of(table_drafter(DRAFT_LEN, DRAFT), TinyEngine(rule="rejection"))
    sequences = run_all(engine, case.requests())
    params = sequences[0].params
    if params.is_greedy:
        assert outputs(sequences) == case.expected()
    is_judged_at_once = setting == GREEDY
    assert len(judged) == (0 if is_judged_at_once else engine.acceptance.rounds)
    assert engine.acceptance.verified > engine.acceptance.accepted
    stops = END | params.stop_token_ids
    for window in judged:
        prompt = window.sequence.prompt
        for slot, row in enumerate(window.rows):
            past = (*window.output, *window.draft.tokens[:slot])
            own = plainly(TARGET((*prompt, *past)).tolist(), params, Context(prompt, past, stops))
            assert row is not None
            torch.testing.assert_close(row.tolist(), own, rtol=0, atol=1e-12)
            if window.draft.probs is not None and slot < len(window.draft.probs):
                # The drafter holds back no stop tokens: any law will do, if it is the true one.
                theirs = DRAFT((*prompt, *past)).tolist()
                law = softmax(plainly(theirs, params, Context(prompt, past)))
                torch.testing.assert_close(
                    window.draft.probs[slot].tolist(), law, rtol=0, atol=1e-12
                )


def warped_law(history: Callable[[exact.Run], exact.Run]) -> exact.Law:
    """The exact law of three tokens under all options, with this idea of the output so far."""
    params = SamplingParams(max_tokens=3, **ALL_AT_ONCE)
    prompt = PROMPTS[0]

    def rows(prefix: exact.Run) -> list[float]:
        context = Context(prompt, history(prefix[len(prompt) :]), END)
        return softmax(plainly(TARGET(prefix).tolist(), params, context))

    return {run: mass for run, mass in exact.chain_law(rows, prompt, 3).items() if mass > 0}


def binned(counts: Mapping[exact.Run, float], law: exact.Law, num: int) -> tuple[float, int]:
    """Chi-square statistic and degrees of freedom; runs expected less than 5 times are one cell."""
    cells = [(counts.get(r, 0.0), num * mass) for r, mass in law.items() if num * mass >= 5]
    rest = (num - sum(seen for seen, _ in cells), num - sum(wanted for _, wanted in cells))
    cells += [rest] if rest[1] >= 5 else []
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in cells), len(cells) - 1


@pytest.mark.stat
@pytest.mark.parametrize("rule", ["matching", "rejection"])
@unchecked()
def test_the_law_under_all_options_at_once(rule: Any) -> None:
    """n = 3,000 requests, 3 tokens, chi-square over their runs; false-alarm rate 1e-6 per rule.

    Catches options that are right one by one and wrong together. Penalties that see only
    the first token are noticed with a power above 0.999, computed below.
    """
    num = 3000
    law = warped_law(lambda output: output)
    border = stats.chi2.isf(1e-6, binned(law, law, num)[1])
    forgetful = warped_law(lambda output: output[:1])
    noncentrality, degrees = binned({r: num * m for r, m in forgetful.items()}, law, num)
    assert stats.ncx2.sf(border, degrees, noncentrality) > 0.999

    engine = engine_of(table_drafter(2, DRAFT), TinyEngine(rule=rule))
    params = SamplingParams(max_tokens=3, **ALL_AT_ONCE)
    sequences = run_all(engine, requests_of([PROMPTS[0]] * num, params))
    counts = Counter(tuple(sequence.output) for sequence in sequences)
    assert set(counts) <= set(law), "a run that cannot come"
    assert binned(counts, law, num)[0] < border
