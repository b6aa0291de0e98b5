"""The JSON of answers: whole ones and stream chunks, for chat and for plain completions.

Chunks are put together by hand around the few values that differ: they are made once per token.
"""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final, Protocol

from outrider.serving.choice import Choice, Piece
from outrider.serving.logprobs import TokenWords, chat_logprobs, completion_logprobs


class Format(Protocol):
    """How one HTTP request is answered."""

    def chunk(self, choice: Choice, piece: Piece) -> str:
        """Write a stream chunk of one choice."""
        ...

    def last_chunk(self, totals: dict[str, Any]) -> str:
        """Write the chunk that has the token counts."""
        ...

    def body(self, choices: Sequence[Choice], totals: dict[str, Any]) -> dict[str, Any]:
        """Give the whole answer."""
        ...


class _Envelope:
    """What all chunks of an answer share."""

    def __init__(self, prefix: str, kind: str, model: str, *, has_usage: bool) -> None:
        self.fields = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self._head = f'{dumps(self.fields)[:-1]},"choices":['
        self._tail = '],"usage":null}' if has_usage else "]}"

    def around(self, choice: str) -> str:
        return f"{self._head}{choice}{self._tail}"

    def last(self, totals: dict[str, Any]) -> str:
        return dumps({**self.fields, "choices": [], **totals})


class ChatFormat:
    """/v1/chat/completions."""

    def __init__(self, model: str, words: TokenWords, *, is_stream: bool, has_usage: bool) -> None:
        """Answer as `model`."""
        kind = "chat.completion.chunk" if is_stream else "chat.completion"
        self._envelope = _Envelope("chatcmpl", kind, model, has_usage=has_usage)
        self._words = words
        self._greeted: set[int] = set()

    def chunk(self, choice: Choice, piece: Piece) -> str:
        """Write a stream chunk of one choice; the first one names the role."""
        role = ""
        if choice.index not in self._greeted:
            self._greeted.add(choice.index)
            role = '"role":"assistant",'
        delta = f'{{{role}"content":{dumps(piece.text)}}}'
        if piece.calls:
            delta = _with_calls(piece, role)
        elif piece.finish is not None and not piece.text and not role:
            delta = "{}"
        logprobs = "null"
        if piece.logprobs:
            logprobs = dumps(chat_logprobs(piece.logprobs, self._words))
        return self._envelope.around(
            f'{{"index":{choice.index},"delta":{delta},"logprobs":{logprobs},'
            f"{_ending(choice, piece)}}}"
        )

    def last_chunk(self, totals: dict[str, Any]) -> str:
        """Write the chunk that has the token counts."""
        return self._envelope.last(totals)

    def body(self, choices: Sequence[Choice], totals: dict[str, Any]) -> dict[str, Any]:
        """Give the whole answer."""
        return {
            **self._envelope.fields,
            "choices": [
                {
                    "index": choice.index,
                    "message": _message(choice),
                    "logprobs": chat_logprobs(choice.whole.logprobs, self._words)
                    if choice.request.params.logprobs is not None
                    else None,
                    **_ending_fields(choice, choice.whole),
                }
                for choice in choices
            ],
            **totals,
        }


class CompletionFormat:
    """/v1/completions. `echoes` are texts that go before the answers, one per choice."""

    def __init__(
        self,
        model: str,
        words: TokenWords,
        echoes: Sequence[str],
        *,
        has_usage: bool,
    ) -> None:
        """Answer as `model`."""
        self._envelope = _Envelope("cmpl", "text_completion", model, has_usage=has_usage)
        self._words = words
        self._echoes = dict(enumerate(echoes))
        self._offsets: dict[int, int] = {}

    def chunk(self, choice: Choice, piece: Piece) -> str:
        """Write a stream chunk of one choice."""
        logprobs = "null"
        if piece.logprobs:
            logprobs = dumps(self._logprobs(choice, piece))
        text = self._echoes.pop(choice.index, "") + piece.text
        return self._envelope.around(
            f'{{"index":{choice.index},"text":{dumps(text)},"logprobs":{logprobs},'
            f"{_ending(choice, piece)}}}"
        )

    def last_chunk(self, totals: dict[str, Any]) -> str:
        """Write the chunk that has the token counts."""
        return self._envelope.last(totals)

    def body(self, choices: Sequence[Choice], totals: dict[str, Any]) -> dict[str, Any]:
        """Give the whole answer."""
        return {
            **self._envelope.fields,
            "choices": [
                {
                    "index": choice.index,
                    "text": self._echoes.get(choice.index, "") + choice.whole.text,
                    "logprobs": self._logprobs(choice, choice.whole)
                    if choice.request.params.logprobs is not None
                    else None,
                    **_ending_fields(choice, choice.whole),
                }
                for choice in choices
            ],
            **totals,
        }

    def _logprobs(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        start = self._offsets.get(choice.index, 0)
        record = completion_logprobs(piece.logprobs, self._words, start)
        self._offsets[choice.index] = start + sum(map(len, record["tokens"]))
        return record


def dumps(value: Any) -> str:
    """Write JSON without spaces, characters as they are but those that some take for line ends."""
    text = _ENCODER.encode(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


# Clients that cut a stream into lines with Python's splitlines() would cut an event in two.
_LINE_ENDS: Final = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _message(choice: Choice) -> dict[str, Any]:
    """The whole answer of a chat's choice; without a text where it only calls tools."""
    whole = choice.whole
    message: dict[str, Any] = {"role": "assistant", "content": whole.text, "refusal": None}
    if whole.calls:
        message["content"] = whole.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in whole.calls
        ]
    return message


def _with_calls(piece: Piece, role: str) -> str:
    """The delta of a chunk that has pieces of tool calls."""
    calls = []
    for call in piece.calls:
        function = {"arguments": call.arguments}
        record: dict[str, Any] = {"index": call.index, "function": function}
        if call.id is not None:
            record = {"index": call.index, "id": call.id, "type": "function"}
            record["function"] = {"name": call.name, **function}
        calls.append(record)
    text = f'"content":{dumps(piece.text)},' if piece.text or role else ""
    return f'{{{role}{text}"tool_calls":{dumps(calls)}}}'


def _ending(choice: Choice, piece: Piece) -> str:
    """The fields every choice ends with, as text."""
    if piece.finish is None and not piece.origins:
        return '"finish_reason":null'
    return dumps(_ending_fields(choice, piece))[1:-1]


def _ending_fields(choice: Choice, piece: Piece) -> dict[str, Any]:
    fields: dict[str, Any] = {"finish_reason": None}
    if piece.finish is not None:
        fields["finish_reason"] = choice.finish_reason
        fields["stop_reason"] = piece.finish.detail
    if piece.origins:
        fields["outrider_tokens"] = piece.origins
    return fields
