"""Which backend computes: what was asked for, else the native runner where it can."""

import logging
from pathlib import Path
from typing import Any

import pytest

from outrider.core.request import SamplingParams
from outrider.engine.backend import TorchBackend
from outrider.engine.config import EngineConfig
from outrider.engine.llm import LLM
from outrider.engine.resolve import DEFAULT_DTYPE, choose_backend
from outrider.errors import ConfigError
from outrider.native import availability
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests import harness

FAULT = "the native runner was not built; reinstall"


@pytest.fixture
def built() -> None:
    fault = availability.fault()
    if fault is not None:
        harness.missing(fault)


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "fault", lambda: FAULT)


def config(**options: Any) -> EngineConfig:
    return EngineConfig(**{"model": "m", "threads": 1, **options})


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("asked", ["auto", "native"])
def test_native_where_nothing_asks_for_torch(asked: str, caplog: pytest.LogCaptureFixture) -> None:
    """Catches a default that leaves the faster path unused, or warns without need."""
    assert choose_backend(config(backend=asked, weights="q8")).name == "native"
    assert not caplog.records


TORCH: list[tuple[dict[str, Any], TorchBackend]] = [
    ({"dtype": "float32"}, TorchBackend("float32", "cpu", 1)),
    ({"device": "meta"}, TorchBackend(DEFAULT_DTYPE, "meta", 1)),
    ({"backend": "torch"}, TorchBackend(DEFAULT_DTYPE, "cpu", 1)),
    ({"backend": "torch", "dtype": "float64"}, TorchBackend("float64", "cpu", 1)),
    ({"backend": "torch", "threads": None}, TorchBackend(DEFAULT_DTYPE, "cpu", None)),
]


@pytest.mark.parametrize("fault", [None, FAULT], ids=["built", "not built"])
@pytest.mark.parametrize(("options", "expected"), TORCH, ids=str)
def test_torch_where_it_is_asked_for(
    options: dict[str, Any],
    expected: TorchBackend,
    fault: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Catches an option of torch that the native runner drops, and a needless warning."""
    monkeypatch.setattr(availability, "fault", lambda: fault)
    assert choose_backend(config(**options)) == expected
    assert not caplog.records


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"device": "meta"}], ids=str)
def test_native_refuses_what_only_torch_has(options: dict[str, Any]) -> None:
    """Catches a dtype or a device that is silently ignored."""
    with pytest.raises(ConfigError, match="leave dtype and device out, or use backend 'torch'"):
        choose_backend(config(backend="native", **options))


@pytest.mark.usefixtures("built")
def test_native_refuses_blocks_its_kernels_cannot_walk() -> None:
    """Catches a block size that only fails once the weights are loaded."""
    with pytest.raises(ConfigError, match="block_size is 24, but the native backend needs a multi"):
        choose_backend(config(block_size=24))


@pytest.mark.parametrize("options", [{"backend": "torch"}, {"dtype": "float32"}], ids=str)
def test_torch_refuses_weights_it_does_not_make(options: dict[str, Any]) -> None:
    """Catches a memory saving that was asked for and did not happen."""
    with pytest.raises(ConfigError, match="weights 'q8' are made by the native backend"):
        choose_backend(config(weights="q8", **options))


@pytest.mark.usefixtures("not_built")
def test_auto_falls_back_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Catches a fallback nobody hears of, and one that says so many times."""
    assert choose_backend(config()) == TorchBackend(DEFAULT_DTYPE, "cpu", 1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"{FAULT}; running on torch instead"


@pytest.mark.usefixtures("not_built")
def test_native_that_is_not_built_is_an_error() -> None:
    """Catches a run that measures torch under the name of the native runner."""
    with pytest.raises(ConfigError, match=FAULT):
        choose_backend(config(backend="native"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return str(write_tiny_checkpoint(path, tiny_spec(), seed=1))


def assert_sibling_shares(llm: LLM, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_again(config: EngineConfig) -> None:
        raise AssertionError("a backend was chosen for weights that are loaded")

    monkeypatch.setattr("outrider.engine.resolve.choose_backend", choose_again)
    other = llm.sibling(max_num_seqs=2)
    assert (llm.backend, other.backend, other.precision) == (backend, backend, llm.precision)
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    first, second = (each.generate([[5, 6, 7]], params)[0].outputs[0] for each in (llm, other))
    assert first.token_ids == second.token_ids


@pytest.mark.usefixtures("built")
def test_a_sibling_stays_native(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a second pool of threads, or torch under weights that are packed for the runner."""
    assert_sibling_shares(LLM(model, threads=1), "native", monkeypatch)


def test_a_sibling_stays_on_torch(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a sibling that goes native because its own config asks for nothing."""
    llm = LLM(model, dtype="float32", threads=1)
    assert_sibling_shares(llm, "torch", monkeypatch)
