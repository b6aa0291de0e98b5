"""A client that costs little: asyncio streams, no parsing beyond the first and the last event.

Used by serve_overhead.py and serve_load.py, each in a process of its own.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

READ = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request went. Seconds; `first` is None where nothing came."""

    status: int
    first: float | None
    seconds: float
    num_tokens: int
    ending: str


async def ask(port: int, body: dict[str, Any], *, leave_after: int | None = None) -> Answer:
    """Send one request to /v1/completions; `leave_after` so many bytes the client goes away."""
    started = time.perf_counter()
    text = json.dumps(body).encode()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return Answer(0, None, time.perf_counter() - started, 0, type(error).__name__)
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(text)
    )
    first, received = None, b""
    try:
        writer.write(head + text)
        while piece := await reader.read(READ):
            received += piece
            if first is None and b"data:" in piece:
                first = time.perf_counter() - started
            if leave_after is not None and len(received) >= leave_after:
                break
    except OSError as error:
        return Answer(0, first, time.perf_counter() - started, 0, type(error).__name__)
    finally:
        writer.transport.abort()
    status = int(received[9:12] or 0)
    return Answer(status, first, time.perf_counter() - started, *_ending(received))


def _ending(received: bytes) -> tuple[int, str]:
    """Tokens of the answer and how it ended, from its last event or its only object."""
    at = received.rfind(b'"completion_tokens":')
    num_tokens = int(received[at + 20 :].split(b",")[0]) if at >= 0 else 0
    for ending in (b'"code":"', b'"finish_reason":"'):
        at = received.rfind(ending)
        if at >= 0:
            return num_tokens, received[at + len(ending) :].split(b'"')[0].decode()
    return num_tokens, ""


async def ask_all(
    port: int, bodies: Sequence[dict[str, Any]], concurrency: int
) -> tuple[list[Answer], float]:
    """Send all, so many at a time; give the answers in order and the seconds it took."""
    gate = asyncio.Semaphore(concurrency)

    async def one(body: dict[str, Any]) -> Answer:
        async with gate:
            return await ask(port, body)

    started = time.perf_counter()
    answers = await asyncio.gather(*map(one, bodies))
    return list(answers), time.perf_counter() - started


def run(
    port: int, bodies: Sequence[dict[str, Any]], concurrency: int
) -> tuple[list[Answer], float]:
    """`ask_all`, for a process of its own."""
    return asyncio.run(ask_all(port, bodies, concurrency))
