"""What every request must pass before anything reads it: the API key and a whole, small body."""

import asyncio
import hmac
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.serving.failures import ApiError
from outrider.serving.reply import send_error
from outrider.serving.settings import ServeSettings

OPEN_PATHS: Final = frozenset({"/", "/health"})
OPEN_PREFIX: Final = "/web/"
"""Static files of the page."""
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        """Guard `app`."""
        self._app = app
        self._settings = settings
        key = settings.api_key
        self._expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "http":
            try:
                self._require_small_head(scope)
                _require_one_length(scope)
                self._require_key(scope)
                if scope["method"] in _WITH_BODY:
                    receive = await self._with_body(scope, receive)
            except ApiError as error:
                await send_error(send, error)
                return
        await self._app(scope, receive, send)

    def _require_small_head(self, scope: Scope) -> None:
        """Refuse a head that came too fast for the parser to refuse it."""
        length = len(scope["raw_path"]) + len(scope["query_string"])
        length += sum(len(name) + len(value) for name, value in scope["headers"])
        if length > self._settings.max_header_bytes:
            raise ApiError(
                400,
                f"the headers have more than {self._settings.max_header_bytes} bytes; send fewer",
                headers={"connection": "close"},
            )

    def _require_key(self, scope: Scope) -> None:
        path = scope["path"]
        if self._expected is None or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, self._expected):
            raise ApiError(
                401,
                "send the server's API key as 'Authorization: Bearer …'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body now, within bounds, and give a `receive` that begins with it."""
        most = self._settings.max_body_bytes
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:_LONGEST_NUMBER]) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.read_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        break
        except TimeoutError as error:
            raise ApiError(
                408,
                f"the body did not arrive within {self._settings.read_seconds:g} s",
                headers={"connection": "close"},
            ) from error
        first: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        return replay


def _require_one_length(scope: Scope) -> None:
    """Refuse a body with two lengths: a proxy may believe the other (RFC 9112, section 6.1)."""
    names = {name for name, _ in scope["headers"]}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise ApiError(
            400,
            "the request has both Content-Length and Transfer-Encoding; send one of them",
            headers={"connection": "close"},
        )


_LONGEST_NUMBER: Final = 18


def _too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {most} bytes; send less",
        headers={"connection": "close"},
    )
