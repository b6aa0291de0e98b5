"""The verifier with tokens drawn in C++ against the same verifier warping and drawing in Python."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.ids import BlockId, RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.sampling.draw import coupled_token
from outrider.sampling.warp import Context, warp
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import Proposal, RowProposal, Scores, VerifyWindow
from outrider.verify.verifier import RuleVerifier
from tests.native.machines import machine, require_native
from tests.strategies import logit_rows, warp_options
from tests.unchecked import unchecked

VOCAB = 7
STOPS = frozenset({1, 4})
BROKEN = [torch.nan, torch.inf, -torch.inf]


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


def plain_token(row: Tensor, own: Tokens, position: int) -> int:
    """What matching takes when no draft stands before `position`; any token of a broken row."""
    if not bool(torch.isfinite(row.max())):
        return 0
    warped = warp(row, own.params, Context(own.prompt, own.output, STOPS))
    greedy = own.params.is_greedy
    return coupled_token(warped, own.request.seed, position, is_greedy=greedy)


def same_verdicts(
    logits: Tensor, sequences: list[Tokens], drafts: list[list[int | None]], rule: Any
) -> None:
    """Judge with both verifiers; a draft token of None is the one the target takes."""
    from outrider.native.sampling import NativeSampler

    rows, proposals, first_row, first = [], [], [], 0
    for number, (own, draft) in enumerate(zip(sequences, drafts, strict=True)):
        said = [
            plain_token(logits[first + slot], own, own.num_output + slot)
            if token is None
            else token
            for slot, token in enumerate(draft)
        ]
        rows.append(BatchRow(own, 0, len(own), len(said), (BlockId(number),)))
        proposals.append(RowProposal(tuple(said)))
        first_row.append(first)
        first += len(said) + 1
    window = VerifyWindow.build(
        Batch(tuple(rows)), Proposal(tuple(proposals)), [len(draft) for draft in drafts]
    )
    scores = Scores(logits, tuple(first_row), None, tuple(range(len(rows))))
    python, native = (
        RuleVerifier(rule, STOPS, sampler).judge(window, scores)
        for sampler in (None, NativeSampler(machine(2)))
    )
    assert native == python


def sequence(number: int, options: dict[str, Any], num_output: int) -> Tokens:
    params = SamplingParams.from_options(options)
    own = Tokens.of(Request(RequestId(f"r{number}"), (2, 3), params, seed=number * 7919))
    own.tokens += [(5 * i) % VOCAB for i in range(num_output)]
    return own


RULES = st.sampled_from([None, "matching", "rejection"])
DRAFTS = st.lists(st.none() | st.none() | st.integers(0, VOCAB - 1), max_size=3)
REQUESTS = st.lists(
    st.tuples(warp_options(VOCAB), RULES, DRAFTS, st.integers(0, 3)), min_size=1, max_size=4
)


@given(
    requests=REQUESTS,
    rows=st.lists(logit_rows(VOCAB), min_size=16, max_size=16),
    broken=st.dictionaries(
        st.integers(0, 15), st.tuples(st.sampled_from(BROKEN), st.integers(0, VOCAB))
    ),
    rule=st.sampled_from(["matching", "rejection"]),
)
@settings(max_examples=150)
@unchecked()
def test_any_requests_in_any_mix(
    requests: list[Any], rows: list[Tensor], broken: dict[int, tuple[float, int]], rule: str
) -> None:
    """Catches rows of another request, a rule that is not the request's, ties and broken rows."""
    logits = torch.stack(rows).to(torch.float32)
    for row, (value, column) in broken.items():
        # The last of the columns stands for all of them.
        logits[row, column if column < VOCAB else slice(None)] = value
    sequences = [
        sequence(number, {**options, "verify_rule": own}, output)
        for number, (options, own, _, output) in enumerate(requests)
    ]
    same_verdicts(logits, sequences, [list(draft) for _, _, draft, _ in requests], rule)


BORDER = [
    {"temperature": 1.0, "top_p": p, "top_k": k} for p in (0.25, 0.5, 0.75, 1.0) for k in (0, 2, 3)
] + [{"temperature": 1.0, "min_p": 0.5}, {"temperature": 0.5, "min_p": 0.25}]


@pytest.mark.parametrize("options", BORDER, ids=str)
@unchecked()
def test_probabilities_that_lie_on_the_border(options: dict[str, Any]) -> None:
    """Catches a nucleus that is one token wider or narrower: the masses are exact powers of two."""
    halves = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    rows = [halves, halves.flip(0), torch.tensor([0.25] * 4).log(), torch.zeros(4)]
    logits = torch.stack([rows[i % 4] for i in range(32)])
    sequences = [sequence(number, options, number % 3) for number in range(16)]
    same_verdicts(logits, sequences, [[None] for _ in range(16)], "matching")
