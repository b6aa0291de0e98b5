"""Which characters of a streamed text came from an accepted draft, and from whose."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from outrider.cli.console import ACCEPTED_COLOUR, DIM, RESET, Console
from outrider.core.outcome import Origin
from outrider.core.request import SamplingParams
from outrider.engine.detokenize import TextDecoder, TextStream

NETWORK_COLOUR: Final = "\x1b[35m"
SOURCE_COLOURS: Final = {
    "ngram": ACCEPTED_COLOUR,
    "suffix": ACCEPTED_COLOUR,
    "ngram-table": "\x1b[36m",
}
"""Of drafters that copy; a network has its own."""

Mark = TypeVar("Mark")


def colour_of(origin: Origin, source: str | None) -> str:
    """Colour of a token; none for the target's own."""
    if origin is not Origin.ACCEPTED:
        return ""
    return ACCEPTED_COLOUR if source is None else SOURCE_COLOURS.get(source, NETWORK_COLOUR)


def legend(method: str) -> str:
    """Say what the colours mean when drafting with `method`."""
    if method == "combined":
        names = {"own text": "suffix", "table": "ngram-table", "network": "network"}
        coloured = [
            f"{colour_of(Origin.ACCEPTED, source)}{name}{RESET}" for name, source in names.items()
        ]
        drafts = f"{DIM}accepted drafts from {RESET}{f'{DIM}, {RESET}'.join(coloured)}"
    else:
        drafts = f"{colour_of(Origin.ACCEPTED, method)}accepted draft tokens{RESET}"
    return f"{DIM}coloured: {RESET}{drafts}{DIM}; the rest is the target's own{RESET}"


class TokenPainter:
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

    def show(
        self,
        console: Console,
        text: str,
        tokens: Sequence[int],
        origins: Sequence[Origin],
        sources: Sequence[str | None],
    ) -> None:
        """Write a chunk, accepted draft tokens coloured by their source."""
        colours = [colour_of(*each) for each in zip(origins, sources, strict=True)]
        for piece, colour in self.pieces(text, tokens, colours, ""):
            console.write(piece, colour=colour)
