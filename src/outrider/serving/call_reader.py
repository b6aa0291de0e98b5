"""Reads one tool call, a JSON object, a character at a time, and hands its arguments on as text."""

import json
from typing import Final

_SPACE: Final = " \t\r\n"


class CallReader:
    """Finds `name` and the arguments of a call while it is being written.

    It follows strings and brackets and checks no more than it needs: arguments are the model's own
    text. `is_ready` says that their first piece, or that there are none, is known.
    """

    def __init__(self, arguments: str) -> None:
        """Expect the arguments under the key `arguments`."""
        self.name: str | None = None
        self.is_ready = self.is_done = self.is_broken = False
        self._arguments = arguments
        self._piece = ""
        self._keys: set[str] = set()
        self._key = ""
        # What may come next in the object, or the key or value that is being read.
        self._wanted = "start"
        self._value = ""
        self._length = self._depth = 0
        self._is_string = self._is_escaped = self._is_streamed = False

    def take(self, char: str) -> None:
        """Read one character; nothing may come behind the closing brace."""
        if self._wanted in ("in key", "in value"):
            self._inside(char)
        elif char not in _SPACE:
            self._between(char)

    def pop(self) -> str:
        """Give the arguments' text that was not given before."""
        piece, self._piece = self._piece, ""
        return piece

    def _between(self, char: str) -> None:
        wanted = self._wanted
        if wanted == "start" and char == "{":
            self._wanted = "first key"
        elif wanted in ("first key", "key") and char == '"':
            self._begin("in key", char)
        elif wanted == "colon" and char == ":":
            self._wanted = "value"
        elif wanted == "value" and char not in ",}]:":
            self._begin("in value", char)
        elif wanted == "comma" and char == ",":
            self._wanted = "key"
        elif wanted in ("first key", "comma") and char == "}":
            self._end()
        else:
            self.is_broken = True

    def _begin(self, wanted: str, char: str) -> None:
        self._wanted, self._value = wanted, ""
        self._length = self._depth = 0
        self._is_string = self._is_escaped = False
        self._is_streamed = wanted == "in value" and self._key == self._arguments and char == "{"
        self.is_ready = self.is_ready or self._is_streamed
        self._inside(char)

    def _inside(self, char: str) -> None:
        """Inside a key or a value; strings and brackets know their own end, numbers do not."""
        is_open = self._is_string or self._depth > 0
        if not is_open and self._length and (char in _SPACE or char in ",}"):
            self._complete()
            self.take(char)
            return
        self._length += 1
        if self._is_streamed:
            self._piece += char
        else:
            self._value += char
        self._follow(char)
        if char in '"}]' and not self._is_string and self._depth == 0:
            self._complete()

    def _follow(self, char: str) -> None:
        """Keep track of strings and brackets."""
        if self._is_string:
            is_end = char == '"' and not self._is_escaped
            self._is_escaped = char == "\\" and not self._is_escaped
            self._is_string = not is_end
        elif char == '"':
            self._is_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1

    def _complete(self) -> None:
        if self._wanted == "in key":
            self._wanted, self._key = "colon", self._text()
            self.is_broken = self.is_broken or self._key in self._keys
            self._keys.add(self._key)
            return
        self._wanted = "comma"
        if self._key == "name":
            self.name = self._text() or None
            self.is_broken = self.name is None
        elif self._key == self._arguments and not self._is_streamed:
            # Some models write the arguments as text that holds JSON.
            self._piece = self._text()
            self.is_ready = self._piece.startswith("{")
            self.is_broken = not self.is_ready

    def _text(self) -> str:
        """What a JSON string says; nothing where it is none."""
        try:
            found = json.loads(self._value, strict=False)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, str):
            self.is_broken = True
            return ""
        return found

    def _end(self) -> None:
        self.is_done = True
        self.is_broken = self.name is None
        if not self.is_ready:
            self.is_ready, self._piece = True, "{}"
