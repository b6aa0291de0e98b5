"""The decoding loops that llama.cpp is measured with: plain, draft model, n-grams. Greedy.

They are llama.cpp's own ways of speculating, around any `Model`, so that they can be tested without
llama.cpp: a round drafts tokens, computes the last token and the drafts in one forward with logits
for every row, keeps the drafts that are the target's own arg-max, and rolls the cache back. Plain
decoding is the round without drafts.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

# Of the tokens seen after an n-gram of 1, 2, 3 and 4 tokens: how many there must be, and what
# percentage must be the same token, before llama.cpp's lookup drafts it.
LEAST_SEEN = (2, 2, 1, 1)
LEAST_PERCENT = (66, 50, 50, 50)


class Model(Protocol):
    """A model with one sequence in its KV cache."""

    def forward(self, tokens: Sequence[int], start: int, judged: int) -> list[int]:
        """Compute tokens at positions from `start`; the arg-max of the last `judged` rows."""
        ...

    def top_probability(self) -> float:
        """Probability of the arg-max of the last row computed."""
        ...

    def forget(self, start: int) -> None:
        """Drop positions from `start` from the cache."""
        ...


class Drafter(Protocol):
    """Guesses what follows."""

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """Give at most `most` tokens to follow `tokens`, which are the prompt and all output."""
        ...


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Give how many leading tokens two outputs share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class NoDrafts:
    """Plain decoding."""

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """Give none."""
        del tokens, most
        return []


@dataclass(slots=True)
class DraftModel:
    """A small model of the same vocabulary, decoding greedily in a cache of its own.

    A draft ends before the first token whose probability is below `least`.
    """

    model: Model
    length: int
    least: float
    _cached: list[int] = field(default_factory=list)

    def read(self, tokens: Sequence[int]) -> None:
        """Put a prompt into the cache."""
        self.model.forget(0)
        self.model.forward(tokens, 0, 1)
        self._cached = list(tokens)

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """Go on greedily; what the target added or refused last time is put right first."""
        kept = min(common_length(self._cached, tokens), len(tokens) - 1)
        self.model.forget(kept)
        del self._cached[kept:]
        pending, found = list(tokens[kept:]), list[int]()
        while len(found) < min(self.length, most):
            best = self.model.forward(pending, len(self._cached), 1)[0]
            self._cached += pending
            if self.least and self.model.top_probability() < self.least:
                break
            found.append(best)
            pending = [best]
        return found


@dataclass(frozen=True, slots=True)
class NgramSimple:
    """What followed the last `size` tokens when they last stood there; at least `size` tokens."""

    size: int
    length: int

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """Search backwards."""
        last = tokens[-self.size :]
        for start in range(len(tokens) - self.size - 1, 0, -1):
            if tokens[start : start + self.size] == last:
                found = tokens[start + self.size : start + self.size + self.length]
                return list(found[:most]) if len(found) >= self.size else []
        return []


@dataclass(slots=True)
class NgramCache:
    """llama.cpp's lookup, over the request's own tokens: counts of what followed 1 to 4 tokens."""

    length: int
    _seen: dict[tuple[int, ...], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _num_seen: int = 0

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """Follow the counts, those of the longest n-gram that is sure enough first."""
        for end in range(self._num_seen, len(tokens)):
            for size in range(1, min(len(LEAST_SEEN), end) + 1):
                self._seen[tuple(tokens[end - size : end])][tokens[end]] += 1
        self._num_seen = len(tokens)
        found = list[int]()
        while len(found) < min(self.length, most):
            token = self._next([*tokens[-len(LEAST_SEEN) :], *found])
            if token is None:
                break
            found.append(token)
        return found

    def _next(self, tokens: list[int]) -> int | None:
        for size in range(min(len(LEAST_SEEN), len(tokens)), 0, -1):
            counts = self._seen.get(tuple(tokens[-size:]))
            if counts is None:
                continue
            (token, count), total = counts.most_common(1)[0], counts.total()
            is_sure = 100 * count >= LEAST_PERCENT[size - 1] * total
            if total >= LEAST_SEEN[size - 1] and is_sure:
                return token
        return None


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a loop made of a prompt. `seconds` are those after the first token."""

    tokens: list[int]
    seconds: float
    rounds: int
    drafted: int
    accepted: int


def decode(
    model: Model,
    drafter: Drafter,
    prompt: Sequence[int],
    first: int,
    stops: AbstractSet[int],
    max_tokens: int,
) -> Decoded:
    """Go on behind a prompt that is in the cache and its first token, to a stop or the limit.

    The stop token is part of the output. The cache holds the prompt alone again afterwards.
    """
    begun = time.perf_counter()
    tokens = [*prompt, first]
    end = len(prompt) + max_tokens
    rounds = drafted = accepted = 0
    while tokens[-1] not in stops and len(tokens) < end:
        draft = drafter.draft(tokens, end - len(tokens) - 1)
        best = model.forward([tokens[-1], *draft], len(tokens) - 1, len(draft) + 1)
        kept = common_length(draft, best)
        rounds, drafted, accepted = rounds + 1, drafted + len(draft), accepted + kept
        for token in best[: kept + 1]:
            tokens.append(token)
            if token in stops:
                break
        model.forget(len(tokens) - 1)
    seconds = time.perf_counter() - begun
    model.forget(len(prompt))
    return Decoded(tokens[len(prompt) :], seconds, rounds, drafted, accepted)
