"""Which characters of a streamed text came from an accepted draft."""

from collections.abc import Iterator, Sequence

from outrider.cli.console import ACCEPTED_COLOUR, Console
from outrider.core.outcome import Origin
from outrider.core.request import SamplingParams
from outrider.engine.detokenize import TextDecoder, TextStream


class TokenPainter:
    """Splits the chunks of one continuation into pieces, each with the origin of its token.

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
        self, text: str, tokens: Sequence[int], origins: Sequence[Origin]
    ) -> Iterator[tuple[str, Origin]]:
        """Yield pieces that add up to `text`; what is left over belongs to the last token."""
        start = 0
        for number, (token, origin) in enumerate(zip(tokens, origins, strict=True), start=1):
            self._lengths.push(token)
            end = start + len(self._lengths.take())
            if number == len(tokens):
                end = len(text)
            if text[start:end]:
                yield text[start:end], origin
            start = min(end, len(text))
        if not tokens and text:
            yield text, Origin.TARGET

    def show(
        self, console: Console, text: str, tokens: Sequence[int], origins: Sequence[Origin]
    ) -> None:
        """Write a chunk, accepted draft tokens coloured."""
        for piece, origin in self.pieces(text, tokens, origins):
            console.write(piece, colour=ACCEPTED_COLOUR if origin is Origin.ACCEPTED else "")
