"""Which draft tokens of a step are worth verifying: the search behind the throughput policy.

Let a row's survival be its running product of confidences, B the rows of the window and τ the
tokens the step is expected to emit. Verifying the k likeliest draft tokens of all rows gives
τ = judged rows + their survival, and since survival never grows along a row, those k are a prefix
of each. Θ = τ / seconds(B) is the expected throughput (DSpark, arXiv 2607.05147, Algorithm 1).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import add, neg, truediv

Survival = Sequence[float]
"""Chance, per draft position, that every draft up to it is accepted; its length is the draft's."""


def likeliest(survival: Sequence[Survival]) -> list[float]:
    """Give all survival above 0, falling."""
    # Negated, a row ascends, and sorting rows that ascend is a merge.
    flat = sorted(map(neg, chain.from_iterable(survival)))
    return [-value for value in flat[: bisect_left(flat, 0.0)]]


def expected_throughput(
    falling: Sequence[float], tokens: float, seconds: Sequence[float]
) -> list[float]:
    """Θ of verifying the first 0, 1, 2, … of `falling`, beside `tokens` that come without.

    `seconds[k]` is what a step takes that verifies k.
    """
    return list(map(truediv, accumulate(falling, add, initial=tokens), seconds))


def first_descent(throughput: Sequence[float]) -> int:
    """Count draft tokens up to where one more does not pay: Algorithm 1 with its break.

    Whether a token is admitted depends on what was popped before it and on its own survival, never
    on what comes behind it.
    """
    for count in range(1, len(throughput)):
        if throughput[count] <= throughput[count - 1]:
            return count - 1
    return len(throughput) - 1


def highest(throughput: Sequence[float]) -> int:
    """Count draft tokens at the best point of the whole curve, the fewest of equals."""
    return throughput.index(max(throughput))


def lengths_of(survival: Sequence[Survival], falling: Sequence[float], count: int) -> list[int]:
    """Give each row its part of the `count` likeliest draft tokens.

    Of equals, the shorter prefix comes first, then the earlier row; token ids never matter.
    """
    if count == 0:
        return [0] * len(survival)
    least = falling[count - 1]
    # Negated, a row ascends: the place of `least` is how many of the row are likelier.
    lengths = [bisect_left(values, -least, key=neg) for values in survival]
    missing = count - sum(lengths)
    ties = [
        (position, row)
        for row, start in enumerate(lengths)
        for position in range(start, bisect_right(survival[row], -least, start, key=neg))
    ]
    for _, row in sorted(ties)[:missing]:
        lengths[row] += 1
    return lengths
