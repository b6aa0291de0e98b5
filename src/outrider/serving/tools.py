"""Tool calls in the form a chat template asks for: found in the text, and asked for by a grammar.

Two forms are known. *Tagged* (Hermes, Qwen, SmolLM2): `<tool_call>` around a JSON object or a list
of them, with `name` and `arguments`. *Bare* (Llama 3): the answer is the object, with `parameters`.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from outrider.core.request import StructuredOutputsParams
from outrider.engine.grammar import JSON_SPACE
from outrider.errors import RequestRejected
from outrider.serving.call_reader import CallReader

Tool = Mapping[str, Any]
"""As in OpenAI's requests: `{"type": "function", "function": {"name": …, "parameters": …}}`."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a template wants calls written; `opening` and `closing` are empty where bare."""

    opening: str
    closing: str
    arguments: str


TAGGED: Final = ToolFormat("<tool_call>", "</tool_call>", "arguments")
BARE: Final = ToolFormat("", "", "parameters")
NO_FORMAT: Final = (
    "the model's chat template has no form for tools that is known here; leave tools out"
)


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a call: id and name come with its first piece, `arguments` add up to JSON."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """What a piece of text brought."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()


def tool_format(chat_template: str | None) -> ToolFormat | None:
    """Find how a template wants calls written; None if it has no tools, or in an unknown form."""
    if chat_template is None or not re.search(r"\btools\b", chat_template):
        return None
    if TAGGED.opening in chat_template and "<function=" not in chat_template:
        return TAGGED
    if re.search(r"\{\\?\"name\\?\": function name, \\?\"parameters\\?\":", chat_template):
        return BARE
    return None


def tool_parser(chat_template: str | None, tools: Sequence[Tool]) -> "ToolParser | None":
    """Make a parser for one answer; None where the template has no known form for tools."""
    known = tool_format(chat_template)
    return None if known is None else ToolParser(known, [_function(t)["name"] for t in tools])


def tool_form(
    chat_template: str | None,
    tools: Sequence[Tool],
    name: str | None = None,
    *,
    is_parallel: bool = True,
) -> StructuredOutputsParams:
    """Give the form of an answer that calls a tool: any of them, or the one called `name`.

    Raises:
        RequestRejected: The template has no form for tools, or there is no such tool.
    """
    known = tool_format(chat_template)
    if known is None:
        raise RequestRejected(NO_FORMAT)
    functions = [_function(tool) for tool in tools]
    chosen = [each for each in functions if name in (None, each["name"])]
    if not chosen:
        names = ", ".join(repr(each["name"]) for each in functions) or "none"
        raise RequestRejected(f"tool_choice names {name!r}, but the tools are {names}")
    is_parallel = is_parallel and known is TAGGED
    rules = [f"start: call{' (SPACE call)*' if is_parallel else ''}", "SPACE: /\\n{1,2}/"]
    rules.append("call: " + " | ".join(f"call{i}" for i in range(len(chosen))))
    for i, function in enumerate(chosen):
        opening = f"{known.opening}\n" if known.opening else ""
        closing = f"\n{known.closing}" if known.closing else ""
        head = f'{opening}{{"name": {_json(function["name"])}, "{known.arguments}": '
        rules.append(f"call{i}: {_json(head)} arguments{i} {_json('}' + closing)}")
        rules.append(f"arguments{i}: %json {_json(_bounded(function.get('parameters')))}")
    return StructuredOutputsParams(grammar="\n".join(rules) + "\n")


