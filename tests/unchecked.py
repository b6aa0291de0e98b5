"""Runs a test without the shape checker, where so many calls are made that it would dominate."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def unchecked() -> Iterator[None]:
    """Switch the shape checker off; usable as a decorator of a test."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
