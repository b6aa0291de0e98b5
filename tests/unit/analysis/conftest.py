"""A tiny model and its engines, in float64 so that nothing differs by rounding."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.llm import LLM
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.doctor_pair import write_pair
from tests.unchecked import unchecked

MakeLLM = Callable[..., LLM]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a byte-level vocabulary."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    return write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=5)


@pytest.fixture
def make_llm(tiny_model: Path) -> Iterator[MakeLLM]:
    """Load the tiny model; options replace the defaults."""

    def make(**options: Any) -> LLM:
        return LLM(str(tiny_model), **{"dtype": "float64", **options})

    with unchecked():
        yield make


@pytest.fixture(scope="session")
def trained_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and a block drafter that knows its answers to `doctor_pair.PROMPTS`."""
    return write_pair(tmp_path_factory.mktemp("doctor"))
