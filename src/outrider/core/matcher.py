"""A request's place in the grammar its output must follow: the protocol."""

from collections.abc import Sequence
from typing import Protocol


class TokenMatcher(Protocol):
    """Says which tokens may come next.

    Answers depend on the arguments alone; a matcher remembers where it was to answer sooner.
    """

    @property
    def fault(self) -> str | None:
        """Why the last answer allows nothing, where that is not what the grammar says."""
        ...

    def num_fitting(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """Count the drafts that may follow `output`, up to the first that may not."""
        ...

    def masks(self, output: Sequence[int], drafts: Sequence[int]) -> list[bytes]:
        """Give what may come behind `output` and behind each draft; one more than drafts.

        A mask has a bit per token id, the lowest bit of a byte first. Behind a draft that may not
        come, or a fault, nothing may.
        """
        ...
