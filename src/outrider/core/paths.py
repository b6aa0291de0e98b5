"""Paths as users write them."""

from pathlib import Path


def expanded(path: str | Path) -> Path:
    """Put the home directory in for a leading `~`; a home that does not exist stays as written."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
