"""Tool calls: how they are found in an answer's text and asked for by a grammar."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import RequestRejected
from outrider.serving.tools import (
    BARE,
    TAGGED,
    CallDelta,
    ToolFormat,
    ToolParser,
    messages_for_template,
    tool_form,
    tool_format,
    tool_parser,
)
from tests import harness
from tests.unchecked import unchecked

QWEN = (
    "{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools> within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>{% endif %}"
)
LLAMA = (
    "{%- if tools is not none %}Respond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.{% endif %}'
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/city"}},
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {"city": {"enum": ["Oslo", "Rom"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
NAMES = ["weather", "now"]

# Answer, its content, its calls; the tagged form unless it says otherwise.
CASES: dict[str, tuple[ToolFormat, str, str, list[tuple[str, str]]]] = {
    "text alone": (TAGGED, "Hi <b>there</b> {} ", "Hi <b>there</b> {} ", []),
    "one call": (
        TAGGED,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        "",
        [("weather", '{"city": "Oslo"}')],
    ),
    "two calls, layout around them": (
        TAGGED,
        '\n<tool_call>{"name": "now"}</tool_call>\n<tool_call>\n{"name": "weather", '
        '"arguments": {}}</tool_call>\n',
        "",
        [("now", "{}"), ("weather", "{}")],
    ),
    "text around a call": (
        TAGGED,
        'I look.\n\n<tool_call>{"name":"now","arguments":{}}</tool_call>\n And done.\n',
        "I look.\n\n\n And done.\n",
        [("now", "{}")],
    ),
    "a list in the tags": (
        TAGGED,
        '<tool_call>[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {"a": 1}}]'
        "</tool_call>",
        "",
        [("now", "{}"), ("now", '{"a": 1}')],
    ),
    "arguments first": (
        TAGGED,
        '<tool_call>{"arguments": {"a": [1, {"b": "}"}]}, "name": "now"}</tool_call>',
        "",
        [("now", '{"a": [1, {"b": "}"}]}')],
    ),
    "arguments as text": (
        TAGGED,
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("now", '{"a": 1}')],
    ),
    "tags and quotes inside of strings": (
        TAGGED,
        '<tool_call>{"name": "now", "arguments": {"t": "</tool_call>\\"{\\\\"}}</tool_call>',
        "",
        [("now", '{"t": "</tool_call>\\"{\\\\"}')],
    ),
    "other keys": (
        TAGGED,
        '<tool_call>{"id": 3, "ok": [true, "}"], "name": "now", "arguments": {}}</tool_call>',
        "",
        [("now", "{}")],
    ),
    "unicode": (
        TAGGED,
        'é😀<tool_call>{"name": "now", "arguments": {"t": "日本😀"}}</tool_call>',
        "é😀",
        [("now", '{"t": "日本😀"}')],
    ),
    "not offered": (
        TAGGED,
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        [],
    ),
    "no JSON": (TAGGED, "a<tool_call>now()</tool_call>", "a<tool_call>now()</tool_call>", []),
    "empty tags": (TAGGED, "<tool_call>\n</tool_call>", "<tool_call>\n</tool_call>", []),
    "empty tags behind white space": (
        TAGGED,
        " <tool_call></tool_call>",
        " <tool_call></tool_call>",
        [],
    ),
    "an end that does not belong": (
        TAGGED,
        '<tool_call>{"name": "now", "arguments": {"a": 1}, oops}</tool_call> so',
        "oops}</tool_call> so",
        [("now", '{"a": 1}')],
    ),
    "open tags behind a call": (TAGGED, '<tool_call>{"name": "now"}\n</tool_', "", [("now", "{}")]),
    "words behind a call in the tags": (
        TAGGED,
        '<tool_call>{"name": "now"} and</tool_call>',
        " and</tool_call>",
        [("now", "{}")],
    ),
    "no name": (
        TAGGED,
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        [],
    ),
    "a call behind a broken one": (
        TAGGED,
        '<tool_call>{"name": <tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": ',
        [("now", "{}")],
    ),
    "cut in the tag": (TAGGED, "so <tool_", "so <tool_", []),
    "cut in the name": (TAGGED, '<tool_call>{"name": "no', '<tool_call>{"name": "no', []),
    "cut in the arguments": (
        TAGGED,
        '<tool_call>{"name": "now", "arguments": {"a": "b',
        "",
        [("now", '{"a": "b')],
    ),
    "tags overlap": (TAGGED, "<<tool_<tool_call", "<<tool_<tool_call", []),
    "bare": (
        BARE,
        '{"name": "weather", "parameters": {"city": "Oslo"}}',
        "",
        [("weather", '{"city": "Oslo"}')],
    ),
    "bare text": (BARE, 'Say {"name": "now"}', 'Say {"name": "now"}', []),
    "bare JSON that calls nothing": (
        BARE,
        ' {"a": {"name": "now"}}',
        ' {"a": {"name": "now"}}',
        [],
    ),
    "white space alone": (TAGGED, " \n", " \n", []),
    "nothing": (TAGGED, "", "", []),
}


def parsed(known: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, put together as a client of a stream would."""
    ids = iter(range(100))
    parser = ToolParser(known, NAMES, lambda: f"id{next(ids)}")
    content, calls = "", dict[int, tuple[str, str]]()
    for delta in [*map(parser.push, pieces), parser.finish()]:
        content += delta.content
        for each in delta.calls:
            if each.name is not None:
                assert each.id == f"id{each.index}"
                assert each.index == len(calls)
                calls[each.index] = (each.name, "")
            name, arguments = calls[each.index]
            calls[each.index] = (name, arguments + each.arguments)
    assert parser.num_calls == len(calls)
    return content, list(calls.values())


