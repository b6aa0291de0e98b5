"""An HTTP server that answers as a script says: bytes, pauses, connections that break."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

BREAK: Final = None
"""Closes the connection on the spot."""

Action = bytes | float | None
"""Bytes are sent, numbers are pauses in seconds."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came in; `number` counts the posts before it."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    number: int


Respond = Callable[[Received], Sequence[Action]]


@dataclass(slots=True)
class FakeServer:
    """Where it listens and what it got."""

    respond: Respond
    url: str = ""
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    running: int = 0
    most_running: int = 0

    @property
    def posts(self) -> list[Received]:
        return [each for each in self.received if each.method == "POST"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (request := await self._read(reader)) is not None:
                self.received.append(request)
                self.running += request.method == "POST"
                self.most_running = max(self.most_running, self.running)
                try:
                    if not await _act(writer, self.respond(request)):
                        return
                finally:
                    self.running -= request.method == "POST"
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client went, or the test is over.
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Received | None:
        line = await reader.readline()
        if not line:
            return None
        method, path, _ = line.decode().split(" ")
        headers = {}
        while header := (await reader.readline()).decode().strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        text = await reader.readexactly(int(headers.get("content-length", 0)))
        return Received(method, path, headers, json.loads(text or b"{}"), len(self.posts))


async def _act(writer: asyncio.StreamWriter, actions: Sequence[Action]) -> bool:
    """Do what the script says; False if the connection is to end."""
    for action in actions:
        if action is None:
            return False
        if isinstance(action, float):
            await asyncio.sleep(action)
        else:
            writer.write(action)
            await writer.drain()
    return True


@contextmanager
def fake_server(respond: Respond) -> Iterator[FakeServer]:
    """Serve on loopback, in a thread, until the body is left."""
    server = FakeServer(respond)
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop() -> None:
        listening.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


def answer(status: str, body: bytes, *headers: str) -> list[Action]:
    """A whole answer of known length."""
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return ["\r\n".join(head).encode() + b"\r\n\r\n" + body]


STREAM: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END: Final = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(fields: dict[str, Any]) -> bytes:
    """A server-sent event that holds JSON."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text: str, finish: str | None = None, *, chat: bool = True) -> bytes:
    """An event of a streamed answer."""
    content = {"delta": {"content": text}} if chat else {"text": text}
    return event({"choices": [{"index": 0, **content, "finish_reason": finish}]})


def usage(prompt: int, completion: int) -> bytes:
    """The last event where usage was asked for."""
    return event(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    )


def streamed(*events: bytes) -> list[Action]:
    """A whole stream, each event a piece of its own."""
    return [STREAM, *(chunk(each) for each in (*events, b"data: [DONE]\n\n")), END]
