"""One TCP connection, with an end to every way of holding it open and doing nothing."""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.serving.failures import ApiError
from outrider.serving.formats import dumps
from outrider.serving.settings import ServeSettings


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 connection that drops who neither speaks nor listens.

    Set `settings` on a subclass, see `bounded`.
    """

    settings = ServeSettings()

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what uvicorn passes."""
        super().__init__(*args, **options)
        self._silence: asyncio.TimerHandle | None = None
        self._deafness: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for a request; drop who is one too many."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            transport.write(_answer(429, "too many connections are open; try again later"))
            transport.close()
            return
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Take what came; what is no whole request yet has to become one in time."""
        super().data_received(data)
        if self._is_at_work:
            self._stop_waiting()
        else:  # The end of an idle connection is put off by any byte.
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_waiting()
        if self._deafness is not None:
            self._deafness.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has too long a head, in the shape of all errors."""
        self.transport.write(_answer(400, msg))
        self.transport.close()

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        super().pause_writing()
        self._deafness = self.loop.call_later(self.settings.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        if self._deafness is not None:
            self._deafness.cancel()

    def timeout_keep_alive_handler(self) -> None:
        """Drop an idle connection, whatever it has left unread."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.settings.write_seconds, self.transport.abort)

    @property
    def _is_at_work(self) -> bool:
        cycle = getattr(self, "cycle", None)
        return cycle is not None and not cycle.response_complete

    def _await_request(self) -> None:
        """Drop the connection unless it sends a whole set of headers in time."""
        if self._silence is None and not self.transport.is_closing():
            self._silence = self.loop.call_later(self.settings.read_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None


def _answer(status: int, message: str) -> bytes:
    """Spell out a whole answer, for a connection that will have no other."""
    body = dumps(ApiError(status, message).body()).encode()
    phrase = HTTPStatus(status).phrase
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def bounded(limits: ServeSettings) -> type[BoundedConnection]:
    """Make the class of a server's connections."""

    class Connection(BoundedConnection):
        settings = limits

    return Connection
