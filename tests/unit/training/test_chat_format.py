"""Headers are read off any template by rendering it."""

import pytest

from outrider.errors import ConfigError
from outrider.testing.tiny import EOS_ID
from outrider.training.chat_format import ChatFormat
from tests.unit.training.conftest import MARKED_TEMPLATE, tokenizer


def test_format_of_a_template_with_marked_turns() -> None:
    """Catches a header without the system's part, or a tail without the assistant's header."""
    form = ChatFormat.of(tokenizer(MARKED_TEMPLATE))
    assert form.header == "<|bos|>user\n"
    assert form.tail == "<|eos|>\n<|bos|>assistant\n"
    assert form.follow_up("more") == "<|eos|>\n<|bos|>user\nmore<|eos|>\n<|bos|>assistant\n"
    assert form.user_stop() == (frozenset({EOS_ID}), ())


def test_format_of_a_plain_template() -> None:
    """Catches the assumption that turns end with a special token."""
    form = ChatFormat.of(tokenizer())
    assert (form.header, form.tail) == ("user: ", "\nassistant: ")
    assert form.follow_up("more") == "\nuser: more\nassistant: "
    assert form.user_stop() == (frozenset(), ("\nassistant:",))


def test_a_default_system_message_belongs_to_the_header() -> None:
    """Catches a search for the user's role instead of the user's words."""
    form = ChatFormat.of(tokenizer("<|bos|>system\nBe kind.<|eos|>\n" + MARKED_TEMPLATE))
    assert form.header == "<|bos|>system\nBe kind.<|eos|>\n<|bos|>user\n"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        (
            "{% for m in messages %}{{ m.content }}\n{% endfor %}",
            r"covers 0 of \d\d tokens \(0 %\)",
        ),
        ("{{ messages[0].content }}{{ messages[0].content }}x", "2 times instead of once"),
        ("{{ messages[0].role }}{% if add_generation_prompt %}!{% endif %}", "0 times"),
    ],
    ids=["none", "no-assistant-header", "twice", "never"],
)
def test_useless_templates_are_refused(template: str | None, said: str) -> None:
    """Catches a loss mask over nothing, or over everything."""
    with pytest.raises(ConfigError, match=said):
        ChatFormat.of(tokenizer(template))
