"""What a caller may pass as a prompt, and what is refused by name."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex

from outrider.errors import RequestRejected

Prompt = str | Sequence[int]
"""Text, or token ids."""


def as_list(prompts: Any) -> list[Prompt]:
    """Tell one prompt from many; token ids may be any integers, numpy's too.

    Raises:
        RequestRejected: Something in it is neither text nor a list of token ids.
    """
    if isinstance(prompts, str):
        return [prompts]
    listed = _elements(prompts)
    if listed and all(_is_token(item) for item in listed):
        return [[index(item) for item in listed]]
    return [item if isinstance(item, str) else _token_ids(item) for item in listed]


def _token_ids(prompt: Any) -> list[int]:
    listed = _elements(prompt)
    for item in listed:
        if not _is_token(item):
            raise RequestRejected(f"a prompt holds {item!r}; give text or a list of token ids")
    return [index(item) for item in listed]


def _elements(prompt: Any) -> list[Any]:
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
        raise RequestRejected(f"the prompt is {prompt!r}; give text or a list of token ids")
    return list(prompt)


def _is_token(item: Any) -> bool:
    return isinstance(item, SupportsIndex) and not isinstance(item, bool)
