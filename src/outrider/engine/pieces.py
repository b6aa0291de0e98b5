"""Which characters of a streamed text came from which token."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from outrider.core.request import SamplingParams
from outrider.engine.detokenize import TextDecoder, TextStream

Mark = TypeVar("Mark")


class TokenPieces:
    """Splits the chunks of one continuation into pieces, each with the mark of its token.

    A chunk holds the text of several tokens, and text may lag behind its tokens. A second text
    stream, fed token by token, says how long each token's piece is; the characters themselves are
    always the chunk's.
    """

    def __init__(self, decoder: TextDecoder, prompt: Sequence[int], params: SamplingParams) -> None:
        """Start after `prompt`."""
        self._lengths = TextStream(
            decoder, prompt, stop=params.stop, skip_special_tokens=params.skip_special_tokens
        )

    def pieces(
        self, text: str, tokens: Sequence[int], marks: Sequence[Mark], unmarked: Mark
    ) -> Iterator[tuple[str, Mark]]:
        """Yield pieces that add up to `text`; what is left over belongs to the last token."""
        start = 0
        for number, (token, mark) in enumerate(zip(tokens, marks, strict=True), start=1):
            self._lengths.push(token)
            end = start + len(self._lengths.take())
            if number == len(tokens):
                end = len(text)
            if text[start:end]:
                yield text[start:end], mark
            start = min(end, len(text))
        if not tokens and text:
            yield text, unmarked
