"""The suffix automaton in C++, which drafts as `suffix_automaton.SuffixAutomaton` does."""

from collections.abc import Iterable

from outrider.drafters.suffix_automaton import DOUBT, ScoredMatch, Seat
from outrider.native import drafts


class NativeAutomaton:
    """See `suffix_automaton.Automaton`; importing this needs the compiled extension.

    About 130 bytes per token. Tokens are numbers below 2^31; other ones, and seats that are none,
    are refused with a ValueError.
    """

    def __init__(self, max_context: int) -> None:
        """Start with an empty text; contexts of up to `max_context` tokens are counted."""
        self._automaton = drafts.SuffixAutomaton(max_context, DOUBT)

    def __len__(self) -> int:
        """Tokens added so far, all sequences together."""
        return len(self._automaton)

    @property
    def tip(self) -> Seat:
        """The seat of the text itself; good until the next `extend`."""
        return self._automaton.tip

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the current sequence."""
        self._automaton.extend(list(tokens))

    def end_sequence(self) -> None:
        """Start a new sequence: no match and no count reaches across this point."""
        self._automaton.end_sequence()

    def draft(
        self, seat: Seat, max_tokens: int, *, min_match_len: int = 2, min_confidence: float = 0.0
    ) -> ScoredMatch:
        """See `SuffixAutomaton.draft`."""
        return ScoredMatch(*self._automaton.draft(seat, max_tokens, min_match_len, min_confidence))

    def follow(self, seat: Seat, tokens: Iterable[int]) -> Seat:
        """See `SuffixAutomaton.follow`."""
        return self._automaton.follow(seat, list(tokens))
