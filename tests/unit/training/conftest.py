"""A tiny chat model, and what the tests of training data share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.llm import LLM
from outrider.models.tokenizer import Tokenizer
from outrider.testing.tiny import (
    BOS,
    CHAT_TEMPLATE,
    EOS,
    byte_tokenizer,
    tiny_spec,
    write_tiny_checkpoint,
)
from tests.native.machines import require_native

LoadLLM = Callable[..., LLM]

MARKED_TEMPLATE = (
    "{% for message in messages %}<|bos|>{{ message.role }}\n{{ message.content }}<|eos|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|bos|>assistant\n{% endif %}"
)
"""Turns between special tokens, as most models have them; the end of a turn is a stop token."""


def tokenizer(template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    return Tokenizer(
        byte_tokenizer(258),
        special_tokens={"bos_token": BOS, "eos_token": EOS},
        chat_template=template,
    )


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("training") / "model"
    return write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=5)


@pytest.fixture
def native(tiny_chat_model: Path) -> LoadLLM:
    """Load the tiny model natively, where every batch gives the same bits."""
    require_native()

    def load(**options: Any) -> LLM:
        return LLM(str(tiny_chat_model), backend="native", threads=1, **options)

    return load
