"""Bodies as they are checked before anything is done for them."""

from typing import Any

import pytest
from pydantic import ValidationError

from outrider.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Strict,
    TokenizeRequest,
)

MANY = 20_000
FIELDS = {f"x{number}": 1 for number in range(MANY)}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": [1.5] * MANY}),
        (CompletionRequest, {"prompt": [["a"] * MANY]}),
        (CompletionRequest, {"prompt": [["a"]] * MANY}),
        (CompletionRequest, {"prompt": "a", "allowed_token_ids": ["a"] * MANY}),
        (CompletionRequest, {"prompt": "a", "choice": [1] * MANY}),
        (CompletionRequest, {"prompt": "a", "structured_outputs": {"choice": [1] * MANY}}),
        (CompletionRequest, {"prompt": "a", "logit_bias": FIELDS}),
        (CompletionRequest, {"prompt": "a", **FIELDS}),
        (ChatRequest, {"messages": [{}] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", **FIELDS}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
        (ChatRequest, {"messages": [{"role": "user", "tool_calls": [{}] * MANY}]}),
        (ChatRequest, {"messages": [{"role": "user"}], "tools": [{}] * MANY}),
        (DetokenizeRequest, {"tokens": ["a"] * MANY}),
    ],
)
def test_a_million_faults_are_one_sentence(kind: type[Strict], body: dict[str, Any]) -> None:
    """Catches a body of nonsense that keeps the event loop busy for seconds."""
    with pytest.raises(ValidationError) as refused:
        kind.model_validate(body)
    assert refused.value.error_count() < 10


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": ["a"] * MANY}),
        (CompletionRequest, {"prompt": [[1]] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": ""}] * MANY}),
        (TokenizeRequest, {"messages": [{"role": "user", "content": ""}] * MANY}),
        (CompletionRequest, {"prompt": "a", "best_of": 2}),
        (CompletionRequest, {"prompt": "a", "suffix": "b"}),
        (ChatRequest, {"messages": [{"role": "user"}], "modalities": ["audio"]}),
    ],
)
def test_what_cannot_be_done_is_refused(kind: type[Strict], body: dict[str, Any]) -> None:
    """Catches a body of thousands of prompts, and a field whose meaning would be ignored."""
    with pytest.raises(ValidationError):
        kind.model_validate(body)


def test_fields_without_an_effect_are_taken() -> None:
    """What usual clients send besides must not fail them."""
    tokens = [1] * MANY
    completion = {"prompt": tokens, "best_of": 1, "suffix": None}
    assert CompletionRequest.model_validate(completion).prompt == tokens
    chat = {"messages": [{"role": "user", "content": "a"}], "modalities": ["text"]}
    more = {"reasoning_effort": "low", "stream_options": {"include_obfuscation": False}}
    assert len(ChatRequest.model_validate({**chat, **more, "store": True}).messages) == 1
