"""How many drafts of each row are worth verifying. Numbers in, numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

Survival = Sequence[float]
"""Chance, per draft position, that every draft up to it is accepted; its length is the draft's."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a policy may know of a step besides the survival of its drafts."""

    num_known: int
    """Known tokens in the window, prompt chunks included."""


class LengthPolicy(Protocol):
    """Chooses verify lengths.

    `anticipating` says whether the decision to verify a draft may depend on that draft or a later
    one. Such a policy biases rejection sampling and is refused with it.
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
