"""The public names are exactly `outrider.__all__`."""

from collections.abc import Iterable

import pytest

import outrider


def in_public_order(names: Iterable[str]) -> list[str]:
    """The order ruff's RUF022 wants: CONSTANTS, then Classes, then functions."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_public_names_are_sorted_and_unique() -> None:
    """Catches a name listed twice or hidden in the middle of the list."""
    assert list(outrider.__all__) == in_public_order(set(outrider.__all__))


@pytest.mark.parametrize("name", outrider.__all__)
def test_public_name_resolves(name: str) -> None:
    """Catches a lazy entry that points at a module or a name that has moved."""
    assert getattr(outrider, name) is not None


def test_public_names_are_listed_by_dir() -> None:
    """Catches lazy names that completion cannot see."""
    assert set(outrider.__all__) <= set(dir(outrider))


def test_unknown_name_is_an_attribute_error() -> None:
    """Catches a lazy lookup that answers KeyError or None, which breaks hasattr and import-from."""
    assert not hasattr(outrider, "no_such_name")
