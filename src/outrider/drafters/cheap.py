"""Cheap drafts of a whole batch: from each request's own text and a table, merged with a network's.

What is drafted is told by `blend`; here is the state of the requests and how a network's draft is
merged in. `PlainDrafts` is the obvious version, `native_drafts.NativeDrafts` the fast one; both
give the same drafts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from outrider.drafters.blend import (
    AGREED,
    Blend,
    Corrections,
    Pick,
    Place,
    Text,
    expected_tokens,
    logit,
)
from outrider.drafters.ngram_table_file import NgramTable
from outrider.tensor.window import RowProposal

NETWORK: Final = "network"
UNKNOWN: Final = 0.5
"""Chance of a network's token where it gives none."""
LAST_SLOT: Final = 7
"""Places of a network's draft from here on are corrected as one."""


class DraftCall(NamedTuple):
    """One request to draft for: what is remembered of it, all its tokens, and how far to draft.

    `tokens` only ever grow; those that were there at the last call are not looked at again.
    `is_blind` says that tokens are accepted by chance, so that a network's token must stay a draw.
    """

    text: Any
    tokens: list[int]
    most: int
    is_greedy: bool
    is_blind: bool


class CheapDraft(NamedTuple):
    """A draft, with the chance and the source of each token.

    `promised` tokens are expected to hold; `worth` are gained where all that pays is verified.
    """

    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    sources: tuple[str, ...]
    promised: float
    worth: float


class MergedDraft(NamedTuple):
    """A draft in which a network had its say; at the places `drawn` it is the network's token."""

    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    sources: tuple[str, ...]
    drawn: tuple[int, ...]


class CheapDrafts(Protocol):
    """Drafts for the requests of an engine and learns from what became of it.

    What it remembers of one request is a text of its own kind, which its caller keeps.
    """

    def new_text(self) -> Any:
        """Remember a request of which nothing was read."""
        ...

    def draft(
        self, calls: Sequence[DraftCall], *, least: float, row_tokens: float
    ) -> list[CheapDraft]:
        """Draft as far as survivals stay above `least`; a verified row costs `row_tokens`."""
        ...

    def merge(self, said: Sequence[tuple[Any, RowProposal]]) -> list[MergedDraft]:
        """Draft once more for texts just drafted for, with what a network says.

        The network is followed until another source promises more, then that one. Where tokens are
        accepted by chance (`is_blind`), who says a token is settled before the network's token is
        looked at: it must stay a draw from the distribution it comes with.
        """
        ...

    def learn(self, judged: Sequence[tuple[Any, int, int]]) -> list[float]:
        """Hear how many tokens of the texts' drafts were accepted and how many were verified.

        Returns for each how many of the tokens that were not verified are expected to hold, 0
        where one was rejected. The drafts are then over.
        """
        ...


@dataclass(slots=True)
class PlainText:
    """One request: its text, and its last draft with the place and the limits it began with."""

    text: Text = field(default_factory=Text)
    place: Place = field(default_factory=lambda: Place((0, 0), []))
    most: int = 0
    least: float = 0.0
    is_greedy: bool = True
    is_blind: bool = False
    picks: list[Pick] = field(default_factory=list)


