"""The parts of the test harness: shape checks, the network cut, what CI does about missing data."""

import importlib.util
import ipaddress
import os
import pkgutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, Self, get_args, get_origin

import pytest
from beartype import BeartypeConf, beartype

ROOT: Final = Path(__file__).resolve().parent.parent
IS_CI: Final = os.environ.get("CI") == "true"

# Modules whose functions run so often that checking every call would dominate the suite.
UNCHECKED_MODULES: Final[frozenset[str]] = frozenset()


def checked_modules() -> list[str]:
    """Every module of the package but the opted-out ones.

    Leaf modules only: the import hook takes a name as a prefix, so naming a sub-package would pull
    the opted-out modules inside it back in.
    """
    package = importlib.util.find_spec("outrider")
    if package is None or package.submodule_search_locations is None:
        raise RuntimeError("outrider is not importable; install it or set PYTHONPATH=src")
    found = _leaf_modules(list(package.submodule_search_locations), "outrider.")
    return [name for name in found if name not in UNCHECKED_MODULES]


def _leaf_modules(folders: list[str], prefix: str) -> Iterator[str]:
    for module in pkgutil.iter_modules(folders, prefix):
        if module.ispkg:
            inner = [str(Path(folder) / module.name.rpartition(".")[2]) for folder in folders]
            yield from _leaf_modules(inner, f"{module.name}.")
        else:
            yield module.name


def type_checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check arguments and results of a function at run time, as mypy reads the annotations.

    An int passes for a float. What names `Self` or a protocol that is not runtime-checkable passes
    unchecked, since beartype refuses both: the import hook decorates methods before their class
    exists, and such a protocol has no `isinstance`.
    """
    hints = function.__annotations__
    function.__annotations__ = {
        name: hint if is_checkable(hint) else Any for name, hint in hints.items()
    }
    return beartype(conf=BeartypeConf(is_pep484_tower=True))(function)


def is_checkable(hint: Any) -> bool:
    """Whether beartype can check this hint on a method whose class does not exist yet."""
    if isinstance(hint, list):  # The parameters inside Callable[[...], ...].
        return all(is_checkable(each) for each in hint)
    kind = get_origin(hint) or hint
    is_protocol = getattr(kind, "_is_protocol", False)
    if hint is Self or (is_protocol and not getattr(kind, "_is_runtime_protocol", False)):
        return False
    return all(is_checkable(each) for each in get_args(hint))


def is_local(family: int, address: Any) -> bool:
    """Whether a test may connect there: a Unix socket, `localhost`, or a loopback address."""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return family == socket.AF_UNIX
    host = address[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def block_network(patch: pytest.MonkeyPatch) -> None:
    """Make every connection that leaves this machine raise `ConnectionRefusedError`."""
    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))


def _guarded(connect: Callable[[socket.socket, Any], Any]) -> Callable[[socket.socket, Any], Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if not is_local(self.family, address):
            raise ConnectionRefusedError(
                f"a test tried to reach {address!r}; tests stay on loopback, use a fake"
            )
        return connect(self, address)

    return guarded


def missing(what: str) -> NoReturn:
    """Skip the test or module, or fail it in CI, because `what` holds on this machine."""
    if IS_CI:
        pytest.fail(f"{what}; in CI this is a failure")
    pytest.skip(what, allow_module_level=True)


def require_module(name: str) -> None:
    """Skip the test or module, or fail it in CI, where a library is not installed."""
    if importlib.util.find_spec(name) is None:
        missing(f"{name} is not installed")
