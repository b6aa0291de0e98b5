"""Cutting the loop that a small model's answer may end in."""

from collections.abc import Sequence

from outrider.core.loops import loop_start

KEPT_TURNS = 2


def length_without_loop(tokens: Sequence[int]) -> int:
    """How many tokens to keep: all, or up to the second turn of the loop that they end in."""
    start = loop_start(tokens)
    if start is None:
        return len(tokens)
    period = 1
    while any(a != b for a, b in zip(tokens[start:], tokens[start + period :], strict=False)):
        period += 1
    return min(len(tokens), start + KEPT_TURNS * period)
