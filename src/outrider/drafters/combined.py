"""The combined drafter: own text, n-gram table and block network, whichever promises most.

Text and table cost next to nothing, so they are asked for every row. The network is asked only for
rows where it is expected to pay: if the cheap draft keeps A tokens, the network G more, and its
draft takes c times as long as the rest of a round, tokens per time grow by it if
(1 + A + G) / (1 + c) > 1 + A, which is G > c · (1 + A). Where step costs were measured, a batch
says what a draft costs in it, and the network is asked for the n rows, most gain first, that make
tokens per time largest: one more row costs a busy step far more than an idle one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.paths import expanded
from outrider.core.price import DraftPrice
from outrider.core.request import VerifyRule
from outrider.drafters.base import Drafter, DrafterSetting
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
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.gain import FadingMean, Gain, of_request
from outrider.drafters.ngram_table_file import TABLE_FILE, NgramTable, open_table
from outrider.errors import ConfigError
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps

DEFAULT_DRAFT_LEN: Final = 7
NETWORK: Final = "network"
NETWORK_FOLDER: Final = "network"
UNKNOWN: Final = 0.5
LAST_SLOT: Final = 7
WORTH_A_LOOK: Final = 0.5
"""Part of a row's price that a draft token must promise: rows are cheaper by the stair."""


@dataclass(slots=True)
class _State:
    """One request: its text, its last draft, and how much more the network is worth to it.

    `promised` are the tokens that the cheap draft was expected to keep.
    """

    text: Text = field(default_factory=Text)
    picks: list[Pick] = field(default_factory=list)
    promised: float = 0.0
    used_network: bool = False
    extra: FadingMean = field(default_factory=of_request)


