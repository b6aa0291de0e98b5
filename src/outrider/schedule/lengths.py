"""How many drafts of each row are worth verifying. Numbers in, numbers out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from outrider.schedule.cost import StepCost
from outrider.schedule.search import (
    Survival,
    expected_throughput,
    first_descent,
    highest,
    lengths_of,
    likeliest,
)

# A confidence of exactly the threshold must pass although it was multiplied and divided again.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a policy may know of a step besides the survival of its drafts."""

    num_known: int
    """Known tokens in the window, prompt chunks included."""
    num_judged: int
    """Rows that yield a token."""
    context_len: float = 0.0
    """Tokens a row of the window sees, on average."""
    draft_seconds: float = 0.0
    """What proposing the drafts took."""
    surcharge: float = 1.0
    """How many times what the table says verified drafts add to a step."""
    strict: frozenset[int] = frozenset()
    """Rows whose drafts were drawn and are judged by rejection: whether one of their drafts is
    verified must not depend on that draft or a later one, or the output is biased."""


class LengthPolicy(Protocol):
    """Chooses verify lengths.

    `anticipating` says that the decision to verify a draft may depend on that draft or a later one
    even in `strict` rows. Such a policy biases rejection sampling and is refused with it.
    """

    anticipating: ClassVar[bool]

    def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:
        """Give a verify length per row, at most the row's draft length."""
        ...


@dataclass(frozen=True, slots=True)
class Off:
    """Verify nothing: plain decoding."""

    anticipating: ClassVar[bool] = False

    def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:  # noqa: ARG002
        """Give 0 for every row."""
        return [0] * len(survival)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Verify everything that was drafted, up to a number."""

    most: int
    anticipating: ClassVar[bool] = False

    def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:  # noqa: ARG002
        """Give the draft length, at most `most`."""
        return [min(len(row), self.most) for row in survival]


@dataclass(frozen=True, slots=True)
class Threshold:
    """Verify a row's drafts up to the first one whose own confidence is below a number.

    The confidence of a draft token depends on the tokens before it alone, so this does not
    anticipate; it knows nothing of the machine or of the batch.
    """

    least: float
    anticipating: ClassVar[bool] = False

    def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:  # noqa: ARG002
        """Give each row's length; a confidence is the ratio of two neighbours in survival."""
        return [self._length(row) for row in survival]

    def _length(self, row: Survival) -> int:
        before = 1.0
        for position, value in enumerate(row):
            if value < before * self.least * (1 - ROUNDING):
                return position
            before = value
        return len(row)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Verify what is expected to give the most tokens per second; see `schedule.search`.

    A wide search looks at the whole curve, so a staircase does not stop it. Where rows are strict
    it fixes their lengths by the first descent over all rows, which does not anticipate, and then
    searches the lengths of the others, whose output no length can change.
    """

    cost: StepCost
    is_wide: bool = True
    anticipating: ClassVar[bool] = False

    def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:
        """Give the lengths of the highest expected throughput that the search may find."""
        if self.is_wide and not shape.strict:
            return self._search(survival, shape, pick=highest)
        lengths = self._search(survival, shape, pick=first_descent)
        if not self.is_wide or len(shape.strict) == len(survival):
            return lengths
        settled = [survival[row][: lengths[row]] for row in shape.strict]
        others = [() if row in shape.strict else own for row, own in enumerate(survival)]
        found = self._search(others, shape, settled, pick=highest)
        return [lengths[row] if row in shape.strict else length for row, length in enumerate(found)]

    def _search(
        self,
        survival: Sequence[Survival],
        shape: BatchShape,
        settled: Sequence[Survival] = (),
        *,
        pick: Callable[[Sequence[float]], int],
    ) -> list[int]:
        """Search beside `settled` prefixes, which are verified whatever is found."""
        rows = shape.num_known + sum(map(len, settled))
        falling = likeliest(survival)
        if rows < self.cost.max_rows:
            # Of larger steps nothing is known, and nothing but drafts would ask for one.
            falling = falling[: self.cost.max_rows - rows]
        forward = self.cost.forward_curve(shape.context_len, rows + len(falling))
        bare, dearer = forward[shape.num_known], shape.surcharge
        around = shape.draft_seconds + self.cost.host(shape.num_judged) + bare
        around -= self.cost.reading(shape.num_known, shape.num_judged, shape.context_len)
        behind = forward[rows : rows + len(falling) + 1]
        seconds = [around + dearer * (value - bare) for value in behind]
        tokens = float(shape.num_judged + sum(map(sum, settled)))
        return lengths_of(survival, falling, pick(expected_throughput(falling, tokens, seconds)))
