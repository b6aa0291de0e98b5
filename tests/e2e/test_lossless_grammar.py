"""Structured outputs: the same tokens with and without speculation, and the form they must have.

The reference decodes without cache, batch or speculation and masks by an oracle of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from outrider.core.ids import RequestId
from outrider.core.outcome import FinishReason
from outrider.core.request import Request, SamplingParams, StructuredOutputsParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.engine.engine import Engine
from outrider.sampling.rows import RowSampler
from outrider.sampling.warp import Context
from outrider.tensor.batch import Batch
from outrider.tensor.window import Proposal, RowProposal
from outrider.testing.scripted import (
    TinyEngine,
    ragged,
    random_drafter,
    requests_of,
    run_all,
    table_drafter,
    tiny_engine,
    told_drafter,
)
from outrider.testing.table_target import SeededTable, TableTarget
from outrider.verify import pruning
from tests import exact, harness, oracle
from tests.e2e.test_lossless_options import spy
from tests.grammars import (
    END,
    TEXTS,
    VOCAB,
    Expression,
    behind,
    compiler,
    either,
    expressions,
    form,
    literal,
    matches,
    repeated,
    then,
    token_mask,
    tokenizer,
)
from tests.plain_warp import plainly
from tests.sampling_matrix import proves
from tests.unchecked import unchecked

harness.require_module("llguidance")

DRAFT_LEN = 4
TARGET = SeededTable(VOCAB, seed=1, recent=3, sharpness=2.0)
DRAFT = SeededTable(VOCAB, seed=2, recent=2, sharpness=1.0)
PROMPTS = [(0, 3), (1, 2, 1), (4,), (2, 2, 2, 5), (6, 0), (3, 4, 5)]


def sure(made: Expression | None) -> Expression:
    assert made is not None
    return made


def word(text: str) -> Expression:
    return row_of(*map(literal, text))


def any_of(*texts: str) -> Expression:
    return reduce(lambda left, right: sure(either(left, right)), map(word, texts))


def row_of(*parts: Expression) -> Expression:
    return reduce(lambda first, second: sure(then(first, second)), parts)


EXPRESSIONS = {
    "words": row_of(repeated(any_of("ab", "ba", "c")), word("12")),
    "choice": any_of("abc", "abc12", "cab", "é"),
    "open": repeated(any_of("a", "b", "é")),
    "long": row_of(repeated(any_of("a", "bc")), word("1"), repeated(any_of("2", "cab"))),
}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.4},
    {"temperature": 0.0, "presence_penalty": 1.5, "logit_bias": {1: -2.0, 4: 2.0}},
    {"temperature": 0.9, "logprobs": 2, "allowed_token_ids": frozenset(range(20))},
]
settings = pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: "-".join(each))


def requests(expression: Expression, **options: Any) -> list[Request]:
    params = SamplingParams(**{"max_tokens": 11, "structured_outputs": form(expression), **options})
    return requests_of(PROMPTS, params)


def expected(listed: Sequence[Request], expression: Expression) -> dict[RequestId, list[int]]:
    mask = token_mask(expression)
    plain = [
        replace(each, params=replace(each.params, structured_outputs=None, token_mask=mask))
        for each in listed
    ]
    return {each.id: oracle.decode(TARGET, each, frozenset({END})) for each in plain}


def engine_of(
    drafter: Drafter | None = None, sampler: RowSampler | None = None, **options: Any
) -> Engine:
    made = TinyEngine(grammars=compiler(), decoder=tokenizer(), **options)
    target = TableTarget(
        TARGET,
        VOCAB,
        num_blocks=made.num_blocks,
        block_size=made.block_size,
        stop_token_ids=frozenset({END}),
        sampler=sampler,
    )
    return tiny_engine(target, drafter, made)


def outputs(sequences: Sequence[Tokens]) -> dict[RequestId, list[int]]:
    return {sequence.id: list(sequence.output) for sequence in sequences}


def assert_form(sequence: Tokens, expression: Expression) -> None:
    """The text has the form, or is a beginning of it where the length ran out."""
    assert sequence.finish is not None
    text = "".join(TEXTS[token] for token in sequence.output if token != END)
    if sequence.finish.reason is FinishReason.STOP:
        assert matches(expression, text)
        assert sequence.text == text
    else:
        assert sequence.finish.reason is FinishReason.LENGTH
        assert behind(expression, text) is not None


@settings
@pytest.mark.parametrize("name", EXPRESSIONS)
@unchecked()
@proves("plain", "structured_outputs")
def test_plain(name: str, setting: Mapping[str, Any], sampler: RowSampler) -> None:
    """Catches a mask that is applied in another place, to another position, or not at all."""
    expression = EXPRESSIONS[name]
    listed = requests(expression, **setting)
    sequences = run_all(engine_of(sampler=sampler), listed)
    assert outputs(sequences) == expected(listed, expression)
    for sequence in sequences:
        assert_form(sequence, expression)


@settings
@pytest.mark.parametrize("name", EXPRESSIONS)
@unchecked()
@proves("matching", "structured_outputs")
def test_matching(name: str, setting: Mapping[str, Any], sampler: RowSampler) -> None:
    """Catches masks that overlook drafts, drafts pruned too early, state of rejected drafts."""
    expression = EXPRESSIONS[name]
    listed = requests(expression, **setting)
    wanted = expected(listed, expression)
    drafters = [
        told_drafter(DRAFT_LEN, wanted, VOCAB, lambda position: position % 3 > 0),
        random_drafter(DRAFT_LEN, VOCAB),
        ragged(table_drafter(DRAFT_LEN, DRAFT)),
        table_drafter(DRAFT_LEN, DRAFT, knows_grammar=False),
    ]
    for drafter in drafters:
        engine = engine_of(drafter, sampler=sampler)
        assert outputs(run_all(engine, listed)) == wanted
    engine = engine_of(drafters[0], sampler=sampler)
    run_all(engine, listed)
    assert engine.acceptance.accepted > 0
    assert engine.acceptance.drafted > engine.acceptance.accepted


@settings
@pytest.mark.parametrize("knows_grammar", [True, False])
@unchecked()
@proves("rejection", "structured_outputs")
def test_rejection(
    setting: Mapping[str, Any], knows_grammar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a position that is judged by another distribution than plain decoding would use."""
    judged = spy(monkeypatch)
    for expression in EXPRESSIONS.values():
        listed = requests(expression, **setting)
        drafter = table_drafter(DRAFT_LEN, DRAFT, knows_grammar=knows_grammar)
        sequences = run_all(engine_of(drafter, rule="rejection"), listed)
        if listed[0].params.is_greedy:
            assert outputs(sequences) == expected(listed, expression)
        mask = token_mask(expression)
        params = replace(listed[0].params, structured_outputs=None, token_mask=mask)
        for sequence in sequences:
            assert_form(sequence, expression)
        for window in judged:
            prompt = window.sequence.prompt
            for slot, row in enumerate(window.rows):
                past = (*window.output, *window.draft.tokens[:slot])
                if slot and window.draft.tokens[slot - 1] not in mask(past[:-1]):
                    continue  # Behind a refused token, which no walk reaches.
                own = plainly(TARGET((*prompt, *past)).tolist(), params, Context(prompt, past))
                assert row is not None
                torch.testing.assert_close(row.tolist(), own, rtol=0, atol=1e-12)
        assert judged
        judged.clear()