class PlainDrafts:
    """See `CheapDrafts`."""

    def __init__(self, table: NgramTable | None) -> None:
        """Draft from texts and, if it is there, `table`."""
        self._corrections = Corrections()
        self._blend = Blend(table, self._corrections)

    def new_text(self) -> PlainText:
        """See `CheapDrafts`."""
        return PlainText()

    def draft(
        self, calls: Sequence[DraftCall], *, least: float, row_tokens: float
    ) -> list[CheapDraft]:
        """See `CheapDrafts`."""
        return [self._cheap(call, least, row_tokens) for call in calls]

    def merge(self, said: Sequence[tuple[PlainText, RowProposal]]) -> list[MergedDraft]:
        """See `CheapDrafts`."""
        merged = []
        for state, row in said:
            state.picks = picks = self._merged(state, row)
            drawn = [slot for slot, pick in enumerate(picks) if pick.key[0] == NETWORK]
            merged.append(MergedDraft(*_columns(picks), tuple(drawn)))
        return merged

    def learn(self, judged: Sequence[tuple[PlainText, int, int]]) -> list[float]:
        """See `CheapDrafts`."""
        unjudged = []
        for state, accepted, verified in judged:
            self._corrections.learn(state.picks, accepted, verified)
            unjudged.append(_promise(state.picks[verified:]) if accepted == verified else 0.0)
            state.picks = []
        return unjudged

    def _cheap(self, call: DraftCall, least: float, row_tokens: float) -> CheapDraft:
        state: PlainText = call.text
        state.text.catch_up(call.tokens)
        state.place = self._blend.place(state.text, call.tokens)
        state.most, state.least = call.most, least
        state.is_greedy, state.is_blind = call.is_greedy, call.is_blind
        state.picks = picks = self._rest(state, state.place, 0, 1.0)
        return CheapDraft(*_columns(picks), _promise(picks), _worth(picks, row_tokens))

    def _rest(self, state: PlainText, place: Place, length: int, survival: float) -> list[Pick]:
        """Draft cheaply from `place` on, behind `length` tokens that survive with `survival`."""
        return self._blend.draft(
            state.text,
            place,
            state.most - length,
            is_greedy=state.is_greedy,
            survival=survival,
            min_survival=state.least,
        )

    def _merged(self, state: PlainText, said: RowProposal) -> list[Pick]:
        network = self._network_picks(said, is_greedy=state.is_greedy)
        picks: list[Pick] = []
        place, survival = state.place, 1.0
        for slot, own in enumerate(network[: state.most]):
            other = self._blend.pick(state.text, place, is_greedy=state.is_greedy)
            pick = own
            if other is not None and state.is_blind:
                pick = max(own, other, key=lambda each: each.chance)
            elif other is not None and other.token == own.token:
                pick = self._agreed(own, other)
            elif other is not None and other.chance > own.chance:
                rest = self._rest(state, place, slot, survival)
                if _promise(rest) > _promise(network[slot:]):
                    return picks + rest
            survival *= pick.chance
            if survival < state.least:
                return picks
            picks.append(pick)
            place = self._blend.move(state.text, place, pick.token)
            if pick.token != own.token:
                break
        return picks + self._rest(state, place, len(picks), survival)

    def _network_picks(self, said: RowProposal, *, is_greedy: bool) -> list[Pick]:
        picks = []
        for slot, (token, chance, source) in enumerate(
            zip(said.tokens, *columns_of(said), strict=True)
        ):
            key = (NETWORK, min(slot, LAST_SLOT), is_greedy)
            picks.append(self._corrections.pick(token, source, logit(chance), key))
        return picks

    def _agreed(self, own: Pick, other: Pick) -> Pick:
        """The network says what another source says: likelier than either alone."""
        stated = logit(max(own.chance, other.chance)) + AGREED
        return self._corrections.pick(own.token, own.source, stated, (NETWORK, other.key))


def columns_of(said: RowProposal) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Chances and sources of a network's tokens, those it does not give filled in."""
    length = len(said.tokens)
    return said.confidence or (UNKNOWN,) * length, said.sources or (NETWORK,) * length


def _columns(
    picks: Sequence[Pick],
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[str, ...]]:
    return (
        tuple(pick.token for pick in picks),
        tuple(pick.chance for pick in picks),
        tuple(pick.source for pick in picks),
    )


def _promise(picks: Iterable[Pick]) -> float:
    return expected_tokens(pick.chance for pick in picks)


def _worth(picks: Iterable[Pick], row_tokens: float) -> float:
    """Tokens that a draft gains when it is verified as far as its rows pay."""
    worth, survival = 0.0, 1.0
    for pick in picks:
        survival *= pick.chance
        if survival < row_tokens:
            break
        worth += survival - row_tokens
    return worth
