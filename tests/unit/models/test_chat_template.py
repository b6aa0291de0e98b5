"""The Jinja dialect of chat templates."""

from typing import Any, Final

import pytest

from outrider.errors import RequestRejected, UnsupportedModel
from outrider.models.chat_template import ChatTemplate

HELLO: Final = [{"role": "user", "content": "<b>é"}]


def render(source: str, **extra: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO, **extra)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s><b>é"),
        ("{% if add_generation_prompt %}\nyes\n{% endif %}\n", "yes\n"),
        ("    {% if true %}x{% endif %}", "x"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<b>é"}]'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", '{\n "b": 1,\n "a": 2\n}'),
        ("{% if not tools %}none{% endif %}", "none"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_dialect(source: str, expected: str) -> None:
    """Catches white space, JSON or a helper that differs from what models were trained on."""
    assert render(source) == expected


def test_extra_values_reach_the_template() -> None:
    """Catches `enable_thinking` and `tools` being swallowed."""
    assert (
        render("{{ enable_thinking }}{{ tools[0] }}", enable_thinking=False, tools=["t"])
        == "Falset"
    )
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ missing.attribute }}",
        "{{ 'x' | tojson(nonsense=1) }}",
        "{{ messages[7]['role'] }}",
        "{{ 1 / (messages | length - 1) }}",
        "{{ [][0] }}{{ 10 ** 400 * 1.0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_template_errors_are_the_requests(source: str) -> None:
    """Catches one request's messages bringing the engine down."""
    with pytest.raises(RequestRejected, match="chat template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_sandbox_holds(source: str) -> None:
    """Catches a template from a stranger reaching Python objects or changing the messages."""
    with pytest.raises(RequestRejected):
        render(source)
    assert len(HELLO) == 1


def test_invalid_template_is_unsupported() -> None:
    """Catches a syntax error surfacing in the middle of a request."""
    with pytest.raises(UnsupportedModel, match="line 2"):
        ChatTemplate("a\n{% if %}", {})


def test_a_template_too_deep_to_compile_is_unsupported() -> None:
    """Catches a recursion limit reported as a fault of this program."""
    with pytest.raises(UnsupportedModel, match="does not compile"):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", {})
