"""Tokens → text, one token at a time, with stop strings that may start anywhere.

The text of a request is by definition what its stream delivered, so the two cannot differ. Text
that could still become a stop string, or that ends inside a UTF-8 character, is held back.
"""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Tokens before the window whose presence decides about a leading space.
CONTEXT_TOKENS = 4


class TextDecoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text."""
        ...


class TextStream:
    """The growing text of one request."""

    def __init__(
        self,
        decoder: TextDecoder,
        prompt: Sequence[int],
        *,
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        """Start after `prompt`."""
        self._decoder = decoder
        self._stop = tuple(stop)
        self._skip_special = skip_special_tokens
        self._tokens = list(prompt[-CONTEXT_TOKENS:])
        self._prefix_start = 0
        self._read_end = len(self._tokens)
        self._delivered = 0
        self.text = ""

    def push(self, token: int, *, may_stop: bool = True) -> str | None:
        """Append a token; return the stop string it completes and cut the text before it."""
        self._tokens.append(token)
        return self._grow(self._new_text(), may_stop=may_stop)

    def take(self) -> str:
        """Give the text that is final and was not given before."""
        return self._deliver(len(self.text) - self._held_back())

    def finish(self) -> str:
        """Give all that is left; an unfinished character shows as a replacement character."""
        if self._read_end < len(self._tokens):
            self._grow(self._decode_tail()[1], may_stop=False)
            self._read_end = len(self._tokens)
        return self._deliver(len(self.text))

    def cut(self) -> None:
        """Forget tokens that were pushed but are not readable yet: they came with a stop string."""
        self._read_end = len(self._tokens)

    def _deliver(self, end: int) -> str:
        delta = self.text[self._delivered : end]
        self._delivered = max(end, self._delivered)
        return delta

    def _new_text(self) -> str:
        """Decode what the tokens since the last call add; nothing inside a character."""
        whole, fresh = self._decode_tail()
        if not fresh or whole.endswith(REPLACEMENT):
            return ""
        self._prefix_start, self._read_end = self._read_end, len(self._tokens)
        return fresh

    def _decode_tail(self) -> tuple[str, str]:
        known = self._decode(self._tokens[self._prefix_start : self._read_end])
        whole = self._decode(self._tokens[self._prefix_start :])
        return whole, whole[len(known) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(tokens, skip_special_tokens=self._skip_special)

    def _grow(self, fresh: str, *, may_stop: bool) -> str | None:
        start = len(self.text)
        self.text += fresh
        if not (fresh and may_stop and self._stop):
            return None
        found = [
            (at, stop)
            for stop in self._stop
            if (at := self.text.find(stop, max(self._delivered, start - len(stop) + 1))) >= 0
        ]
        if not found:
            return None
        at, stop = min(found)
        self.text = self.text[:at]
        self.cut()
        return stop

    def _held_back(self) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
