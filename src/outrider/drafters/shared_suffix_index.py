"""A bounded corpus of earlier outputs, and cursors of running requests in it.

Owns which sequences are kept and for how long; matching and counting are the suffix automaton's.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from outrider.drafters.suffix_automaton import (
    DEFAULT_MAX_CONTEXT,
    START,
    Automaton,
    ScoredMatch,
    Seat,
    SuffixAutomaton,
)
from outrider.errors import ConfigError

_NUM_GENERATIONS = 2


class SharedSuffixIndex:
    """Earlier outputs of the process, to draft from in later requests.

    Matches never cross from one sequence into the next. At most `max_tokens` tokens are held, in
    two generations of half that: when the young one is full it replaces the old one, whose
    sequences are dropped, so nothing is ever rebuilt. Counts are per generation.
    """

    def __init__(
        self,
        max_tokens: int = 65_536,
        max_context: int = DEFAULT_MAX_CONTEXT,
        new_automaton: Callable[[int], Automaton] = SuffixAutomaton,
    ) -> None:
        """Start empty.

        Args:
            max_tokens: most tokens held, of all sequences together; about 0.5 kB each in Python,
                0.13 kB in C++.
            max_context: as for `SuffixAutomaton`.
            new_automaton: makes the automata, from `max_context`.

        Raises:
            ConfigError: if `max_tokens` is below 2 or `max_context` below 1.
        """
        if max_tokens < _NUM_GENERATIONS:
            raise ConfigError(
                f"max_tokens is {max_tokens}: the index keeps two generations and needs at least "
                f"{_NUM_GENERATIONS} tokens; to share nothing, do without the index"
            )
        self.max_context = max_context
        self._generation_len = max_tokens // _NUM_GENERATIONS
        self._new = new_automaton
        self._young = new_automaton(max_context)
        self._old = new_automaton(max_context)
        self._version = 0

    def __len__(self) -> int:
        """Tokens held."""
        return len(self._young) + len(self._old)

    @property
    def version(self) -> int:
        """Changes with every sequence added."""
        return self._version

    @property
    def generations(self) -> tuple[Automaton, Automaton]:
        """The young and the old generation, to be read only."""
        return self._young, self._old

    def add(self, sequence: Sequence[int]) -> None:
        """Add one finished sequence, O(max_context) per token at worst.

        Of a sequence longer than half of `max_tokens` only the end is kept.
        """
        kept = sequence[-self._generation_len :]
        if not kept:
            return
        if len(self._young) + len(kept) > self._generation_len:
            self._old, self._young = self._young, self._new(self.max_context)
        self._young.extend(kept)
        self._young.end_sequence()
        self._version += 1

    def cursor(self) -> "SuffixCursor":
        """Start matching a new text against the index."""
        return SuffixCursor(self)


class SuffixCursor:
    """The end of one growing text, matched against a `SharedSuffixIndex`.

    The match is always the one in the index as it is now, whatever was added or dropped meanwhile.
    """

    def __init__(self, index: SharedSuffixIndex) -> None:
        """Start with an empty text."""
        self._index = index
        self._recent: deque[int] = deque(maxlen=index.max_context)
        self._version = index.version
        self._seats = [START] * _NUM_GENERATIONS

    def advance(self, tokens: Sequence[int]) -> None:
        """Append committed tokens: O(min(number of tokens, max_context))."""
        recent = tokens[-self._index.max_context :]
        self._recent.extend(recent)
        if self._version == self._index.version:
            self._seats = self._follow(self._seats, recent)

    def continuation(
        self, max_tokens: int, *, min_match_len: int = 2, min_confidence: float = 0.0
    ) -> ScoredMatch:
        """Draft as `SuffixAutomaton.draft` does, from the generation with the longer match.

        The young one wins ties. O(max_tokens), plus O(max_context) if the index has changed.
        """
        if self._version != self._index.version:
            self._seats = self._follow([START] * _NUM_GENERATIONS, self._recent)
            self._version = self._index.version
        drafts = [
            generation.draft(
                seat, max_tokens, min_match_len=min_match_len, min_confidence=min_confidence
            )
            for generation, seat in zip(self._index.generations, self._seats, strict=True)
        ]
        return max(drafts, key=lambda draft: draft.match_len)

    def _follow(self, seats: list[Seat], tokens: Iterable[int]) -> list[Seat]:
        return [
            generation.follow(seat, tokens)
            for generation, seat in zip(self._index.generations, seats, strict=True)
        ]
