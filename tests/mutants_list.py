"""The named mutants: one-line breakages of the source that the named tests must notice."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One breakage: in `file`, `old` becomes `new`, and each of `tests` must go red."""

    name: str
    file: str
    """Path below `src/`, for example `outrider/verify/accept.py`."""
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """pytest arguments below the repository root: files, or `file::test`."""


MUTANTS: Final[tuple[Mutant, ...]] = ()
