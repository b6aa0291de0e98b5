"""A small HTTP/1.1 client on asyncio streams: enough to put load on a server and to time it.

Bodies are handed on as they arrive, so that the time of arrival is known. A connection is used
again when its answer was read to the end.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from outrider.errors import ConfigError

_READ = 65536
_MAX_HEADERS = 200
_DEFAULT_PORTS = {"http": 80, "https": 443}


class ConnectionFailed(Exception):
    """The exchange broke off; `reason` is a short name for how."""

    def __init__(self, reason: str, detail: str = "") -> None:
        """Take the reason and, if there is more to say, a sentence."""
        super().__init__(detail or reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    is_secure: bool
    prefix: str
    """Path that comes before every endpoint, without a slash at its end."""

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Take an address like `http://127.0.0.1:8000`.

        Raises:
            ConfigError: It is no http or https address.
        """
        try:
            parts: SplitResult = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is no address of a server ({error})") from error
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ConfigError(
                f"{url!r} is no address of a server; give one like http://127.0.0.1:8000"
            )
        port = _DEFAULT_PORTS[parts.scheme] if port is None else port
        return cls(parts.hostname, port, parts.scheme == "https", parts.path.rstrip("/"))


@dataclass(slots=True)
class Response:
    """Status, headers in lower case, and the body piece by piece."""

    status: int
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """Read the body to its end."""
        return b"".join([chunk async for chunk in self.chunks])


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_used: bool = False
    is_reusable: bool = False


class HttpClient:
    """Sends requests to one server over as many connections as are needed at a time."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        """Take the address; nothing is sent yet."""
        self.address = Address.parse(base_url)
        self._headers = {"Accept": "*/*", "User-Agent": "outrider-bench", **(headers or {})}
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if self.address.is_secure else None

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[Response]:
        """Send a request and give the answer once its headers are there.

        Raises:
            ConnectionFailed: The server cannot be reached or does not speak HTTP.
        """
        message = self._head(method, path, len(body)) + body
        connection, status, headers = await self._exchange(message)
        try:
            yield Response(status, headers, _body(connection, method, status, headers))
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.writer.close()

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().writer.close()

    def _head(self, method: str, path: str, length: int) -> bytes:
        host = self.address.host if ":" not in self.address.host else f"[{self.address.host}]"
        lines = [
            f"{method} {self.address.prefix}{path} HTTP/1.1",
            f"Host: {host}:{self.address.port}",
            f"Content-Length: {length}",
            *(["Content-Type: application/json"] if length else []),
            *(f"{name}: {value}" for name, value in self._headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _exchange(self, message: bytes) -> tuple[_Connection, int, dict[str, str]]:
        while True:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                connection.writer.write(message)
                await connection.writer.drain()
                status, headers = await _read_head(connection.reader)
            except (ConnectionFailed, OSError) as error:
                connection.writer.close()
                if connection.is_used:
                    # The server closed it while it was idle; a fresh one tells what is wrong.
                    continue
                raise _failure(error) from error
            except BaseException:
                connection.writer.close()
                raise
            connection.is_used, connection.is_reusable = True, False
            return connection, status, headers

    async def _connect(self) -> _Connection:
        try:
            reader, writer = await asyncio.open_connection(
                self.address.host, self.address.port, ssl=self._tls
            )
        except ConnectionRefusedError as error:
            raise ConnectionFailed("connection refused", str(error)) from error
        except OSError as error:
            raise ConnectionFailed("no connection", str(error)) from error
        return _Connection(reader, writer)


def _failure(error: ConnectionFailed | OSError) -> ConnectionFailed:
    if isinstance(error, ConnectionFailed):
        return error
    return ConnectionFailed("disconnected", str(error))


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read status line and headers, past interim answers such as 100."""
    while True:
        version, _, rest = (await _line(reader)).partition(" ")
        status = rest.partition(" ")[0]
        if not version.startswith("HTTP/") or not status.isdecimal():
            raise ConnectionFailed("no HTTP", f"the server answered {version!r}, not HTTP")
        headers: dict[str, str] = {}
        for _ in range(_MAX_HEADERS):
            line = await _line(reader)
            if not line:
                break
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        else:
            raise ConnectionFailed("no HTTP", f"more than {_MAX_HEADERS} headers")
        if int(status) >= HTTPStatus.OK:
            return int(status), headers


async def _line(reader: asyncio.StreamReader) -> str:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        raise ConnectionFailed("disconnected", "the server closed the connection") from error
    except asyncio.LimitOverrunError as error:
        raise ConnectionFailed("no HTTP", "a header line without end") from error
    return line.decode("latin-1").rstrip("\r\n")


async def _body(
    connection: _Connection, method: str, status: int, headers: dict[str, str]
) -> AsyncIterator[bytes]:
    """Yield the body; afterwards the connection is free unless its end was the body's."""
    reader = connection.reader
    try:
        if method == "HEAD" or status in (204, 304):
            pass
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            async for piece in _chunked(reader):
                yield piece
        elif headers.get("content-length", "").isdecimal():
            async for piece in _counted(reader, int(headers["content-length"])):
                yield piece
        else:
            while piece := await reader.read(_READ):
                yield piece
            return
    except OSError as error:
        raise ConnectionFailed("disconnected", str(error)) from error
    connection.is_reusable = headers.get("connection", "").lower() != "close"


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await _line(reader)
        try:
            size = int(line.partition(";")[0], 16)
        except ValueError as error:
            raise ConnectionFailed("no HTTP", f"{line[:40]!r} is no chunk size") from error
        if size == 0:
            while await _line(reader):
                pass
            return
        async for piece in _counted(reader, size):
            yield piece
        await _line(reader)


async def _counted(reader: asyncio.StreamReader, left: int) -> AsyncIterator[bytes]:
    while left:
        piece = await reader.read(min(left, _READ))
        if not piece:
            raise ConnectionFailed("disconnected", "the server closed the connection mid-answer")
        left -= len(piece)
        yield piece
