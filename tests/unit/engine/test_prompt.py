"""Prompts of every shape: one, many, or refused by name."""

from typing import Any

import numpy as np
import pytest

from outrider.engine.prompt import as_list
from outrider.errors import RequestRejected


@pytest.mark.parametrize(
    ("prompts", "listed"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        (np.array([1, 2]), [[1, 2]]),
        (["a", [1]], ["a", [1]]),
        ([np.array([3]), "b"], [[3], "b"]),
        ([], []),
        ([[]], [[]]),
    ],
)
def test_one_or_many(prompts: Any, listed: list[Any]) -> None:
    """Catches numpy ids that stay numpy, and one list of ids taken for many prompts."""
    assert as_list(prompts) == listed


@pytest.mark.parametrize(
    "prompts",
    [5, None, b"abc", {"prompt": "a"}, ["a", 3], [3, "a"], [[5], 7], [True], [[1.5]], [None]],
)
def test_what_is_no_prompt_is_refused(prompts: Any) -> None:
    """Catches a prompt that is dropped, or a mapping whose keys are read as prompts."""
    with pytest.raises(RequestRejected, match="text or a list of token ids"):
        as_list(prompts)
