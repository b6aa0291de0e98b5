"""Exact laws by enumeration: what a target says, what one window emits, what rounds add up to.

Distributions are tables from a prefix to a list of probabilities; a law maps token runs to their
probability. Everything is a closed formula over the package's own accept functions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeVar

import torch

from outrider.verify.accept import acceptance_prob, residual

Run = tuple[int, ...]
Law = dict[Run, float]
Key = TypeVar("Key")
Rows = Callable[[Run], Sequence[float]]
"""From the tokens so far to the probabilities of the next one."""


def probabilities_of(logprobs: Callable[[Run], torch.Tensor]) -> Rows:
    """Read a table of log-probabilities as a table of probabilities."""
    return lambda prefix: logprobs(prefix).exp().tolist()


def add(law: Law, run: Run, mass: float) -> None:
    """Put mass on a run."""
    law[run] = law.get(run, 0.0) + mass


def chain_law(target: Rows, prefix: Run, length: int) -> Law:
    """Law of the target's next `length` tokens."""
    law: Law = {(): 1.0}
    for _ in range(length):
        grown: Law = {}
        for run, mass in law.items():
            for token, chance in enumerate(target((*prefix, *run))):
                add(grown, (*run, token), mass * chance)
        law = grown
    return law


@dataclass(frozen=True)
class AcceptRule:
    """The two formulas of rejection; a test that wants to be sure it can fail swaps one of them."""

    chance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = acceptance_prob
    recovered: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = residual


LOSSLESS = AcceptRule()


def window_law(
    target: Rows, draft: Rows, prefix: Run, drafts: Run, rule: AcceptRule = LOSSLESS
) -> Law:
    """Law of what one window emits when it verifies `drafts`, drawn from `draft`."""
    law: Law = {}
    reach = 1.0
    for slot, token in enumerate(drafts):
        past = (*prefix, *drafts[:slot])
        own = torch.tensor(target(past), dtype=torch.float64)
        proposed = torch.tensor(draft(past), dtype=torch.float64)
        chance = float(rule.chance(own, proposed)[token])
        for other, mass in enumerate(rule.recovered(own, proposed).tolist()):
            add(law, (*drafts[:slot], other), reach * (1 - chance) * mass)
        reach *= chance
    for bonus, mass in enumerate(target((*prefix, *drafts))):
        add(law, (*drafts, bonus), reach * mass)
    return law


def completed(law: Law, target: Rows, prefix: Run, length: int) -> Law:
    """Let the target alone continue every run to `length` tokens; longer runs are cut."""
    whole: Law = {}
    for run, mass in law.items():
        for rest, chance in chain_law(target, (*prefix, *run), length - len(run)).items():
            add(whole, (*run, *rest)[:length], mass * chance)
    return whole


def decoding_law(
    target: Rows,
    draft: Rows,
    prefix: Run,
    length: int,
    draft_len: int,
    rule: AcceptRule = LOSSLESS,
) -> Law:
    """Law of `length` tokens decoded round by round with drafts of `draft_len` tokens."""
    if length <= 0:
        return {(): 1.0}
    whole: Law = {}
    # A round delivers one token more than it accepts, so it drafts one fewer than are wanted.
    drafted = min(draft_len, length - 1)
    for drafts, drawn in chain_law(draft, prefix, drafted).items():
        for run, mass in window_law(target, draft, prefix, drafts, rule).items():
            rest_law = decoding_law(
                target, draft, (*prefix, *run), length - len(run), draft_len, rule
            )
            for rest, chance in rest_law.items():
                add(whole, (*run, *rest), drawn * mass * chance)
    return whole


def joint(laws: Iterable[Law]) -> dict[tuple[Run, ...], float]:
    """Law of several independent runs together."""
    whole: dict[tuple[Run, ...], float] = {}
    for items in product(*(law.items() for law in laws)):
        mass = 1.0
        for _, chance in items:
            mass *= chance
        key = tuple(run for run, _ in items)
        whole[key] = whole.get(key, 0.0) + mass
    return whole


def distance(one: Mapping[Key, float], other: Mapping[Key, float]) -> float:
    """Largest difference between two laws."""
    keys = one.keys() | other.keys()
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in keys)


def threshold(holds: Callable[[float], bool]) -> float:
    """Where on [0, 1] a predicate that holds below some number stops to hold."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(52):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def masses(token_at: Callable[[float], int]) -> dict[int, float]:
    """How much of [0, 1) each token gets from a function that rises in steps."""
    found: dict[int, float] = {}
    borders = [0.0]
    while borders[-1] < 1.0 - 2**-50:
        start = borders[-1]
        token = token_at(start + 2**-52)
        end = threshold(lambda x, s=start, t=token: x <= s or token_at(x) == t)  # type: ignore[misc]
        found[token] = found.get(token, 0.0) + end - start
        borders.append(end)
    assert all(a < b for a, b in pairwise(borders))
    return found
