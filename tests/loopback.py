"""A server of a tiny model on loopback, in a thread of the test's own process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.engine.llm import LLM
from outrider.serving.driver import Driver
from outrider.serving.server import Server
from outrider.serving.settings import ServeSettings
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint

MODEL = "tiny"
VOCAB = 258
"""All bytes and two special tokens."""


@dataclass(frozen=True)
class Loopback:
    """A running server."""

    url: str
    server: Server

    @property
    def driver(self) -> Driver:
        return self.server.driver

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def tiny_llm(folder: Path, **options: Any) -> LLM:
    """A model of single bytes with random weights that drafts from its own text."""
    model = folder / "model"
    if not model.exists():
        write_tiny_checkpoint(model, tiny_spec(vocab_size=VOCAB), seed=5)
    made: dict[str, Any] = {"threads": 1, "speculative_config": {"method": "suffix"}}
    return LLM(str(model), **made | options)


@contextmanager
def serving(llm: LLM, **settings: Any) -> Iterator[Loopback]:
    """Serve until the body ends; then nothing may be left running or allocated."""
    made: dict[str, Any] = {"port": 0, "served_model_name": MODEL, "drain_seconds": 5.0}
    found: list[str] = []
    is_ready = threading.Event()

    def ready(url: str) -> None:
        found.append(url)
        is_ready.set()

    server = Server(llm, ServeSettings(**made | settings), ready)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    assert is_ready.wait(30), "the server did not start"
    try:
        yield Loopback(found[0], server)
    finally:
        server.handle_exit(2, None)
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
    assert llm.engine.cache.num_free == llm.engine.cache.num_blocks
