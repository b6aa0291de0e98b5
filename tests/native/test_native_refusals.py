"""What the C++ side refuses, and how: one sentence, before anything is written."""

from typing import Any

import pytest
import torch

from outrider.errors import ConfigError, CorruptCheckpoint
from outrider.tensor.span import Span
from outrider.testing.tiny import InMemoryTensors, tiny_spec, tiny_tensors
from tests.native.machines import TinyModel, machine, require_native, span_of
from tests.unchecked import unchecked

MODEL = TinyModel(tiny_spec())


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


@pytest.mark.parametrize(
    ("span", "says"),
    [
        (span_of([64], 0, [0], 1), "token 64"),
        (span_of([-1], 0, [0], 1), "token -1"),
        (span_of([1] * 17, 0, [0], 1), "1 blocks"),
        (span_of([1], 16, [0], 1), "1 blocks"),
        (span_of([1], 0, [4], 1), "block 4"),
        (span_of([1], 0, [-1], 1), "block -1"),
        (span_of([], 0, [0], 0), "0 rows"),
        (span_of([1], 0, [0], 2), "2 of them judged"),
        (span_of([1], -1, [0], 1), "-1"),
    ],
    ids=str,
)
def test_spans_that_leave_the_memory(span: Span, says: str) -> None:
    """Catches reads and writes outside the pool, the vocabulary or the window."""
    target = MODEL.target(machine(1), num_blocks=4)
    with pytest.raises(ValueError, match=says):
        target.score_spans([span])


@pytest.mark.parametrize("tap", [-2, 2])
def test_taps_that_do_not_exist(tap: int) -> None:
    """Catches features of nothing."""
    with pytest.raises(ValueError, match=f"tap {tap}"):
        MODEL.target(machine(1)).score_spans([span_of([1], 0, [0], 1)], (tap,))


def test_a_block_size_that_cuts_groups() -> None:
    """Catches slots that land in another block."""
    with pytest.raises(ValueError, match="multiple of 16"):
        MODEL.target(machine(1), block_size=8)


def test_inputs_that_do_not_fit() -> None:
    """Catches a read past the end of given rows."""
    runner = MODEL.target(machine(1)).runner
    with pytest.raises(ValueError, match="columns"):
        runner.block([span_of([0, 0], 0, [0], 1)], torch.zeros(2, 31))
    with pytest.raises(ValueError, match="one row per token"):
        runner.block([span_of([0, 0], 0, [0], 1)], torch.zeros(3, 32))
    with pytest.raises(ValueError, match="one per token"):
        runner.write_context([span_of([0, 0], 0, [0], 0)], torch.zeros(1, 32))


def load(tensors: dict[str, torch.Tensor], weight_format: Any = "bf16") -> None:
    from outrider.target.native_weights import load_native_tensors

    load_native_tensors(MODEL.spec, InMemoryTensors(tensors), machine(1), weight_format)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_a_missing_tensor(name: str) -> None:
    """Catches a forward over memory that nobody filled."""
    tensors = tiny_tensors(MODEL.spec, 1)
    del tensors[name]
    with pytest.raises(CorruptCheckpoint, match=r"missing|never set"):
        load(tensors)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_a_misshapen_tensor(name: str) -> None:
    """Catches rows read past the end of a tensor."""
    tensors = tiny_tensors(MODEL.spec, 1)
    tensors[name] = tensors[name][:-1]
    with pytest.raises(CorruptCheckpoint):
        load(tensors)


@unchecked()
def test_an_unknown_weight_format() -> None:
    """Catches a typo that silently means the default."""
    with pytest.raises(ConfigError, match="q4"):
        load(tiny_tensors(MODEL.spec, 1), "Q4")


def test_an_unknown_instruction_set() -> None:
    """Catches a forced level that silently means another one."""
    from outrider.native.runner import Machine

    with pytest.raises(ValueError, match="sse9"):
        Machine(1, "sse9")
    with pytest.raises(ValueError, match="threads"):
        Machine(0)
