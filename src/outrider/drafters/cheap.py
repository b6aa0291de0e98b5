"""Cheap drafts of a whole batch: from each request's own text and a table, merged with a network's.

What is drafted is told by `blend`; here is the state of the requests and how a network's draft is
merged in. `PlainDrafts` is the obvious version, `native_drafts.NativeDrafts` the fast one; both
give the same drafts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from outrider.core.ids import RequestId
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
    """One request to draft for: all its tokens, most draft tokens, how they are judged.

    `tokens` only ever grow; what was there at the last call is not looked at again. `is_blind` says
    that tokens are accepted by chance, so that a network's token must stay a draw.
    """

    request_id: RequestId
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
    """Drafts for the requests of an engine and learns from what became of it."""

    def draft(
        self, calls: Sequence[DraftCall], *, least: float, row_tokens: float
    ) -> list[CheapDraft]:
        """Draft as far as survivals stay above `least`; a verified row costs `row_tokens`."""
        ...

    def merge(self, said: Sequence[tuple[RequestId, RowProposal]]) -> list[MergedDraft]:
        """Draft once more, with what a network says of requests that have just been drafted for.

        The network is followed until another source promises more, then that one. Where tokens are
        accepted by chance (`is_blind`), who says a token is settled before the network's token is
        looked at: it must stay a draw from the distribution it comes with.
        """
        ...

    def learn(self, judged: Sequence[tuple[RequestId, int, int]]) -> list[float]:
        """Hear how many tokens of drafts were accepted and how many verified; drafts are then over.

        Returns for each how many of the tokens that were not verified are expected to hold, 0
        where one was rejected.
        """
        ...

    def forget(self, request_id: RequestId) -> None:
        """Drop everything about a request; harmless when there is nothing."""
        ...


@dataclass(slots=True)
class _State:
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
        self._states: dict[RequestId, _State] = {}

    def draft(
        self, calls: Sequence[DraftCall], *, least: float, row_tokens: float
    ) -> list[CheapDraft]:
        """See `CheapDrafts`."""
        return [self._cheap(call, least, row_tokens) for call in calls]

    def merge(self, said: Sequence[tuple[RequestId, RowProposal]]) -> list[MergedDraft]:
        """See `CheapDrafts`."""
        merged = []
        for request_id, row in said:
            state = self._states[request_id]
            state.picks = picks = self._merged(state, row)
            drawn = [slot for slot, pick in enumerate(picks) if pick.key[0] == NETWORK]
            merged.append(MergedDraft(*_columns(picks), tuple(drawn)))
        return merged

    def learn(self, judged: Sequence[tuple[RequestId, int, int]]) -> list[float]:
        """See `CheapDrafts`."""
        unjudged = []
        for request_id, accepted, verified in judged:
            state = self._states[request_id]
            self._corrections.learn(state.picks, accepted, verified)
            unjudged.append(_promise(state.picks[verified:]) if accepted == verified else 0.0)
            state.picks = []
        return unjudged

    def forget(self, request_id: RequestId) -> None:
        """See `CheapDrafts`."""
        self._states.pop(request_id, None)

    def _cheap(self, call: DraftCall, least: float, row_tokens: float) -> CheapDraft:
        state = self._states.setdefault(call.request_id, _State())
        state.text.catch_up(call.tokens)
        state.place = self._blend.place(state.text, call.tokens)
        state.most, state.least = call.most, least
        state.is_greedy, state.is_blind = call.is_greedy, call.is_blind
        state.picks = picks = self._rest(state, state.place, 0, 1.0)
        return CheapDraft(*_columns(picks), _promise(picks), _worth(picks, row_tokens))

    def _rest(self, state: _State, place: Place, length: int, survival: float) -> list[Pick]:
        """Draft cheaply from `place` on, behind `length` tokens that survive with `survival`."""
        return self._blend.draft(
            state.text,
            place,
            state.most - length,
            is_greedy=state.is_greedy,
            survival=survival,
            min_survival=state.least,
        )

    def _merged(self, state: _State, said: RowProposal) -> list[Pick]:
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
