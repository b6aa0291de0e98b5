"""Drafts that a request's grammar refuses are cut before the target computes them."""

from outrider.core.matcher import TokenMatcher
from outrider.core.sequence import Sequence
from outrider.tensor.batch import Batch
from outrider.tensor.window import Proposal, RowProposal


def prune(batch: Batch, proposal: Proposal) -> Proposal:
    """Cut each draft where the request's grammar refuses it.

    A refused token has probability 0, so every rule rejects it and nothing behind it counts. It
    goes too, unless it was drawn from a distribution that rejection must correct for: leaving it
    out then would let the drafts that remain have another law than the one they are judged by
    (docs/structured-outputs.md).
    """
    return Proposal(
        tuple(
            draft if matcher is None or not draft.tokens else _fitting(draft, matcher, row.sequence)
            for row, draft in zip(batch, proposal.rows, strict=True)
            for matcher in (row.sequence.matcher,)
        )
    )


def _fitting(draft: RowProposal, matcher: TokenMatcher, sequence: Sequence) -> RowProposal:
    fitting = matcher.num_fitting(sequence.output, draft.tokens)
    return draft.first(fitting if draft.probs is None else fitting + 1)