@given(expression=expressions, seed=st.integers(0, 1000), temperature=st.sampled_from([0.0, 0.9]))
@pytest.mark.parametrize("rule", ["matching", "rejection"])
@unchecked()
def test_any_expression_and_any_drafts(
    rule: Any, expression: Expression, seed: int, temperature: float
) -> None:
    """Catches what the chosen examples do not show; rejection is compared where it is certain."""
    listed = requests(expression, temperature=temperature, max_tokens=7)[:3]
    wanted = expected(listed, expression)
    for drafter in (
        told_drafter(3, wanted, VOCAB, lambda position: (position + seed) % 4 > 0),
        random_drafter(3, VOCAB, seed),
        table_drafter(3, SeededTable(VOCAB, seed=seed, recent=2), knows_grammar=seed % 2 == 0),
    ):
        sequences = run_all(engine_of(drafter, rule=rule), listed)
        if rule == "matching" or temperature == 0:
            assert outputs(sequences) == wanted
        for sequence in sequences:
            assert_form(sequence, expression)


@unchecked()
def test_refused_drafts_cost_no_row() -> None:
    """Catches drafts that go to the target although the grammar refuses them."""
    expression = EXPRESSIONS["words"]
    listed = requests(expression, temperature=0.0)
    target = TableTarget(
        TARGET, VOCAB, num_blocks=256, block_size=4, stop_token_ids=frozenset({END})
    )
    wrong = told_drafter(DRAFT_LEN, expected(listed, expression), VOCAB, lambda position: False)
    made = TinyEngine(grammars=compiler(), prefix_caching=False)
    engine = tiny_engine(target, wrong, made)
    mask = token_mask(expression)
    sequences = run_all(engine, listed)
    assert outputs(sequences) == expected(listed, expression)
    allowed = 0
    for sequence in sequences:
        for position in range(len(sequence.output)):
            wrong_token = (sequence.output[position] + 1) % VOCAB
            allowed += wrong_token in mask(sequence.output[:position])
    assert engine.acceptance.drafted > 2 * allowed
    assert engine.acceptance.verified <= allowed * DRAFT_LEN
    known = sum(len(each.prompt) + len(each.output) - 1 for each in sequences)
    assert sum(w.num_tokens for w in target.windows) == known + engine.acceptance.verified


