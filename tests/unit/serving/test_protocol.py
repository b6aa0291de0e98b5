"""Bodies as they are checked before anything is done for them."""

from typing import Any

import pytest
from pydantic import ValidationError

from outrider.serving.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, Strict

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
