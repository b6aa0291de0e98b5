"""The n-gram index of one text: where did its last few tokens occur before, and what came next?

The data structure behind prompt lookup decoding (Saxena, 2023). It owns the text's n-grams and
nothing else: no requests, no batches, no tensors. Only committed tokens are added, so nothing is
ever taken back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from outrider.errors import ConfigError

_EMPTY = 0
_ID_BITS = 32


@dataclass(frozen=True, slots=True)
class Match:
    """What followed an earlier occurrence of the text's last `match_len` tokens."""

    tokens: tuple[int, ...] = ()
    match_len: int = 0


class NgramIndex:
    """Last occurrences of every n-gram of up to `max_len` tokens of one growing text.

    N-grams are nodes of a trie kept in one hash table, (shorter n-gram, next token) -> n-gram, so a
    token costs `max_len` look-ups whatever the text's length. Memory: at most `max_len` entries per
    token.
    """

    def __init__(self, min_len: int = 2, max_len: int = 4) -> None:
        """Index an empty text.

        Args:
            min_len: shortest suffix, in tokens, that counts as a match.
            max_len: longest suffix, in tokens, that is looked for.

        Raises:
            ConfigError: unless 1 <= min_len <= max_len.
        """
        if not 1 <= min_len <= max_len:
            raise ConfigError(
                f"n-gram lengths from {min_len} to {max_len}: they must satisfy "
                "1 <= min_len <= max_len; choose a min_len of at least 1 and a max_len not below it"
            )
        self._min_len = min_len
        self._max_len = max_len
        self._text: list[int] = []
        self._children: dict[int, int] = {}
        self._last_end = [0]
        self._suffixes = [_EMPTY]
        self._match_len = 0
        self._match_end = 0

    def __len__(self) -> int:
        """Tokens indexed so far."""
        return len(self._text)

    @property
    def num_entries(self) -> int:
        """Distinct n-grams held; at most `max_len` times the length of the text."""
        return len(self._children)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append committed tokens, O(max_len) each."""
        for token in tokens:
            self._append(token)

    def continuation(self, max_tokens: int) -> Match:
        """Copy up to `max_tokens` tokens from behind the latest occurrence of the longest suffix.

        The longest suffix of `min_len` to `max_len` tokens that also ends earlier in the text
        decides, and of its earlier ends the most recent. Where the copy reaches the end of the text
        it goes on through the tokens copied so far, so a loop of any period fills the draft.
        Without a match the answer is empty. O(max_tokens).
        """
        if self._match_len < self._min_len or max_tokens < 1:
            return Match()
        period = len(self._text) - self._match_end
        copied = self._text[self._match_end : self._match_end + min(period, max_tokens)]
        repeats = -(-max_tokens // len(copied))
        return Match(tuple((copied * repeats)[:max_tokens]), self._match_len)

    def _append(self, token: int) -> None:
        text, children, last_end = self._text, self._children, self._last_end
        text.append(token)
        end = len(text)
        self._match_len = 0
        suffixes = [_EMPTY]
        for length, shorter in enumerate(self._suffixes, start=1):
            # The id goes into the low bits: dict probes start there, and ids are spread evenly.
            key = token << _ID_BITS | shorter
            node = children.get(key)
            if node is None:
                children[key] = node = len(last_end)
                last_end.append(end)
            else:
                self._match_len, self._match_end = length, last_end[node]
                last_end[node] = end
            suffixes.append(node)
        if len(suffixes) > self._max_len:
            suffixes.pop()
        self._suffixes = suffixes
