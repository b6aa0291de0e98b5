"""Acceptance of a drafter on text that is already written: no model runs.

Under matching, and for greedy requests under either rule, a draft token is accepted iff it is the
token that the text has at its place. A drafter can therefore be judged from the text, at any
temperature, exactly as the engine would have counted; one that reads features of the target needs
those of the text too, as training data hold them.
"""

from collections.abc import Callable, Iterable, Sequence

import torch

from outrider.core.acceptance import Acceptance
from outrider.core.ids import BlockId, RequestId
from outrider.core.outcome import Origin, Outcome, RowOutcome
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.errors import ConfigError
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.shapes import Hidden
from outrider.tensor.window import RowProposal, Scores

Lengths = Callable[[RowProposal], int]
"""How many of a row's draft tokens are verified."""


def replay(
    drafter: Drafter,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    features: Hidden | None = None,
    block_size: int = 16,
    max_draft_len: int | None = None,
    lengths: Lengths = lambda proposal: len(proposal.tokens),
) -> Acceptance:
    """Draft through one request whose output is known, round by round.

    The drafter sees what the engine would show it: the committed tokens, then the outcome. The
    prompt is read in one piece, and the first token of the output comes with it.

    Args:
        drafter: whose acceptance is asked for.
        prompt: at least one token.
        output: what the target said.
        features: outputs of the layers in `drafter.taps`, one row per token of prompt and output.
        block_size: tokens per KV block, for drafters with a paged cache of their own.
        max_draft_len: longest draft; None takes the drafter's own.
        lengths: the verify length of a proposal.

    Raises:
        ConfigError: The drafter needs features of the target, and none are given.
    """
    _require_features(drafter, features)
    most = drafter.max_draft_len if max_draft_len is None else max_draft_len
    params = SamplingParams(max_tokens=max(1, len(output)), temperature=0.0)
    sequence = Tokens.of(Request(RequestId("replay"), tuple(prompt), params, seed=0))
    table = tuple(map(BlockId, range(-(-(len(prompt) + len(output)) // block_size))))
    kv_len = 0
    while sequence.num_output < len(output):
        num_known = len(sequence) - kv_len
        draft_len = max(0, min(most, sequence.num_remaining - 1))
        row = BatchRow(sequence, kv_len, num_known, draft_len, table)
        proposal = drafter.propose(Batch((row,)), "matching").rows[0]
        kept = proposal.first(lengths(proposal))
        coming = output[sequence.num_output :]
        accepted = _num_equal(kept.tokens, coming)
        committed = tuple(coming[: accepted + 1])
        _commit(sequence, committed, len(proposal.tokens), kept, accepted)
        done = RowOutcome(
            request_id=sequence.id,
            num_cached=num_known + accepted,
            drafted=len(proposal.tokens),
            verified=len(kept.tokens),
            accepted=accepted,
            committed=committed,
            is_finished=sequence.num_remaining <= 0,
            kv_len=kv_len,
            block_table=table,
        )
        end = kv_len + num_known + len(kept.tokens)
        window = None if features is None else features[kv_len:end]
        drafter.observe(Outcome((done,)), Scores(NO_LOGITS, (-1,), window, (0,)))
        kv_len += done.num_cached
    drafter.forget(sequence.id)
    return sequence.acceptance


def _require_features(drafter: Drafter, features: Hidden | None) -> None:
    if drafter.taps and features is None:
        raise ConfigError(
            f"{type(drafter).__name__} needs features of layers {drafter.taps}, but the text came "
            "without; add them, or measure with the target"
        )


def replay_all(
    drafter: Drafter,
    texts: Iterable[tuple[Sequence[int], Sequence[int]]],
    *,
    max_draft_len: int | None = None,
) -> Acceptance:
    """Add up `replay` over (prompt, output) pairs."""
    counts = Acceptance()
    for prompt, output in texts:
        counts.add(replay(drafter, prompt, output, max_draft_len=max_draft_len))
    return counts


NO_LOGITS = torch.empty(0, 1)


def _num_equal(drafts: Sequence[int], coming: Sequence[int]) -> int:
    """How many drafts hold; the text has one token more than can be accepted."""
    accepted = 0
    for draft, token in zip(drafts, coming[:-1], strict=False):
        if draft != token:
            break
        accepted += 1
    return accepted


def _commit(
    sequence: Tokens, committed: tuple[int, ...], drafted: int, kept: RowProposal, accepted: int
) -> None:
    sequence.tokens.extend(committed)
    added = Origin.TARGET
    if kept.tokens:
        added = Origin.BONUS if accepted == len(kept.tokens) else Origin.RECOVERED
    sequence.origins.extend([Origin.ACCEPTED] * accepted + [added])
    sequence.acceptance.record(
        drafted=drafted,
        verified=len(kept.tokens),
        accepted=accepted,
        delivered=len(committed),
        sources=kept.sources,
    )
    sequence.num_rounds += 1
