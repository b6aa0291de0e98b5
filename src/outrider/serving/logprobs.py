"""Log-probabilities in the two shapes OpenAI has for them."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from outrider.core.outcome import TokenLogprobs
from outrider.models.tokenizer import Tokenizer

LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON does not have; the number vLLM uses."""
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FIRST_SHIFTED: Final = 256


class TokenWords:
    """Text and bytes of single tokens. A token that is part of a character has bytes, no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Spell with `tokenizer`."""
        self._tokenizer = tokenizer
        self._is_byte_level = "ByteLevel" in repr(tokenizer.backend.decoder)
        self._known: dict[int, tuple[str, list[int]]] = {}

    def of(self, token: int) -> tuple[str, list[int]]:
        """Give a token's text and its bytes."""
        if token not in self._known:
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            self._known[token] = (text, list(self._bytes(token, text)))
        return self._known[token]

    def _bytes(self, token: int, text: str) -> bytes:
        spelling = self._tokenizer.token(token)
        if self._is_byte_level and all(letter in _BYTE_OF for letter in spelling):
            return bytes(_BYTE_OF[letter] for letter in spelling)
        if match := _BYTE_TOKEN.fullmatch(spelling):
            return bytes([int(match[1], 16)])
        return text.encode("utf-8", "replace")


def chat_logprobs(entries: Sequence[TokenLogprobs], words: TokenWords) -> dict[str, Any]:
    """Shape of /v1/chat/completions."""
    return {
        "content": [
            {
                **_chat_token(entry.token, entry.logprob, words),
                "top_logprobs": [_chat_token(*top, words) for top in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def completion_logprobs(
    entries: Sequence[TokenLogprobs], words: TokenWords, offset: int
) -> dict[str, Any]:
    """Shape of /v1/completions; `offset` is where the first token's text begins."""
    texts = [words.of(entry.token)[0] for entry in entries]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [
            {words.of(token)[0]: _finite(logprob) for token, logprob in entry.top}
            | {words.of(entry.token)[0]: _finite(entry.logprob)}
            for entry in entries
        ],
        "text_offset": offsets,
    }


def _chat_token(token: int, logprob: float, words: TokenWords) -> dict[str, Any]:
    text, spelled = words.of(token)
    return {"token": text, "logprob": _finite(logprob), "bytes": spelled}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST


def _byte_spelling() -> dict[str, int]:
    """The printable stand-in of every byte in byte-level BPE (Radford et al. 2019), inverted."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(_FIRST_SHIFTED, 2 * _FIRST_SHIFTED))
    return {
        chr(byte) if byte in printable else chr(next(shifted)): byte
        for byte in range(_FIRST_SHIFTED)
    }


_BYTE_OF: Final = _byte_spelling()
