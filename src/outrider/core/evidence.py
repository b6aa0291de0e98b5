"""What is known of a draft token besides its confidence, as names that a calibration knows.

Some of it concerns the row: the texture of the text and how old the answer is, since a young one
has little to copy from but its prompt. The rest concerns the token's place in the draft: the source
of the token before it (a source that takes over does so where it promises most, and keeps less of
it), how sure that token was, and its kind. Everything was known before the token itself.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from outrider.core.reading import Reading

ALWAYS: Final = ""
AGES: Final = (0, 8, 32, 128)
"""Output tokens from which an answer is of this age."""
SURE: Final = 0.6
SURER: Final = 0.85
"""Confidences of the token before from which the next one counts as behind a surer one."""
MEMORY: Final = 0.95
"""What a request's record keeps of itself with every round."""
DOUBT: Final = 10.0
"""Tokens of its own that a request needs before its shares are half of what they seem."""


Place = tuple[str | None, int, str]
"""Where a draft token stands: the source of the one before, how sure that was, and its kind.

The source is None for the first token of a draft, the kind empty where nobody read the text.
"""


def evidence_of(place: Place) -> tuple[str, ...]:
    """Give the names of what is known of a place."""
    previous, sureness, before = place
    kind = (f"behind {before}",) if before else ()
    if previous is None:
        return ("first", *kind)
    return (f"after {previous}", f"sure {sureness}", *kind)


class Row(NamedTuple):
    """What all tokens of a draft share: the texture of the text and the age of the answer."""

    texture: str
    age: int

    def evidence(self) -> tuple[str, ...]:
        """Give its names."""
        texture = (f"in {self.texture}",) if self.texture else ()
        return (*texture, f"age {self.age}")


def row_of(reading: Reading | None, num_output: int) -> Row:
    """Describe the row of a draft."""
    texture = "" if reading is None else reading.texture
    return Row(texture, AGES[bisect_right(AGES, num_output) - 1])


def places_of(
    confidence: Sequence[float], sources: Sequence[str], reading: Reading | None
) -> list[Place]:
    """Describe where the tokens of a draft stand; each by what is before it alone."""
    kinds = ("",) * len(confidence) if reading is None else reading.kinds
    before = (None, *sources[:-1])
    sureness = (0, *(0 if own <= SURE else 1 if own <= SURER else 2 for own in confidence[:-1]))
    return list(zip(before, sureness, kinds, strict=True))


@dataclass(slots=True)
class Record:
    """How much of a request's recent text each source gave; old rounds fade."""

    tokens: float = 0.0
    accepted: dict[str, float] = field(default_factory=dict)

    def add(self, sources: Sequence[str], accepted: int, rest: Sequence[float] = ()) -> None:
        """Note a round of which the first `accepted` tokens of these sources were kept.

        `rest` are the survivals of the tokens behind them, where nobody knows: all that was
        verified held. They count as far as they are expected to, or short verify lengths would
        look like text that cannot be drafted.
        """
        for name in self.accepted:
            self.accepted[name] *= MEMORY
        self.tokens = MEMORY * self.tokens + accepted + 1 + sum(rest)
        for name, count in zip(sources, (*(1.0,) * accepted, *rest), strict=False):
            self.accepted[name] = self.accepted.get(name, 0.0) + count

    def shares(self) -> Mapping[str, float]:
        """Give the share of every source that gave anything."""
        return {name: count / (self.tokens + DOUBT) for name, count in self.accepted.items()}
