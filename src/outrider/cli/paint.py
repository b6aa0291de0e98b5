"""Streamed text in colours that say which drafter a token came from."""

from collections.abc import Sequence
from typing import Final

from outrider.cli.console import ACCEPTED_COLOUR, DIM, RESET, Console
from outrider.core.outcome import Origin
from outrider.engine.pieces import TokenPieces

NETWORK_COLOUR: Final = "\x1b[35m"
SOURCE_COLOURS: Final = {
    "ngram": ACCEPTED_COLOUR,
    "suffix": ACCEPTED_COLOUR,
    "ngram-table": "\x1b[36m",
}
"""Of drafters that copy; a network has its own."""


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


class TokenPainter(TokenPieces):
    """Writes the chunks of one continuation, each token in its colour."""

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
