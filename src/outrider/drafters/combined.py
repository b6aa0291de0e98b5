"""The combined drafter: own text, n-gram table and block network, whichever promises most.

Text and table cost next to nothing, so they are asked for every row. The network is asked only for
rows where it is expected to pay: if the cheap draft keeps A tokens, the network G more, and its
draft takes c times as long as the rest of a round, tokens per time grow by it if
(1 + A + G) / (1 + c) > 1 + A, which is G > c · (1 + A). Where step costs were measured, a batch
says what a draft costs in it, and the network is asked for the n rows, most gain first, that make
tokens per time largest: one more row costs a busy step far more than an idle one.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.paths import expanded
from outrider.core.price import DraftPrice
from outrider.core.request import VerifyRule
from outrider.core.sequence import Sequence
from outrider.drafters.base import Drafter, DrafterSetting
from outrider.drafters.cheap import CheapDrafts, DraftCall, MergedDraft, PlainDrafts
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.gain import FadingMean, Gain, of_request
from outrider.drafters.ngram_table_file import TABLE_FILE, NgramTable, open_table
from outrider.errors import ConfigError
from outrider.native import availability
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps

DEFAULT_DRAFT_LEN: Final = 7
NETWORK_FOLDER: Final = "network"
WORTH_A_LOOK: Final = 0.5
"""Part of a row's price that a draft token must promise: rows are cheaper by the stair."""


@dataclass(slots=True)
class _State:
    """One request: its text, what its last draft promised, and what the network is worth to it.

    `promised` are the tokens that the cheap draft was expected to keep. `extra` is what the network
    adds beyond what it adds to such drafts.
    """

    text: Any
    is_greedy: bool
    own_rule: VerifyRule | None
    promised: float = 0.0
    has_draft: bool = False
    used_network: bool = False
    extra: FadingMean = field(default_factory=of_request)


