"""Typed reading of metadata that a stranger wrote."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import CorruptCheckpoint

_WHOLE_NUMBERS = range(1 << 63)
_LARGEST_FLOAT = sys.float_info.max


class Fields:
    """A mapping whose values are checked as they are read; null counts as absent.

    Every reader raises CorruptCheckpoint for a value of the wrong type, and for an absent one
    without a default.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Read `values`, with `prefix` put before every key."""
        self._values = values
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self._values.get(self._prefix + key) is not None

    def under(self, prefix: str) -> "Fields":
        """The same values, with one more prefix."""
        return Fields(self._values, self._prefix + prefix)

    def section(self, key: str) -> "Fields":
        """The mapping at `key`, empty where there is none."""
        if not self.has(key):
            return Fields({})
        value = self._values[self._prefix + key]
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object")
        return Fields(value)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0, in 64 bits."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value not in _WHOLE_NUMBERS:
            raise self._wrong(key, "a whole number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self._wrong(key, "a number")
        if not -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT:
            raise self._wrong(key, "a finite number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; one value alone is a list of one, and none is empty."""
        if not self.has(key):
            return []
        value = self._values[self._prefix + key]
        return list(value) if isinstance(value, (list, tuple)) else [value]

    def token_ids(self, key: str) -> frozenset[int]:
        """One token id, a list of them, or none."""
        ids = self.items(key)
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
            raise self._wrong(key, "a token id or a list of token ids")
        return frozenset(ids)

    def _value(self, key: str, default: object) -> object:
        value = self._values.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise CorruptCheckpoint(
                f"the checkpoint's metadata lacks {self._prefix + key!r}, which the decoder cannot "
                "be built without; download or convert it again"
            )
        return value

    def _wrong(self, key: str, expected: str) -> CorruptCheckpoint:
        shown = repr(self._values.get(self._prefix + key))[:60]
        return CorruptCheckpoint(
            f"the checkpoint's {self._prefix + key!r} is {shown}, expected {expected}; "
            "download or convert it again"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file.

    Raises:
        CorruptCheckpoint: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(parsed, dict):
        raise CorruptCheckpoint(f"{path} holds {type(parsed).__name__}, expected a JSON object")
    return parsed
