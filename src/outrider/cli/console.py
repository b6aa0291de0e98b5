"""What reaches the terminal: results on stdout, everything about them on stderr."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

ACCEPTED_COLOUR = "\x1b[32m"
DIM = "\x1b[2m"
RESET = "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"
_SECONDS_BETWEEN_UPDATES = 0.2
_SECONDS_BETWEEN_LINES = 15.0


class Console:
    """Prints for one command. Colours and moving lines only where a person looks at a terminal."""

    def __init__(self, *, no_color: bool = False) -> None:
        """Look at the two streams and at NO_COLOR (no-color.org)."""
        wanted = not no_color and not os.environ.get("NO_COLOR")
        self.has_colour = wanted and _is_terminal(sys.stdout)
        self._moves = _is_terminal(sys.stderr)
        self._line_is_open = False
        self._last_update = 0.0

    def say(self, line: str = "") -> None:
        """Print a line about the result."""
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def write(self, text: str, *, colour: str = "") -> None:
        """Print a piece of the result, at once."""
        self.clear()
        if self.has_colour:
            # Text of a model must not be able to steer the terminal.
            text = text.replace("\x1b", "\N{SYMBOL FOR ESCAPE}")
            if colour and text:
                text = f"{colour}{text}{RESET}"
        sys.stdout.write(text)
        sys.stdout.flush()

    def print(self, line: str = "") -> None:
        """Print a line of the result."""
        self.clear()
        print(line, flush=True)

    def print_json(self, record: Mapping[str, Any]) -> None:
        """Print the result as one line of JSON."""
        self.print(json.dumps(record, ensure_ascii=False, allow_nan=False))

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show `what` while the body runs."""
        if self._moves:
            self._show(f"{what} …")
        else:
            self.say(f"{what} …")
        yield
        self.clear()

    def progress(self, what: str, done: int, total: int, started: float) -> None:
        """Show how far a long run is and how long the rest will take.

        `started` is the reading of `time.monotonic` at the begin.
        """
        now = time.monotonic()
        pause = _SECONDS_BETWEEN_UPDATES if self._moves else _SECONDS_BETWEEN_LINES
        if done < total and now - self._last_update < pause:
            return
        self._last_update = now
        rest = (now - started) / done * (total - done) if done else 0.0
        line = f"{done}/{total} {what}, {_duration(rest)} left"
        if self._moves:
            self._show(line)
        else:
            self.say(line)

    def clear(self) -> None:
        """Take a moving line away."""
        if self._line_is_open:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._line_is_open = False

    def _show(self, line: str) -> None:
        sys.stderr.write(_CLEAR_LINE + line)
        sys.stderr.flush()
        self._line_is_open = True


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that a step of the engine is never torn in two.

    A second one raises `KeyboardInterrupt` at once.
    """
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class _Stream(Protocol):
    """What is asked of stdout and stderr; either can be missing."""

    def isatty(self) -> bool: ...


def _is_terminal(stream: _Stream | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
