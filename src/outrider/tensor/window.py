"""The records of draft, score and judge. Complete when built, never changed afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from outrider.core.outcome import Origin
from outrider.tensor.batch import Batch
from outrider.tensor.shapes import Hidden, Logits

Taps = tuple[int, ...]
"""Target layers whose outputs a drafter needs: 0-based decoder layers, -1 the embedding."""


@dataclass(frozen=True, slots=True)
class RowProposal:
    """Draft tokens of one row.

    `probs[i]` is exactly the distribution token i was drawn from, None where the token was not
    drawn at all (a point mass). `confidence[i]` estimates the chance that token i is accepted given
    that everything before it was. `sources[i]` names the drafter that token i came from.
    """

    tokens: tuple[int, ...] = ()
    probs: Tensor | None = None
    confidence: tuple[float, ...] | None = None
    sources: tuple[str, ...] | None = None

    def first(self, length: int) -> "RowProposal":
        """Keep the first `length` tokens."""
        if length >= len(self.tokens):
            return self
        return RowProposal(
            tokens=self.tokens[:length],
            probs=None if self.probs is None else self.probs[:length],
            confidence=None if self.confidence is None else self.confidence[:length],
            sources=None if self.sources is None else self.sources[:length],
        )


NO_PROPOSAL = RowProposal()


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposal per batch row, in batch order."""

    rows: tuple[RowProposal, ...]

    @classmethod
    def nothing(cls, batch: Batch) -> Self:
        """Propose no token for any row."""
        return cls((NO_PROPOSAL,) * len(batch))


@dataclass(frozen=True, slots=True)
class VerifyWindow:
    """What the target computes in one forward: known tokens and the kept draft tokens of each row.

    `drafted[i]` is how many tokens were proposed for row i before the length policy cut them.
    """

    batch: Batch
    drafts: tuple[RowProposal, ...]
    drafted: tuple[int, ...]

    @classmethod
    def build(
        cls,
        batch: Batch,
        proposal: Proposal,
        verify_lens: Sequence[int],
        drafted: Sequence[int] | None = None,
    ) -> Self:
        """Keep the first `verify_lens[i]` draft tokens of row i.

        `drafted` says how many there were, where some were taken out before.
        """
        kept = tuple(
            row.first(length) for row, length in zip(proposal.rows, verify_lens, strict=True)
        )
        for row, draft in zip(batch, kept, strict=True):
            assert len(draft.tokens) <= row.max_draft_len, "a draft outgrew its row"
            assert row.is_judged or not draft.tokens, "drafts behind an unfinished prompt"
        return cls(batch, kept, tuple(drafted or (len(row.tokens) for row in proposal.rows)))

    @property
    def num_tokens(self) -> int:
        """Rows of the flattened window."""
        return sum(row.num_known for row in self.batch) + sum(len(d.tokens) for d in self.drafts)


@dataclass(frozen=True, slots=True)
class Scores:
    """The target's answer: logits of the judged rows and, if tapped, features of every token.

    Row i of the batch owns `logits[first_row[i] : first_row[i] + verify_len + 1]`; -1 marks a row
    that is not judged. Likewise `features[first_token[i] : …]`, one per known and draft token.
    """

    logits: Logits
    first_row: tuple[int, ...]
    features: Hidden | None
    first_token: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """How many drafts of a row were accepted and which token the target added.

    `failure` says why nothing can come behind the accepted drafts (the logits are not numbers, or
    nothing is allowed); then there is no added token.
    """

    accepted: int
    added: int
    origin: Origin
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict per batch row; None where the row is not judged in this step."""

    rows: tuple[RowVerdict | None, ...]
