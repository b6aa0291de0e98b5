"""Runs the app until a signal, then lets requests finish for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket
from types import FrameType
from typing import Final

import uvicorn

from outrider.engine.llm import LLM
from outrider.serving.app import create_app
from outrider.serving.connection import bounded
from outrider.serving.driver import Driver
from outrider.serving.settings import ServeSettings

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
AFTER_DRAIN: Final = 5
"""Seconds for the last words of requests that were ended."""


class Server(uvicorn.Server):
    """uvicorn's server; a signal drains it and is not raised again afterwards."""

    def __init__(
        self, llm: LLM, settings: ServeSettings, on_ready: Callable[[str], None] | None = None
    ) -> None:
        """Serve `llm`; `on_ready` hears the address once requests are taken."""
        self.driver = Driver(
            llm, max_queue=settings.max_queue, max_seconds=settings.max_request_seconds
        )
        self._drain_seconds = settings.drain_seconds
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(
                create_app(self.driver, settings),
                host=settings.host,
                port=settings.port,
                http=bounded(settings),
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=settings.max_header_bytes,
                timeout_keep_alive=max(1, round(settings.keep_alive_seconds)),
                timeout_graceful_shutdown=round(settings.drain_seconds) + AFTER_DRAIN,
            )
        )

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self._on_ready is not None and self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self._on_ready(f"http://{shown}:{port}")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear signals while serving, where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take nothing more and finish what there is; a second signal ends it at once."""
        self.driver.drain(0.0 if self.should_exit else self._drain_seconds)
        super().handle_exit(sig, frame)
