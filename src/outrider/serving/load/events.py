"""Server-sent events from bytes in pieces of any size."""

from collections.abc import Iterator

MAX_EVENT = 16 * 1024 * 1024
_NAME = b"data"


class EventReader:
    """Collects bytes and gives the data of each event once it is whole (WHATWG HTML, 9.2)."""

    def __init__(self) -> None:
        """Begin before the first event."""
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take the next bytes; yield the data of every event that they complete.

        Raises:
            ValueError: An event is longer than 16 MiB or is not UTF-8.
        """
        lines = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT:
            raise ValueError(f"an event is longer than {MAX_EVENT} bytes")
        for line in lines:
            if not line:
                if self._data:
                    yield b"\n".join(self._data).decode("utf-8")
                self._data = []
                continue
            name, _, value = line.partition(b":")
            if name == _NAME:
                self._data.append(value.removeprefix(b" "))
