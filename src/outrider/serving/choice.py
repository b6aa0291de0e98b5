"""One continuation as a client sees it grow: text, log-probabilities, token origins."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from outrider.core.outcome import Finish, Origin, TokenLogprobs
from outrider.core.request import Request
from outrider.engine.pieces import TokenPieces
from outrider.models.tokenizer import Tokenizer
from outrider.serving.ticket import End, Update


@dataclass(slots=True)
class Piece:
    """What a choice gained at a time."""

    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    origins: list[dict[str, Any]] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.text or self.logprobs or self.finish)


class Choice:
    """Collects the updates of one continuation."""

    def __init__(
        self, index: int, request: Request, tokenizer: Tokenizer, *, has_origins: bool
    ) -> None:
        """Start empty; with `has_origins` each token's text is told apart."""
        self.index = index
        self.request = request
        self.whole = Piece()
        self.end: End | None = None
        self._pieces = (
            TokenPieces(tokenizer, request.prompt, request.params) if has_origins else None
        )

    def take(self, update: Update) -> Piece:
        """Add an update and give what it brought.

        Raises:
            RequestError: The continuation failed.
        """
        if update.end is not None:
            self.end = update.end
            if update.end.failure is not None:
                raise update.end.failure
        delta = update.delta
        if delta is None:
            return Piece()
        piece = Piece(delta.text, list(delta.logprobs), [], delta.finish)
        if self._pieces is not None:
            marks = list(zip(delta.origins, delta.sources, strict=True))
            piece.origins = list(self._origins(self._pieces, delta.text, delta.tokens, marks))
        whole = self.whole
        whole.text += piece.text
        whole.logprobs += piece.logprobs
        whole.origins += piece.origins
        whole.finish = piece.finish
        return piece

    @staticmethod
    def _origins(
        pieces: TokenPieces,
        text: str,
        tokens: tuple[int, ...],
        marks: list[tuple[Origin, str | None]],
    ) -> Iterator[dict[str, Any]]:
        for part, (origin, source) in pieces.pieces(text, tokens, marks, (Origin.TARGET, None)):
            yield {"text": part, "origin": origin.value, "source": source}
