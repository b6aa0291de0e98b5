"""Answers a job over HTTP: as one JSON object, or as server-sent events while it grows."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.serving.failures import INTERNAL, ApiError, api_error_of
from outrider.serving.formats import dumps
from outrider.serving.service import Job
from outrider.serving.ticket import Update

logger = logging.getLogger(__name__)

JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream; charset=utf-8"
STILL_ALIVE: Final = ": the answer is on its way\n\n"
DONE: Final = "data: [DONE]\n\n"


class Reply(Response):
    """One job's answer. When the client goes away, so does the work for it."""

    def __init__(self, job: Job) -> None:
        """Answer `job`; nothing is sent yet."""
        super().__init__()
        self._job = job
        self._num_open = len(job.choices)
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer as it comes."""
        watch = asyncio.create_task(self._cancel_on_disconnect(receive))
        try:
            await self._answer(scope, send)
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            self._job.driver.cancel(self._job.ticket)

    async def _answer(self, scope: Scope, send: Send) -> None:
        try:
            if self._job.is_stream:
                await self._stream(send)
            else:
                await self._whole(send)
        except Exception as error:
            failure = api_error_of(error)
            if failure.status == INTERNAL:
                logger.exception("a request to %s could not be answered", scope["path"])
            if self._has_started:
                await _send_body(send, f"data: {dumps(failure.body())}\n\n{DONE}")
            else:
                await send_error(send, failure)

    async def _cancel_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._job.driver.cancel(self._job.ticket)

    async def _whole(self, send: Send) -> None:
        while self._num_open:
            self._take(await self._job.ticket.take())
        body = self._job.format.body(self._job.choices, self._job.totals())
        await send_json(send, 200, body)

    async def _stream(self, send: Send) -> None:
        while self._num_open:
            updates = await self._job.ticket.take(self._job.keep_alive_seconds)
            text = "".join(self._events(updates)) if updates else STILL_ALIVE
            if not self._num_open:
                text += self._ending()
            if not self._has_started:
                await _send_start(send, 200, EVENTS, {"cache-control": "no-cache"})
                self._has_started = True
            if text:
                await _send_body(send, text, has_more=bool(self._num_open))

    def _events(self, updates: Sequence[Update]) -> Iterator[str]:
        for update in updates:
            choice = self._job.choices[update.number]
            piece = choice.take(update)
            if choice.end is not None:
                self._num_open -= 1
            if not piece.is_empty:
                yield f"data: {self._job.format.chunk(choice, piece)}\n\n"

    def _take(self, updates: Sequence[Update]) -> None:
        for update in updates:
            choice = self._job.choices[update.number]
            choice.take(update)
            if choice.end is not None:
                self._num_open -= 1

    def _ending(self) -> str:
        if not self._job.has_usage:
            return DONE
        return f"data: {self._job.format.last_chunk(self._job.totals())}\n\n{DONE}"


async def send_error(send: Send, error: ApiError) -> None:
    """Answer with an error."""
    await send_json(send, error.status, error.body(), error.headers)


async def send_json(
    send: Send, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
) -> None:
    """Answer with one JSON object."""
    text = dumps(body)
    length = {"content-length": str(len(text.encode("utf-8", "replace")))}
    await _send_start(send, status, JSON, {**length, **(headers or {})})
    await _send_body(send, text)


async def _send_start(send: Send, status: int, kind: bytes, headers: dict[str, str]) -> None:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind), *pairs],
        }
    )


async def _send_body(send: Send, text: str, *, has_more: bool = False) -> None:
    await send(
        {
            "type": "http.response.body",
            "body": text.encode("utf-8", "replace"),
            "more_body": has_more,
        }
    )