def messages_for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give the arguments of earlier calls as objects: clients send text, templates write JSON."""
    return [
        {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


class ToolParser:
    """Splits the text of one answer into content and calls, whatever the pieces it comes in.

    Text outside of calls passes unchanged; white space alone before, between or behind calls is
    layout and is dropped. What looks like a call and is none, or calls something that was not
    offered, is text.
    """

    def __init__(
        self,
        known: ToolFormat,
        names: Sequence[str],
        new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}",
    ) -> None:
        """Expect calls of functions called `names`."""
        self._format = known
        self._names = frozenset(names)
        self._new_id = new_id
        self._content: list[str] = []
        self._calls: list[CallDelta] = []
        self._num_calls = 0
        # Text that may become a call: `_held` before its opening is whole, `_raw` from there on.
        self._held, self._raw = "", ""
        self._is_inside = self._has_called = False
        self._may_be_layout = True
        self._reader: CallReader | None = None
        self._is_open = False

    @property
    def num_calls(self) -> int:
        """How many calls were found so far."""
        return self._num_calls

    def push(self, text: str) -> ToolDelta:
        """Take a piece of the answer and give what it settles."""
        for char in text:
            self._take(char)
        return self._delta()

    def finish(self) -> ToolDelta:
        """Give all that was held back: what has not become a call is text."""
        # Behind a call in its tags there can only be layout and a part of the closing tag.
        while self._is_inside and not self._is_open and (self._reader or not self._has_called):
            self._give_up()
        if not self._is_inside and not (self._num_calls and self._held.isspace()):
            self._content.append(self._held)
        self._held = ""
        return self._delta()

    def _delta(self) -> ToolDelta:
        calls: list[CallDelta] = []
        for each in self._calls:
            if calls and calls[-1].index == each.index:
                before = calls.pop()
                each = CallDelta(
                    each.index, before.id, before.name, before.arguments + each.arguments
                )
            calls.append(each)
        delta = ToolDelta("".join(self._content), tuple(calls))
        self._content, self._calls = [], []
        return delta

    def _take(self, char: str) -> None:
        if not self._is_inside:
            self._outside(char)
        elif self._reader is not None:
            self._in_call(self._reader, char)
        else:
            self._between(char)

    def _outside(self, char: str) -> None:
        self._held += char
        rest = self._held.lstrip() if self._may_be_layout else self._held
        opening = self._format.opening or "{"
        if not self._format.opening and not self._may_be_layout:
            self._content.append(self._held)  # Bare calls are all there is, or nothing.
            self._held = ""
        elif rest == opening:
            self._is_inside, self._raw, self._held = True, self._held, ""
            if not self._format.opening:
                self._between(char)
        elif not opening.startswith(rest):
            self._may_be_layout = False
            kept = _longest_end(self._held, opening) if self._format.opening else 0
            self._content.append(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]

    def _between(self, char: str) -> None:
        """Inside the tags and outside of an object."""
        closing = self._format.closing
        if self._format.opening:
            self._raw += char
        self._held = (self._held + char).lstrip()
        if char == "{" and self._held == "{":
            self._held = ""
            self._reader = CallReader(self._format.arguments)
            self._reader.take(char)
        elif closing and self._held == closing:
            self._close()
        elif self._held and not (closing.startswith(self._held) or self._held in "[],"):
            self._give_up()
        elif self._held in ("[", "]", ","):
            self._held = ""

    def _in_call(self, reader: CallReader, char: str) -> None:
        self._raw += char
        reader.take(char)
        if not self._is_open and reader.name is not None and reader.is_ready:
            if reader.name not in self._names:
                return self._give_up()
            self._is_open = True
            self._calls.append(CallDelta(self._num_calls, self._new_id(), reader.name))
            self._num_calls += 1
        if self._is_open and (piece := reader.pop()):
            self._calls.append(CallDelta(self._num_calls - 1, arguments=piece))
        if reader.is_broken and not self._is_open:
            return self._give_up()
        if reader.is_broken or reader.is_done:
            self._reader, self._is_open, self._has_called, self._raw = None, False, True, ""
            if not self._format.closing:
                self._leave(is_call=True)
        if reader.is_broken:
            self._take(char)  # The call was told already; what does not belong to it is text.
        return None

    def _close(self) -> None:
        """The closing tag: a call that was none at all is text."""
        if not self._has_called:
            return self._give_up()
        self._leave(is_call=True)
        return None

    def _give_up(self) -> None:
        """Treat what was held for a call as text, and look for a call inside it."""
        raw = self._raw
        self._leave(is_call=False)
        self._content.append(raw[:1])
        self._may_be_layout = False
        for char in raw[1:]:
            self._take(char)

    def _leave(self, *, is_call: bool) -> None:
        self._is_inside, self._reader, self._is_open = False, None, False
        self._has_called = False
        self._raw, self._held = "", ""
        self._may_be_layout = is_call


def _longest_end(text: str, beginning: str) -> int:
    """Length of the longest end of `text` that begins `beginning`."""
    longest = min(len(text), len(beginning) - 1)
    return next(n for n in range(longest, -1, -1) if beginning.startswith(text[len(text) - n :]))


def _function(tool: Tool) -> Mapping[str, Any]:
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestRejected(f"a tool is {tool!r:.80}, but it must be a function with a name")
    return function


def _bounded(parameters: object) -> dict[str, Any]:
    """A schema for arguments; white space in it has a bound, as in `engine.grammar`."""
    schema = dict(parameters) if isinstance(parameters, Mapping) else {}
    return {"type": "object", **schema, "x-guidance": {"whitespace_pattern": JSON_SPACE}}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            function["arguments"] = arguments
    return {**call, "function": function}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
