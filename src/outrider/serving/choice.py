"""One continuation as a client sees it grow: text, log-probabilities, token origins."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.core.outcome import Finish, FinishReason, Origin, TokenLogprobs
from outrider.core.request import Request
from outrider.engine.pieces import TokenPieces
from outrider.models.tokenizer import Tokenizer
from outrider.serving.ticket import End, Update
from outrider.serving.tools import CallDelta, ToolParser


@dataclass(slots=True)
class Piece:
    """What a choice gained at a time."""

    text: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    origins: list[dict[str, Any]] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.text or self.calls or self.logprobs or self.finish)


class Choice:
    """Collects the updates of one continuation."""

    def __init__(
        self,
        index: int,
        request: Request,
        tokenizer: Tokenizer,
        *,
        has_origins: bool = False,
        tools: ToolParser | None = None,
        max_calls: int | None = None,
    ) -> None:
        """Start empty; with `has_origins` each token's text is told apart.

        `tools` finds tool calls in the text; of these the first `max_calls` are told.
        """
        self.index = index
        self.request = request
        self.whole = Piece()
        self.end: End | None = None
        self._tools = tools
        self._max_calls = max_calls
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
        piece = Piece(delta.text, [], list(delta.logprobs), [], delta.finish)
        if self._tools is not None:
            self._find_calls(self._tools, piece)
        if self._pieces is not None:
            marks = list(zip(delta.origins, delta.sources, strict=True))
            piece.origins = list(self._origins(self._pieces, delta.text, delta.tokens, marks))
        whole = self.whole
        whole.text += piece.text
        for call in piece.calls:
            _add_call(whole.calls, call)
        whole.logprobs += piece.logprobs
        whole.origins += piece.origins
        whole.finish = piece.finish
        return piece

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, in OpenAI's words; None while it goes on."""
        finish = self.whole.finish
        if finish is None:
            return None
        if self.whole.calls and finish.reason is FinishReason.STOP:
            return "tool_calls"
        return finish.reason.value

    def _find_calls(self, tools: ToolParser, piece: Piece) -> None:
        """Take the calls out of a piece's text."""
        deltas = [tools.push(piece.text)]
        if piece.finish is not None:
            deltas.append(tools.finish())
        piece.text = "".join(delta.content for delta in deltas)
        calls = [call for delta in deltas for call in delta.calls]
        most = self._max_calls
        piece.calls = [call for call in calls if most is None or call.index < most]

    @staticmethod
    def _origins(
        pieces: TokenPieces,
        text: str,
        tokens: tuple[int, ...],
        marks: list[tuple[Origin, str | None]],
    ) -> Iterator[dict[str, Any]]:
        for part, (origin, source) in pieces.pieces(text, tokens, marks, (Origin.TARGET, None)):
            yield {"text": part, "origin": origin.value, "source": source}


def _add_call(calls: list[CallDelta], delta: CallDelta) -> None:
    """Add a piece of a call to the calls so far."""
    if delta.index == len(calls):
        calls.append(delta)
    else:
        before = calls[delta.index]
        calls[delta.index] = replace(before, arguments=before.arguments + delta.arguments)
