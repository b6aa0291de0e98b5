"""Outputs that end in a loop: small models repeat themselves when decoded greedily."""

from collections.abc import Sequence

MAX_PERIOD = 64
MIN_REPEATS = 3
MIN_LOOP_LEN = 24


def loop_start(
    tokens: Sequence[int],
    *,
    max_period: int = MAX_PERIOD,
    min_repeats: int = MIN_REPEATS,
    min_len: int = MIN_LOOP_LEN,
) -> int | None:
    """Where the loop that `tokens` end in begins, its first turn included; None if there is none.

    A loop is a tail of at least `min_len` tokens that repeats a passage of at most `max_period`
    tokens `min_repeats` times or more; the last turn may be cut anywhere.
    """
    earliest: int | None = None
    for period in range(1, min(max_period, len(tokens) // min_repeats) + 1):
        start = len(tokens) - period
        while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
            start -= 1
        length = len(tokens) - start
        if length >= max(min_len, min_repeats * period):
            earliest = start if earliest is None else min(earliest, start)
    return earliest