@pytest.mark.parametrize("name", CASES)
@unchecked()
def test_an_answer_is_split_into_content_and_calls(name: str) -> None:
    """Catches text that is lost or doubled, and calls that are overlooked or made up."""
    known, text, content, calls = CASES[name]
    assert parsed(known, [text]) == (content, calls)


@given(name=st.sampled_from(sorted(CASES)), cuts=st.lists(st.integers(0, 120), max_size=8))
@unchecked()
def test_the_pieces_do_not_matter(name: str, cuts: list[int]) -> None:
    """Catches a tag, an escape or a bracket that is missed where a piece ends."""
    known, text, content, calls = CASES[name]
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert parsed(known, pieces) == (content, calls)
    assert parsed(known, list(text)) == (content, calls)


@given(
    parts=st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "{", "}", '"name"', ":", '"now"', "<", " ", "\n", "a"]
        )
    )
)
@unchecked()
def test_without_a_call_nothing_changes(parts: list[str]) -> None:
    """Catches text that looks like a call for a while and is not given back whole."""
    text = "".join(parts)
    content, calls = parsed(TAGGED, parts)
    if not calls:
        assert content == text
    assert len(calls) <= text.count('{"name":"now"')


def test_arguments_come_as_they_are_written() -> None:
    """Catches arguments that are held back until the call is complete."""
    parser = ToolParser(TAGGED, NAMES, lambda: "id")
    assert parser.push('<tool_call>{"name": "now", ').calls == ()
    opened = parser.push('"arguments": {"a"').calls
    assert opened == (CallDelta(0, "id", "now", '{"a"'),)
    assert parser.push(": 1").calls == (CallDelta(0, None, None, ": 1"),)
    assert parser.push("}}").calls == (CallDelta(0, None, None, "}"),)


def test_the_form_of_a_template_is_found() -> None:
    """Catches a template without tools whose answers are searched for calls."""
    assert tool_format(QWEN) is TAGGED
    assert tool_format(LLAMA) is BARE
    assert tool_format(None) is None
    assert tool_format("{{ messages[0].content }} <tool_call>") is None
    assert tool_format("{% if tools %}{{ tools }}{% endif %}") is None
    assert tool_format("{% if tools %}<tool_call><function=f><parameter=a>{% endif %}") is None
    assert tool_parser(QWEN, TOOLS) is not None
    assert tool_parser(None, TOOLS) is None


def takes(form: Any, text: str) -> bool:
    harness.require_module("llguidance")
    from tests.unit.engine.test_grammar import takes as form_takes

    return form_takes(form, text)


OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_a_required_call_has_the_form_of_the_template() -> None:
    """Catches a grammar that lets text through, or arguments that break their schema."""
    form = tool_form(QWEN, TOOLS)
    for text in (OSLO, NOW, f"{OSLO}\n{NOW}"):
        assert takes(form, text)
        assert parsed(TAGGED, [text])[0] == ""
    for text in ("", "Hi", OSLO.replace("Oslo", "Bonn"), OSLO + " ", NOW.replace("now", "later")):
        assert not takes(form, text)
    alone = tool_form(QWEN, TOOLS, is_parallel=False)
    assert takes(alone, OSLO)
    assert not takes(alone, f"{OSLO}\n{NOW}")


def test_a_named_call_is_that_call() -> None:
    """Catches a choice of a function that leaves the others open."""
    form = tool_form(QWEN, TOOLS, "now")
    assert takes(form, NOW)
    assert not takes(form, OSLO)
    with pytest.raises(RequestRejected, match=r"'later'.*'weather'"):
        tool_form(QWEN, TOOLS, "later")


def test_a_bare_call_is_one() -> None:
    """Catches tags where the template wants none."""
    text = '{"name": "weather", "parameters": {"city": "Rom"}}'
    assert takes(tool_form(LLAMA, TOOLS), text)
    assert parsed(BARE, [text])[1] == [("weather", '{"city": "Rom"}')]


def test_templates_and_tools_that_do_not_fit_are_refused() -> None:
    """Catches a tool that the model never hears of."""
    with pytest.raises(RequestRejected, match="chat template"):
        tool_form("{{ messages }}", TOOLS)
    tools: list[dict[str, Any]] = [{}, {"function": {}}, {"function": {"name": 3}}]
    for broken in tools:
        with pytest.raises(RequestRejected, match="function with a name"):
            tool_form(QWEN, [broken])


@unchecked()
def test_earlier_calls_reach_the_template_as_objects() -> None:
    """Catches arguments that are quoted twice in the prompt."""
    call: dict[str, Any] = {"id": "x", "function": {"name": "now", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "hi"},
    ]
    changed = messages_for_template(messages)
    assert changed[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert changed[1] == messages[1]
    assert json.loads(call["function"]["arguments"]) == {"a": 1}, "the client's message changed"
    broken = {"tool_calls": [{"function": {"name": "now", "arguments": "{"}}]}
    assert messages_for_template([broken])[0]["tool_calls"][0]["function"]["arguments"] == "{"