@pytest.mark.parametrize("drafts", [False, True])
@unchecked()
def test_tight_memory_changes_nothing(drafts: bool) -> None:
    """Catches a matcher that does not come back where a preempted request goes on."""
    expression = EXPRESSIONS["open"]
    listed = requests(expression, temperature=0.8, max_tokens=20, logit_bias={END: -100.0})
    wanted = expected(listed, expression)
    drafter = table_drafter(DRAFT_LEN, DRAFT) if drafts else None
    engine = engine_of(drafter, num_blocks=10, block_size=4)
    assert outputs(run_all(engine, listed)) == wanted
    assert engine.num_preemptions > 0


@pytest.mark.parametrize("rule", ["matching", "rejection"])
@unchecked()
def test_a_dead_end_ends_its_request_alone(rule: Any) -> None:
    """Catches a mask without a token that stops the engine, or a failure that comes too early."""
    # No token spells z alone, and no text goes on behind "}z".
    dead = StructuredOutputsParams(regex="(ab)?c(}z}z|z)")
    alive = EXPRESSIONS["words"]
    params = SamplingParams(max_tokens=11, temperature=0.0, logit_bias={END: -50.0})
    mixed = [
        replace(params, structured_outputs=dead if i % 2 else form(alive))
        for i in range(len(PROMPTS))
    ]
    listed = requests_of(PROMPTS, mixed)
    plain = run_all(engine_of(), listed)
    for drafter in (random_drafter(3, VOCAB), told_drafter(3, outputs(plain), VOCAB)):
        sequences = run_all(engine_of(drafter, rule=rule), listed)
        assert outputs(sequences) == outputs(plain)
        assert [each.finish for each in sequences] == [each.finish for each in plain]
    for index, sequence in enumerate(plain):
        assert sequence.finish is not None
        if index % 2 and TEXTS.index("}z") not in sequence.output:
            assert sequence.finish.reason is FinishReason.ERROR
            assert "no token" in str(sequence.finish.detail)
        elif not index % 2:
            assert_form(sequence, alive)
    assert any(each.finish and each.finish.reason is FinishReason.ERROR for each in plain)


@unchecked()
def test_a_stop_before_a_dead_end_wins() -> None:
    """Catches a failure behind accepted drafts that overtakes a stop among them."""
    params = SamplingParams(
        max_tokens=11,
        temperature=0.0,
        stop=("bc",),
        structured_outputs=StructuredOutputsParams(regex="abcz"),
    )
    listed = requests_of(PROMPTS, params)
    plain = run_all(engine_of(), listed)
    assert all(each.finish and each.finish.reason is FinishReason.STOP for each in plain)
    drafter = told_drafter(4, outputs(plain), VOCAB)
    behind_it = RowsWith(drafter, TEXTS.index("c"))
    sequences = run_all(engine_of(behind_it), listed)
    assert outputs(sequences) == outputs(plain)
    assert [each.finish for each in sequences] == [each.finish for each in plain]