class CombinedDrafter:
    """See the module. Without a network it needs no weights and no target features."""

    def __init__(
        self,
        max_draft_len: int,
        *,
        table: NgramTable | None,
        network: Drafter | None,
        network_cost: float,
        min_survival: float,
    ) -> None:
        """Combine a request's own text with `table` and `network`, as far as they are there.

        Args:
            max_draft_len: longest draft.
            table: counted on text of the target.
            network: a drafter that proposes for the rows that may have drafts.
            network_cost: time of one network draft, as a share of a round without it; for
                batches that have no price.
            min_survival: a draft ends where its estimated survival falls below this, or below
                half of what a row of the window costs.
        """
        self.max_draft_len = max_draft_len
        self.taps: Taps = network.taps if network is not None else ()
        self._network = network
        self._network_cost = network_cost
        self._min_survival = min_survival
        self._corrections = Corrections()
        self._blend = Blend(table, self._corrections)
        self._gain = Gain()
        self._states: dict[RequestId, _State] = {}
        self._has_drafted = False

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """Draft every row cheaply, then those by the network for which it is expected to pay."""
        drafts: dict[int, _Draft] = {}
        row_tokens = batch.price.row_tokens if batch.price is not None else 0.0
        least = max(self._min_survival, WORTH_A_LOOK * row_tokens)
        for index, row in enumerate(batch):
            if row.max_draft_len:
                drafts[index] = self._cheap(row, rule, least)
        self._ask_network(batch, drafts, rule)
        rows = [NO_PROPOSAL] * len(batch)
        self._has_drafted = True
        for index, draft in drafts.items():
            draft.state.picks = draft.picks
            rows[index] = draft.proposal()
        return Proposal(tuple(rows))

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Correct the sources by what was accepted; pass features on to the network."""
        for row in outcome.rows if self._has_drafted else ():
            state = self._states.get(row.request_id)
            if state is None or not state.picks:
                continue
            self._corrections.learn(state.picks, row.accepted, row.verified)
            if row.verified:
                self._learn_gain(state, row.accepted, row.verified)
            state.picks = []
        self._has_drafted = False
        if self._network is not None:
            self._network.observe(outcome, scores)

    def forget(self, request_id: RequestId) -> None:
        """Drop everything about a request."""
        self._states.pop(request_id, None)
        if self._network is not None:
            self._network.forget(request_id)

    def _cheap(self, row: BatchRow, rule: VerifyRule, least: float) -> "_Draft":
        """Draft one row from its text and the table."""
        sequence = row.sequence
        state = self._states.setdefault(sequence.id, _State())
        state.text.catch_up(sequence.tokens)
        state.used_network = False
        is_greedy = sequence.params.is_greedy
        draft = _Draft(
            state=state,
            place=self._blend.place(state.text, sequence.tokens),
            most=min(row.max_draft_len, self.max_draft_len),
            least=least,
            is_greedy=is_greedy,
            is_blind=not is_greedy and (sequence.params.verify_rule or rule) == "rejection",
        )
        draft.picks = self._rest(draft, draft.place, 0, 1.0)
        state.promised = _promise(draft.picks)
        return draft

    def _learn_gain(self, state: _State, accepted: int, verified: int) -> None:
        """Compare a round with what the cheap draft promised.

        Where all that was verified held, the rest of the draft counts as far as it is expected to.
        """
        if not state.used_network:
            self._gain.learn(state.promised, None)
            state.extra.fade()
            return
        unjudged = state.picks[verified:] if accepted == verified else ()
        gained = accepted + _promise(unjudged) - state.promised
        state.extra.add(gained - self._gain.expected(state.promised))
        self._gain.learn(state.promised, gained)

    def _rest(self, draft: "_Draft", place: Place, length: int, survival: float) -> list[Pick]:
        """Draft cheaply from `place` on, behind `length` tokens that survive with `survival`."""
        return self._blend.draft(
            draft.state.text,
            place,
            draft.most - length,
            is_greedy=draft.is_greedy,
            survival=survival,
            min_survival=draft.least,
        )

    def _ask_network(self, batch: Batch, drafts: dict[int, "_Draft"], rule: VerifyRule) -> None:
        """Let the network draft the rows for which it pays, and merge what it says."""
        asked = self._paying(batch.price, drafts) if self._network is not None else set()
        if self._network is None or not asked:
            return
        rows = (
            row if index in asked else replace(row, max_draft_len=0)
            for index, row in enumerate(batch)
        )
        proposal = self._network.propose(Batch(tuple(rows)), rule)
        for index in asked:
            if proposal.rows[index].tokens:
                self._merge(drafts[index], proposal.rows[index])

    def _paying(self, price: DraftPrice | None, drafts: dict[int, "_Draft"]) -> set[int]:
        """The rows for which a draft of the network is expected to make tokens per time grow."""
        gains = {index: self._expected_gain(draft.state) for index, draft in drafts.items()}
        if price is None:
            return {
                index
                for index, gain in gains.items()
                if gain >= self._network_cost * (1 + drafts[index].state.promised)
            }
        # Of what the network adds, the part above the price of its rows; a guess at its shape.
        part = (1 - price.row_tokens) ** 2
        tokens = price.num_judged + sum(
            _worth(draft.picks, price.row_tokens) for draft in drafts.values()
        )
        best, count = tokens / price.step_seconds, 0
        falling = sorted(gains, key=lambda index: -gains[index])
        for number, index in enumerate(falling, 1):
            tokens += part * gains[index]
            rate = tokens / (price.step_seconds + price.draft_seconds(number))
            if rate > best:
                best, count = rate, number
        return set(falling[:count])

    def _expected_gain(self, state: _State) -> float:
        return self._gain.expected(state.promised) + state.extra.value(0.0)

    def _merge(self, draft: "_Draft", said: RowProposal) -> None:
        """Go along with the network until another source promises more; then with that one.

        Where tokens are accepted by chance (`is_blind`), who says a token is settled before the
        network's token is looked at: it must stay a draw from the distribution it comes with.
        """
        draft.state.used_network = True
        draft.said = said
        network = self._network_picks(said, is_greedy=draft.is_greedy)
        picks: list[Pick] = []
        place, survival = draft.place, 1.0
        for slot, own in enumerate(network[: draft.most]):
            other = self._blend.pick(draft.state.text, place, is_greedy=draft.is_greedy)
            pick = own
            if other is not None and draft.is_blind:
                pick = max(own, other, key=lambda each: each.chance)
            elif other is not None and other.token == own.token:
                pick = self._agreed(own, other)
            elif other is not None and other.chance > own.chance:
                rest = self._rest(draft, place, slot, survival)
                if _promise(rest) > _promise(network[slot:]):
                    draft.picks = picks + rest
                    return
            survival *= pick.chance
            if survival < draft.least:
                draft.picks = picks
                return
            picks.append(pick)
            place = self._blend.move(draft.state.text, place, pick.token)
            if pick.token != own.token:
                break
        draft.picks = picks + self._rest(draft, place, len(picks), survival)

    def _network_picks(self, said: RowProposal, *, is_greedy: bool) -> list[Pick]:
        stated = said.confidence or (UNKNOWN,) * len(said.tokens)
        sources = said.sources or (NETWORK,) * len(said.tokens)
        picks = []
        for slot, (token, chance, source) in enumerate(
            zip(said.tokens, stated, sources, strict=True)
        ):
            key = (NETWORK, min(slot, LAST_SLOT), is_greedy)
            picks.append(self._corrections.pick(token, source, logit(chance), key))
        return picks

    def _agreed(self, own: Pick, other: Pick) -> Pick:
        """The network says what another source says: likelier than either alone."""
        stated = logit(max(own.chance, other.chance)) + AGREED
        return self._corrections.pick(own.token, own.source, stated, (NETWORK, other.key))


@dataclass(slots=True)
class _Draft:
    """One row's draft on its way; it ends where its survival falls below `least`.

    `said` is what the network proposed, if it was asked.
    """

    state: _State
    place: Place
    most: int
    least: float
    is_greedy: bool
    is_blind: bool
    picks: list[Pick] = field(default_factory=list)
    said: RowProposal | None = None

    def proposal(self) -> RowProposal:
        """Hand it over; a token of the network with the distribution it was drawn from."""
        return RowProposal(
            tuple(pick.token for pick in self.picks),
            self._probs(),
            tuple(pick.chance for pick in self.picks),
            tuple(pick.source for pick in self.picks),
        )

    def _probs(self) -> Tensor | None:
        """Distributions if the network drew any of the tokens; the others are point masses."""
        if self.said is None or self.said.probs is None:
            return None
        drawn = [slot for slot, pick in enumerate(self.picks) if pick.key[0] == NETWORK]
        if not drawn:
            return None
        probs = torch.zeros(len(self.picks), self.said.probs.shape[1], dtype=self.said.probs.dtype)
        tokens = torch.tensor([pick.token for pick in self.picks])
        probs[torch.arange(len(self.picks)), tokens] = 1.0
        probs[drawn] = self.said.probs[drawn]
        return probs


def located(options: SpeculativeConfig) -> SpeculativeConfig:
    """Replace a folder of drafters, where `model` is one, by what it holds.

    Such a folder has an n-gram table, a network in `network/` or as its own files, or both. A table
    that was named comes first. Everything else is the name of a network.
    """
    if options.model is None:
        return options
    folder = expanded(options.model)
    table, network = folder / TABLE_FILE, folder / NETWORK_FOLDER
    if not network.is_dir():
        if not table.is_file():
            return options
        network = folder
    has_network = (network / "config.json").is_file()
    own_table = str(table) if table.is_file() else None
    return replace(
        options,
        model=str(network) if has_network else None,
        ngram_table=options.ngram_table or own_table,
    )


def build(setting: DrafterSetting, network: Drafter | None) -> CombinedDrafter:
    """Build from the speculative config, around a network that is ready to draft.

    Raises:
        ConfigError: There is nothing to combine.
        ModelError: The table cannot be used with this target.
    """
    options = setting.options
    if options.ngram_table is None and network is None:
        raise ConfigError(
            "method 'combined' needs something to combine; add \"ngram_table\": a file made by "
            "outrider train --method ngram-table, or \"model\", or use method 'suffix'"
        )
    return CombinedDrafter(
        options.num_speculative_tokens or DEFAULT_DRAFT_LEN,
        table=None
        if options.ngram_table is None
        else open_table(options.ngram_table, setting.checkpoint),
        network=network,
        network_cost=options.network_cost,
        min_survival=options.min_survival,
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
