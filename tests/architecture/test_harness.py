"""The harness itself: shapes are checked, the network is cut, CI does not accept skips."""

import socket
from collections.abc import Callable
from typing import Protocol, Self

import hypothesis
import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from outrider.sampling.draw import draw
from tests import harness


def test_every_module_is_shape_checked_unless_opted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a hook that misses nested modules, and an opt-out that does not take effect."""
    assert {"outrider.errors", "outrider.tensor.shapes"} <= set(harness.checked_modules())
    monkeypatch.setattr(harness, "UNCHECKED_MODULES", frozenset({"outrider.tensor.shapes"}))
    assert "outrider.tensor.shapes" not in harness.checked_modules()


def test_a_wrong_shape_is_an_error_in_tests() -> None:
    """Catches a hook installed after the package was imported, which checks nothing."""
    with pytest.raises(jaxtyping.TypeCheckError):
        draw(torch.ones(2, 2), 0.5)


class Speaks(Protocol):
    """A protocol without `isinstance`, as most of the package's are."""

    def speak(self) -> str: ...


class Scale:
    """A method with every kind of hint that the checker has to let pass."""

    def by(self, factor: float, who: Speaks | None, then: Callable[[list[Self]], int]) -> int:
        return int(factor)


def test_type_checks_follow_mypy() -> None:
    """Catches a checker that refuses what mypy accepts, or that lets a wrong type through."""
    check = harness.type_checked(Scale.by)
    assert check(Scale(), 2, object(), None) == 2
    with pytest.raises(BeartypeCallHintViolation):
        check(Scale(), "2", None, None)


def test_remote_connections_are_refused() -> None:
    """Catches a guard that was not installed. The socket is closed: no packet leaves either way."""
    remote = socket.socket()
    remote.close()
    with pytest.raises(ConnectionRefusedError, match="use a fake"):
        remote.connect(("192.0.2.1", 9))
    with pytest.raises(ConnectionRefusedError, match="use a fake"):
        remote.connect_ex(("example.invalid", 9))


def test_loopback_connections_work() -> None:
    """Catches a guard that also refuses the servers which tests start themselves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    near, far = socket.socketpair()
    near.close()
    far.close()
    assert harness.is_local(socket.AF_UNIX, "/some/path")
    assert harness.is_local(socket.AF_INET6, ("::1", 80, 0, 0))
    assert not harness.is_local(socket.AF_INET6, ("2001:db8::1", 80, 0, 0))


def test_missing_data_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a CI run that is green because everything was skipped."""
    for is_ci, expected in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        monkeypatch.setattr(harness, "IS_CI", is_ci)
        with pytest.raises(BaseException, match="no data") as caught:
            harness.missing("no data")
        assert caught.type is expected


def test_torch_runs_on_one_thread() -> None:
    """Catches results that depend on the number of cores."""
    assert torch.get_num_threads() == 1


def test_hypothesis_profiles_are_registered() -> None:
    """Catches a CI whose property tests are random, so that a red run cannot be repeated."""
    assert hypothesis.settings.get_profile("ci").derandomize
    assert hypothesis.settings.get_profile("deep").max_examples >= 1000


def test_a_library_that_is_missing_is_not_passed_over() -> None:
    """Catches tests that are skipped in CI because a dependency was forgotten."""
    harness.require_module("json")
    with pytest.raises(pytest.fail.Exception if harness.IS_CI else pytest.skip.Exception):
        harness.require_module("no_library_of_this_name")
