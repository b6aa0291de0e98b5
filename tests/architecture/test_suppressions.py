"""Silenced checks are counted, so that each new one is a decision."""

import re
from typing import Final

from tests.architecture.tree import show, source_files

MAX_SUPPRESSIONS: Final = 20
SUPPRESSION: Final = re.compile(r"#\s*(?:noqa|type:\s*ignore|ruff:\s*noqa|mypy:|pragma:)")
WHOLE_FILE: Final = re.compile(r"#\s*(?:ruff:\s*noqa|flake8:\s*noqa|mypy:\s*ignore-errors)")


def test_suppressions_stay_under_the_ceiling() -> None:
    """Catches linters being silenced instead of obeyed."""
    found = [
        f"{show(path)}:{number}"
        for path in source_files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if SUPPRESSION.search(line)
    ]
    assert len(found) <= MAX_SUPPRESSIONS, f"{len(found)} suppressions: {found}"


def test_no_file_is_silenced_as_a_whole() -> None:
    """Catches one comment that switches a linter off for a file."""
    silenced = [show(path) for path in source_files() if WHOLE_FILE.search(path.read_text("utf-8"))]
    assert not silenced