class CombinedDrafter:
    """See the module. Without a network it needs no weights and no target features."""

    def __init__(
        self,
        max_draft_len: int,
        *,
        drafts: CheapDrafts,
        network: Drafter | None,
        network_cost: float,
        min_survival: float,
    ) -> None:
        """Combine cheap drafts with those of `network`, if there is one.

        Args:
            max_draft_len: longest draft.
            drafts: drafts from a request's own text and, if there is one, a table.
            network: a drafter that proposes for the rows that may have drafts.
            network_cost: time of one network draft, as a share of a round without it; for
                batches that have no price.
            min_survival: a draft ends where its estimated survival falls below this, or below
                half of what a row of the window costs.
        """
        self.max_draft_len = max_draft_len
        self.taps: Taps = network.taps if network is not None else ()
        self._drafts = drafts
        self._network = network
        self._network_cost = network_cost
        self._min_survival = min_survival
        self._gain = Gain()
        self._states: dict[RequestId, _State] = {}
        self._has_drafted = False

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """Draft every row cheaply, then those by the network for which it is expected to pay."""
        price = batch.price
        row_tokens = price.row_tokens if price is not None else 0.0
        least = max(self._min_survival, WORTH_A_LOOK * row_tokens)
        places = [index for index, row in enumerate(batch.rows) if row.max_draft_len]
        states = [self._state(batch.rows[index].sequence) for index in places]
        calls = [
            self._call(batch.rows[index], state, rule)
            for index, state in zip(places, states, strict=True)
        ]
        drafts = self._drafts.draft(calls, least=least, row_tokens=row_tokens)
        rows = [NO_PROPOSAL] * len(batch)
        for index, state, draft in zip(places, states, drafts, strict=True):
            state.promised, state.used_network = draft.promised, False
            state.has_draft = bool(draft.tokens)
            rows[index] = RowProposal(draft.tokens, None, draft.chances, draft.sources)
        self._has_drafted = True
        if self._network is not None:
            worth = sum(draft.worth for draft in drafts)
            asked = self._paying(price, dict(zip(places, states, strict=True)), worth)
            if asked:
                self._ask(self._network, batch, asked, rule, rows)
        return Proposal(tuple(rows))

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Correct the sources by what was accepted; pass features on to the network."""
        if self._has_drafted:
            self._learn(outcome)
        self._has_drafted = False
        if self._network is not None:
            self._network.observe(outcome, scores)

    def forget(self, request_id: RequestId) -> None:
        """Drop everything about a request."""
        self._states.pop(request_id, None)
        if self._network is not None:
            self._network.forget(request_id)

    def _state(self, sequence: Sequence) -> _State:
        state = self._states.get(sequence.id)
        if state is None:
            params = sequence.params
            state = _State(self._drafts.new_text(), params.is_greedy, params.verify_rule)
            self._states[sequence.id] = state
        return state

    def _call(self, row: BatchRow, state: _State, rule: VerifyRule) -> DraftCall:
        is_greedy = state.is_greedy
        return DraftCall(
            state.text,
            row.sequence.tokens,
            min(row.max_draft_len, self.max_draft_len),
            is_greedy,
            is_blind=not is_greedy and (state.own_rule or rule) == "rejection",
        )

    def _learn(self, outcome: Outcome) -> None:
        """Correct the sources, and compare rounds with what the cheap drafts promised.

        Where all that was verified held, the rest of the draft counts as far as it is expected to.
        """
        judged = []
        for row in outcome.rows:
            state = self._states.get(row.request_id)
            if state is not None and state.has_draft:
                judged.append((state, row.accepted, row.verified))
                state.has_draft = False
        unjudged = self._drafts.learn([(state.text, *counts) for state, *counts in judged])
        for (state, accepted, verified), more in zip(judged, unjudged, strict=True):
            if not verified:
                continue
            if not state.used_network:
                self._gain.learn(state.promised, None)
                state.extra.fade()
                continue
            gained = accepted + more - state.promised
            state.extra.add(gained - self._gain.expected(state.promised))
            self._gain.learn(state.promised, gained)

    def _ask(
        self,
        network: Drafter,
        batch: Batch,
        asked: dict[int, _State],
        rule: VerifyRule,
        rows: list[RowProposal],
    ) -> None:
        """Let the network draft the rows of `asked`, and merge what it says into `rows`."""
        said = network.propose(
            Batch(
                tuple(
                    row if index in asked else replace(row, max_draft_len=0)
                    for index, row in enumerate(batch)
                )
            ),
            rule,
        ).rows
        heard = [(index, state) for index, state in asked.items() if said[index].tokens]
        merged = self._drafts.merge([(state.text, said[index]) for index, state in heard])
        for (index, state), draft in zip(heard, merged, strict=True):
            state.used_network, state.has_draft = True, bool(draft.tokens)
            rows[index] = _proposal(draft, said[index].probs)

    def _paying(
        self, price: DraftPrice | None, states: dict[int, _State], worth: float
    ) -> dict[int, _State]:
        """Those for which a draft of the network is expected to make tokens per time grow.

        `worth` are the tokens that the cheap drafts gain.
        """
        gains = {index: self._expected_gain(state) for index, state in states.items()}
        if price is None:
            return {
                index: states[index]
                for index, gain in gains.items()
                if gain >= self._network_cost * (1 + states[index].promised)
            }
        # Of what the network adds, the part above the price of its rows; a guess at its shape.
        part = (1 - price.row_tokens) ** 2
        tokens = price.num_judged + worth
        best, count = tokens / price.step_seconds, 0
        falling = sorted(gains, key=lambda index: -gains[index])
        for number, index in enumerate(falling, 1):
            tokens += part * gains[index]
            rate = tokens / (price.step_seconds + price.draft_seconds(number))
            if rate > best:
                best, count = rate, number
        return {index: states[index] for index in falling[:count]}

    def _expected_gain(self, state: _State) -> float:
        return self._gain.expected(state.promised) + state.extra.value(0.0)


def _proposal(merged: MergedDraft, probs: Tensor | None) -> RowProposal:
    """Hand a draft over; a token of the network with the distribution it was drawn from.

    `probs` are the network's, if it drew; the other tokens are then point masses.
    """
    own = None
    if probs is not None and merged.drawn:
        own = torch.zeros(len(merged.tokens), probs.shape[1], dtype=probs.dtype)
        own[torch.arange(len(merged.tokens)), torch.tensor(merged.tokens)] = 1.0
        drawn = list(merged.drawn)
        own[drawn] = probs[drawn]
    return RowProposal(merged.tokens, own, merged.chances, merged.sources)


def cheap_drafts(table: NgramTable | None) -> CheapDrafts:
    """Draft in C++ where the native extension is there, else in Python."""
    if availability.fault() is not None:
        return PlainDrafts(table)
    from outrider.drafters.native_drafts import NativeDrafts

    return NativeDrafts(table)


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
        drafts=cheap_drafts(
            None
            if options.ngram_table is None
            else open_table(options.ngram_table, setting.checkpoint)
        ),
        network=network,
        network_cost=options.network_cost,
        min_survival=options.min_survival,
    )
