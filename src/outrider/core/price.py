"""What drafting for a step costs, for drafters that can choose how much to spend."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftPrice:
    """Seconds of a step and of what drafts add to it, read from a step cost table.

    `step_seconds` are those of the step if nothing is drafted; it yields `num_judged` tokens.
    `row_seconds` are those of each draft token that is verified, `draft_seconds(n)` those of a
    whole draft for n requests.
    """

    num_judged: int
    step_seconds: float
    row_seconds: float
    draft_seconds: Callable[[int], float]

    @property
    def row_tokens(self) -> float:
        """Tokens that the time of a verified draft token would give without drafts, at most 1.

        A draft token whose survival is less is not worth verifying.
        """
        return min(1.0, self.num_judged * self.row_seconds / self.step_seconds)


FREE = DraftPrice(1, 1.0, 0.0, lambda _: 0.0)
"""Of a step in which drafts cost nothing."""