class RowsWith:
    """Another drafter's drafts; its rounds and its noise are its own."""

    def __init__(self, inner: Drafter, token: int) -> None:
        self.taps, self.max_draft_len = inner.taps, inner.max_draft_len
        self.observe, self.forget = inner.observe, inner.forget
        self._inner, self._token = inner, token

    def propose(self, batch: Batch, rule: Any) -> Proposal:
        rows = self._inner.propose(batch, rule).rows
        return Proposal(
            tuple(
                RowProposal((*row.tokens, self._token)[: own.max_draft_len])
                for row, own in zip(rows, batch, strict=True)
            )
        )


def law_of_two(expression: Expression) -> exact.Law:
    """The exact law of the first two tokens."""
    mask = token_mask(expression)

    def rows(prefix: exact.Run) -> list[float]:
        past = prefix[len(PROMPTS[0]) :]
        allowed = mask(past)
        weights = TARGET(prefix).exp().tolist()
        kept = [weight if i in allowed else 0.0 for i, weight in enumerate(weights)]
        return [weight / (sum(kept) or 1.0) for weight in kept]

    return {run: mass for run, mass in exact.chain_law(rows, PROMPTS[0], 2).items() if mass > 0}


def chi_square(counts: Mapping[exact.Run, int], law: exact.Law, num: int) -> tuple[float, int]:
    """Statistic and degrees of freedom; runs expected less than 5 times are one cell."""
    large = [run for run, mass in law.items() if num * mass >= 5]
    rest = num * (1 - sum(law[run] for run in large))
    seen = num - sum(counts.get(run, 0) for run in large)
    value = sum((counts.get(run, 0) - num * law[run]) ** 2 / (num * law[run]) for run in large)
    if rest >= 5:
        return value + (seen - rest) ** 2 / rest, len(large)
    return value, len(large) - 1


def statistic_of(drafter: Drafter, expression: Expression, num: int) -> tuple[float, float]:
    """The statistic of `num` requests under rejection, and the border of a 1e-6 false alarm."""
    params = SamplingParams(max_tokens=2, temperature=1.0, structured_outputs=form(expression))
    sequences = run_all(
        engine_of(drafter, rule="rejection"), requests_of([PROMPTS[0]] * num, params)
    )
    counts: dict[exact.Run, int] = {}
    for sequence in sequences:
        run = tuple(sequence.output)
        counts[run] = counts.get(run, 0) + 1
    law = {run[:1] if run[0] == END else run: mass for run, mass in law_of_two(expression).items()}
    assert set(counts) <= set(law)
    value, degrees = chi_square(counts, law, num)
    return value, float(stats.chi2.isf(1e-6, degrees))


@pytest.mark.stat
@pytest.mark.parametrize("knows_grammar", [True, False])
@unchecked()
def test_the_law_under_rejection(knows_grammar: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """n = 2,000 requests, 2 tokens, chi-square over their runs; false-alarm rate 1e-6.

    Catches pruning that takes refused tokens out although they were drawn, which is shown to be
    noticed.
    """
    drafter = table_drafter(2, DRAFT, knows_grammar=knows_grammar)
    expression = EXPRESSIONS["words"]
    value, border = statistic_of(drafter, expression, 2000)
    assert value < border
    if not knows_grammar:
        cut = pruning._fitting
        monkeypatch.setattr(
            pruning, "_fitting", lambda draft, *rest: draft.first(cut_at(cut, draft, *rest))
        )
        value, border = statistic_of(drafter, expression, 2000)
        assert value > border


def cut_at(cut: Callable[..., RowProposal], draft: RowProposal, *rest: Any) -> int:
    """Where pruning would cut had the tokens not been drawn."""
    return len(cut(replace(draft, probs=None), *rest).tokens)
