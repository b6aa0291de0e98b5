"""Tool calls through the official client."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.loopback import MODEL, serving, tiny_llm
from tests.unchecked import unchecked

TEMPLATE = (
    "{% if tools %}{{ tools | length }} tools in <tool_call>\n{% endif %}"
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
)
SAY: Any = [{"role": "user", "content": "hi"}]
UNIT = {"type": "string", "enum": ["c", "f"]}


def tool(name: str) -> Any:
    parameters: dict[str, Any] = {"type": "object", "additionalProperties": False}
    parameters |= {"properties": {"unit": UNIT}, "required": ["unit"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("tools")
    with unchecked():
        tiny_llm(folder)
        path = folder / "model" / "tokenizer_config.json"
        config = json.loads(path.read_text("utf-8")) | {"chat_template": TEMPLATE}
        path.write_text(json.dumps(config), "utf-8")
        with serving(tiny_llm(folder)) as running:
            url = f"{running.url}/v1"
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as one:
                yield one


def ask(client: openai.OpenAI, **options: Any) -> Any:
    given: dict[str, Any] = {"tools": [tool("heat"), tool("rain")], "max_tokens": 300, "seed": 4}
    return client.chat.completions.create(model=MODEL, messages=SAY, **given | options)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"heat", "rain"}),
        ({"type": "function", "function": {"name": "rain"}}, {"rain"}),
    ],
)
def test_a_demanded_call_comes_whole_and_in_pieces(
    client: openai.OpenAI, choice: Any, names: set[str]
) -> None:
    """Catches a call that is text, lacks its end, or differs between stream and whole answer."""
    options = {"tool_choice": choice, "parallel_tool_calls": False}
    answer = ask(client, **options).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    [call] = answer.message.tool_calls
    assert call.function.name in names
    assert json.loads(call.function.arguments)["unit"] in UNIT["enum"]
    name, arguments, reasons = "", "", []
    for chunk in ask(client, stream=True, **options):
        choice_of = chunk.choices[0]
        assert not choice_of.delta.content
        for piece in choice_of.delta.tool_calls or []:
            assert piece.index == 0
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
        reasons.append(choice_of.finish_reason)
    assert (name, arguments) == (call.function.name, call.function.arguments)
    assert reasons[-1] == "tool_calls"


def test_an_answer_without_a_call_is_text(client: openai.OpenAI) -> None:
    """Catches text that a parser swallows, and tools in the prompt where none may be called."""
    auto = ask(client, max_tokens=30).choices[0]
    assert auto.finish_reason in ("length", "stop")
    assert auto.message.content
    assert auto.message.tool_calls is None
    streamed = "".join(
        c.choices[0].delta.content or "" for c in ask(client, stream=True, max_tokens=30)
    )
    assert streamed == auto.message.content
    none = ask(client, tool_choice="none", max_tokens=30)
    plain = client.chat.completions.create(model=MODEL, messages=SAY, max_tokens=30, seed=4)
    assert none.choices[0].message.content == plain.choices[0].message.content
    assert none.usage.prompt_tokens < ask(client, max_tokens=1).usage.prompt_tokens


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "snow"}}}, "snow"),
        ({"tools": [], "tool_choice": "required"}, "needs tools"),
        ({"extra_body": {"return_token_origins": True}}, "return_token_origins"),
        ({"tool_choice": "required", "extra_body": {"regex": "a"}}, "another form"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    client: openai.OpenAI, options: dict[str, Any], word: str
) -> None:
    """Catches a contradiction that is resolved in silence."""
    with pytest.raises(openai.BadRequestError, match=word):
        ask(client, **options)
