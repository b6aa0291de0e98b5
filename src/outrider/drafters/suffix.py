"""Suffix decoding: draft the commonest follow-up of the longest match, as far as it is likely.

Matches are sought in the request's own text and, if asked for, in earlier outputs of the process.
"""

from collections.abc import Callable
from dataclasses import dataclass

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import VerifyRule
from outrider.core.sequence import Sequence
from outrider.drafters.base import DrafterSetting
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.shared_suffix_index import SharedSuffixIndex, SuffixCursor
from outrider.drafters.suffix_automaton import (
    DEFAULT_MAX_CONTEXT,
    Automaton,
    ScoredMatch,
    SuffixAutomaton,
)
from outrider.native import availability
from outrider.tensor.batch import Batch
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps

NAME = "suffix"
DEFAULT_DRAFT_LEN = 12
MIN_MATCH_LEN = 1


@dataclass(slots=True)
class _State:
    """One request: its text as an automaton, and where its end lies in earlier outputs."""

    sequence: Sequence
    cursor: SuffixCursor | None
    own: Automaton

    def catch_up(self) -> None:
        fresh = self.sequence.tokens[len(self.own) :]
        self.own.extend(fresh)
        if self.cursor is not None:
            self.cursor.advance(fresh)


class SuffixDrafter:
    """Needs no weights and no target features; linear time and memory in the text."""

    taps: Taps = ()

    def __init__(
        self,
        max_draft_len: int,
        *,
        min_survival: float,
        shared: SharedSuffixIndex | None,
        new_automaton: Callable[[int], Automaton] = SuffixAutomaton,
    ) -> None:
        """Stop a draft where its estimated survival falls below `min_survival`."""
        self.max_draft_len = max_draft_len
        self._min_survival = min_survival
        self._shared = shared
        self._new_automaton = new_automaton
        self._states: dict[RequestId, _State] = {}

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:  # noqa: ARG002
        """Follow each request's match; drafts are certain, so the rule does not matter."""
        return Proposal(
            tuple(
                self._row(row.sequence, row.max_draft_len) if row.max_draft_len else NO_PROPOSAL
                for row in batch
            )
        )

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Learn nothing: the text is read when the next proposal is due."""

    def forget(self, request_id: RequestId) -> None:
        """Drop the request; keep its output for others if outputs are shared."""
        state = self._states.pop(request_id, None)
        if state is not None and self._shared is not None:
            self._shared.add(state.sequence.output)

    def _row(self, sequence: Sequence, max_tokens: int) -> RowProposal:
        state = self._states.get(sequence.id)
        if state is None:
            cursor = self._shared.cursor() if self._shared is not None else None
            own = self._new_automaton(DEFAULT_MAX_CONTEXT)
            state = self._states[sequence.id] = _State(sequence, cursor, own)
        state.catch_up()
        match = state.own.draft(
            state.own.tip,
            max_tokens,
            min_match_len=MIN_MATCH_LEN,
            min_confidence=self._min_survival,
        )
        if state.cursor is not None:
            other = state.cursor.continuation(
                max_tokens, min_match_len=MIN_MATCH_LEN, min_confidence=self._min_survival
            )
            match = max(match, other, key=_expected_tokens)
        sources = (NAME,) * len(match.tokens)
        return RowProposal(match.tokens, confidence=match.confidence, sources=sources)


def _expected_tokens(match: ScoredMatch) -> float:
    """Add up the chances that the first, the first two, … draft tokens hold."""
    expected, survival = 0.0, 1.0
    for chance in match.confidence:
        survival *= chance
        expected += survival
    return expected


def build(setting: DrafterSetting) -> SuffixDrafter:
    """Build from the speculative config."""
    return of_options(setting.options)


def of_options(options: SpeculativeConfig) -> SuffixDrafter:
    """Build from the speculative config alone: there is nothing else to know."""
    cached = options.suffix_decoding_max_cached_tokens
    new = automata()
    return SuffixDrafter(
        options.num_speculative_tokens or DEFAULT_DRAFT_LEN,
        min_survival=options.suffix_decoding_min_token_prob,
        shared=SharedSuffixIndex(cached, new_automaton=new) if cached else None,
        new_automaton=new,
    )


def automata() -> Callable[[int], Automaton]:
    """Give what makes automata: C++ where the native extension is there, else Python."""
    if availability.fault() is not None:
        return SuffixAutomaton
    from outrider.drafters.native_automaton import NativeAutomaton

    return NativeAutomaton
