"""Requests to OpenAI's completion endpoints, streamed and timed."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from outrider.core.exchange import Exchange, Message
from outrider.errors import ConfigError
from outrider.serving.load.events import EventReader
from outrider.serving.load.http import ConnectionFailed, HttpClient, Response

DONE = "[DONE]"
CHAT = "/chat/completions"
MAX_WAIT = 60.0
"""Longest pause, in seconds, that a server can ask for with Retry-After."""
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_SHOWN = 200

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What every request asks for. `extra` is put over the body; None in it takes a field away."""

    model: str
    endpoint: str = "/v1/chat/completions"
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    timeout: float = 600.0
    max_retries: int = 0
    """How often a request that is turned away (429, 503) is sent again."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_chat(self) -> bool:
        """Whether the endpoint takes messages; else it takes one text."""
        return self.endpoint.rstrip("/").endswith(CHAT)

    def body(self, messages: Sequence[Message], number: int) -> dict[str, Any]:
        """Build a request. With a temperature the `number`-th gets its own seed."""
        what: dict[str, Any] = (
            {"messages": list(messages)}
            if self.is_chat
            else {"prompt": "\n\n".join(message["content"] for message in messages)}
        )
        body: dict[str, Any] = {
            "model": self.model,
            **what,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.temperature > 0:
            body["seed"] = self.seed + number
        if self.ignore_eos:
            body["ignore_eos"] = True
        body |= self.extra
        return {name: value for name, value in body.items() if value is not None}


async def send(
    http: HttpClient,
    options: RequestOptions,
    messages: Sequence[Message],
    exchange: Exchange,
    number: int,
    clock: Clock,
) -> None:
    """Send one request, and note in `exchange` what came of it. Failures are noted, not raised."""
    body = json.dumps(options.body(messages, number)).encode()
    exchange.sent = clock()
    try:
        async with asyncio.timeout(options.timeout):
            while True:
                async with http.request("POST", options.endpoint, body) as response:
                    if response.status == HTTPStatus.OK:
                        await read_stream(response.chunks, exchange, clock)
                        return
                    pause = await _refused(response, exchange, clock)
                if pause is None or exchange.retries >= options.max_retries:
                    return
                exchange.retries += 1
                await asyncio.sleep(pause)
                exchange.error = exchange.reason = None
    except ConnectionFailed as error:
        exchange.fail(error.reason, str(error), clock())
    except TimeoutError:
        exchange.fail("timeout", f"not done within {options.timeout:g} s", clock())


async def _refused(response: Response, exchange: Exchange, clock: Clock) -> float | None:
    """Note an HTTP error; give the pause after which the server may be asked again."""
    text = (await response.read()).decode("utf-8", "replace")
    exchange.fail(f"HTTP {response.status}", _message(text), clock())
    if response.status not in _BUSY:
        return None
    asked = response.headers.get("retry-after", "1")
    return min(float(asked), MAX_WAIT) if asked.replace(".", "", 1).isdecimal() else 1.0


def _message(text: str) -> str:
    """Take the message out of an error in OpenAI's shape, else the text's beginning."""
    try:
        return str(json.loads(text)["error"]["message"])[:_SHOWN]
    except (ValueError, KeyError, TypeError):
        return text[:_SHOWN]


async def read_stream(chunks: AsyncIterator[bytes], exchange: Exchange, clock: Clock) -> None:
    """Read a streamed answer into `exchange`; every piece gets the time at which it arrived."""
    reader = EventReader()
    try:
        async for piece in chunks:
            now = clock()
            for data in reader.feed(piece):
                _take(data, exchange, now)
        # Some servers leave the last empty line out.
        now = clock()
        for data in reader.feed(b"\n\n"):
            _take(data, exchange, now)
    except ValueError as error:
        exchange.fail("malformed event", str(error)[:_SHOWN], clock())
    if exchange.error is None and exchange.finish_reason is None:
        exchange.fail("cut off", "the stream ended without a finish reason", clock())


def _take(data: str, exchange: Exchange, now: float) -> None:
    """Note one event.

    Raises:
        ValueError: It is no JSON object of the expected shape.
    """
    if data.strip() == DONE or exchange.error is not None:
        return
    try:
        event = json.loads(data)
        if "error" in event:
            detail = event["error"]
            text = detail.get("message", detail) if isinstance(detail, dict) else detail
            exchange.fail("error in stream", str(text)[:_SHOWN], now)
            return
        usage = event.get("usage")
        if usage:
            exchange.input_tokens = int(usage["prompt_tokens"])
            exchange.output_tokens = int(usage["completion_tokens"])
        for choice in event.get("choices", ())[:1]:
            _take_choice(choice, exchange, now)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{data[:_SHOWN]!r} ({type(error).__name__}: {error})") from error


def _take_choice(choice: Mapping[str, Any], exchange: Exchange, now: float) -> None:
    delta = choice.get("delta", {})
    text = choice.get("text") or delta.get("content") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if text or thought or delta.get("tool_calls"):
        exchange.chunk_times.append(now)
        exchange.text += text
        exchange.ended = now
    if choice.get("finish_reason") is not None:
        exchange.finish_reason = str(choice["finish_reason"])
        exchange.ended = now


async def first_model(http: HttpClient) -> str:
    """Ask the server what it serves.

    Raises:
        ConfigError: It does not answer, or lists no model.
    """
    text = await get_text(http, "/v1/models")
    try:
        return str(json.loads(text or "")["data"][0]["id"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError("the server lists no model at /v1/models; name one: --model") from error


async def get_text(http: HttpClient, path: str) -> str | None:
    """Fetch a text; None if the server has none there.

    Raises:
        ConfigError: No server answers.
    """
    try:
        async with http.request("GET", path) as response:
            body = await response.read()
    except ConnectionFailed as error:
        where = f"{http.address.host}:{http.address.port}"
        raise ConfigError(
            f"no server answers at {where} ({error.reason}); start one, or check --base-url"
        ) from error
    return body.decode("utf-8", "replace") if response.status == HTTPStatus.OK else None
