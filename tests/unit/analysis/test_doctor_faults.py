"""Every planted fault is found under its own name, and nothing is found in sound drafters."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.analysis.doctor.examine import SELF_TEST_CACHE, Examination, examine
from outrider.analysis.doctor.findings import Report
from outrider.analysis.doctor.machine import Computing, MachineFacts
from outrider.analysis.doctor.pair import open_pair
from outrider.analysis.doctor.self_test import SelfTestSetting
from outrider.drafters.block.checkpoint import load_checkpoint
from outrider.engine.llm import LLM
from outrider.interop import deepspec, speculators
from outrider.interop.schema import TargetMatrices
from outrider.interop.speculators import flat_fields
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from tests.doctor_pair import (
    LENGTH,
    PROMPTS,
    TAPS,
    VOCAB,
    Drafter,
    reduce_vocabulary,
)
from tests.unchecked import unchecked

COMPUTING = Computing(backend="torch", dtype="float32", threads=1, kv_tokens=1024)
MACHINE = MachineFacts(
    cores=2,
    instruction_sets=("avx2", "portable"),
    native_fault=None,
    free_bytes=1 << 40,
    total_bytes=1 << 40,
)
DRAWN = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Fault:
    """What is done to a sound drafter, and the finding it must lead to.

    Some faults only show when the drafter runs (`runs`); others on a drafter of a reduced
    vocabulary (`reduced`), or in another schema (`schema`).
    """

    name: str
    finding: str
    plant: Callable[[Drafter], None]
    runs: bool = False
    reduced: bool = False
    schema: str = ""


def settings(**fields: Any) -> Callable[[Drafter], None]:
    return lambda drafter: drafter.set(**fields)


def tensor(name: str, change: Callable[[Tensor], Tensor | None]) -> Callable[[Drafter], None]:
    return lambda drafter: drafter.change(name, change)


def without_record(plant: Callable[[Drafter], None]) -> Callable[[Drafter], None]:
    def planted(drafter: Drafter) -> None:
        drafter.drop_record()
        plant(drafter)

    return planted


def taps(shift: int) -> Callable[[Drafter], None]:
    return settings(target_layer_ids=[tap + shift for tap in TAPS])


def swap_markov(drafter: Drafter) -> None:
    first, second = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
    tensors = drafter.tensors()
    drafter.write(tensors | {first: tensors[second], second: tensors[first]})


def random_like(scale: float) -> Callable[[Tensor], Tensor]:
    return lambda like: scale * torch.randn(like.shape, generator=DRAWN)


def random_network(drafter: Drafter) -> None:
    drawn = random_like(0.3)
    drafter.write(
        {
            name: drawn(values) if values.ndim == 2 and "markov" not in name else values
            for name, values in drafter.tensors().items()
        }
    )


def shift_silently(drafter: Drafter) -> None:
    drafter.change("d2t", lambda ids: ids + 1)
    drafter.change("t2d", lambda _: None)


def with_nan(values: Tensor) -> Tensor:
    values = values.clone()
    values[0, 0] = torch.nan
    return values


def write(name: str, text: str) -> Callable[[Drafter], None]:
    def planted(drafter: Drafter) -> None:
        (drafter.folder / name).write_text(text, "utf-8")

    return planted


def truncate(drafter: Drafter) -> None:
    path = drafter.folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-64])


def copy_layer(drafter: Drafter) -> None:
    tensors = drafter.tensors()
    name = "mlp.up_proj.weight"
    drafter.write(tensors | {f"layers.1.{name}": tensors[f"layers.0.{name}"]})


def aux_ids(drafter: Drafter) -> None:
    """Our ids where theirs, which are one more, belong."""
    drafter.set(aux_hidden_state_layer_ids=list(TAPS))


def other_theta(drafter: Drafter) -> None:
    drafter.set(rope_theta=20.0)


FAULTS = (
    Fault("layer ids one too high", "taps-shifted", taps(1), runs=True),
    Fault("layer ids one too low", "taps-shifted", taps(-1), runs=True),
    Fault("ids of vLLM not shifted", "taps-shifted", aux_ids, runs=True, schema="speculators"),
    Fault(
        "wrong layout",
        "layout-wrong",
        without_record(settings(sample_from_anchor=False)),
        runs=True,
    ),
    Fault("layout of fewer drafts", "block-size", settings(sample_from_anchor=False)),
    Fault("swapped Markov matrices", "markov-swapped", swap_markov, runs=True),
    Fault(
        "swapped Markov matrices of a reduced vocabulary",
        "markov-swapped",
        swap_markov,
        reduced=True,
    ),
    Fault(
        "random Markov head",
        "markov-harmful",
        tensor("markov_head.markov_w2.weight", random_like(3.0)),
        runs=True,
    ),
    Fault("random network", "acceptance-low", random_network, runs=True),
    Fault(
        "rope theta changed, without a record",
        "rope-theta-wrong",
        without_record(other_theta),
        runs=True,
    ),
    Fault("rope theta", "rope-theta", other_theta),
    Fault(
        "confidence head of another drafter",
        "confidence-off",
        tensor("confidence_head.proj.bias", lambda bias: bias - 20.0),
        runs=True,
    ),
    Fault(
        "draft vocabulary shifted, without t2d",
        "draft-vocab-shifted",
        shift_silently,
        runs=True,
        reduced=True,
    ),
    Fault("shifted d2t", "t2d-inconsistent", tensor("d2t", lambda ids: ids + 1), reduced=True),
    Fault(
        "t2d of another drafter",
        "t2d-inconsistent",
        tensor("t2d", lambda marked: marked.roll(1)),
        reduced=True,
    ),
    Fault("dropped d2t", "d2t-missing", tensor("d2t", lambda _: None), reduced=True),
    Fault(
        "d2t of target ids",
        "d2t-absolute",
        tensor("d2t", lambda ids: ids + torch.arange(len(ids))),
        reduced=True,
    ),
    Fault(
        "d2t beyond the vocabulary",
        "d2t-invalid",
        tensor("d2t", lambda ids: ids + 40),
        reduced=True,
    ),
    Fault("empty d2t", "d2t-invalid", tensor("d2t", lambda ids: ids[:0]), reduced=True),
    Fault("d2t of one number", "d2t-invalid", tensor("d2t", lambda ids: ids[0]), reduced=True),
    Fault("target of another hash", "target-hash", settings(target_hash="00ff")),
    Fault("wrong hidden size", "hidden-size", settings(hidden_size=48)),
    Fault("another vocabulary", "vocab-size", settings(vocab_size=VOCAB + 1)),
    Fault("target of another depth", "target-layers", settings(num_target_layers=9)),
    Fault("tap beyond the last layer", "tap-outside", settings(target_layer_ids=[1, 6])),
    Fault("a tap twice", "tap-order", settings(target_layer_ids=[3, 3])),
    Fault("mask outside the vocabulary", "mask-outside", settings(mask_token_id=VOCAB)),
    Fault("mask is text", "mask-is-text", settings(mask_token_id=7)),
    Fault(
        "rope scaling", "rope-scaling", settings(rope_scaling={"rope_type": "yarn", "factor": 4.0})
    ),
    Fault("context too short", "context-short", settings(max_position_embeddings=64)),
    Fault(
        "sliding window",
        "sliding-window",
        settings(layer_types=["sliding_attention", "full_attention"]),
    ),
    Fault("block size", "block-size", settings(block_size=6)),
    Fault("missing setting", "config-field", settings(mask_token_id=None)),
    Fault("a billion layers", "config-field", settings(num_hidden_layers=10**9)),
    Fault("setting of a wrong type", "config-field", settings(num_attention_heads="four")),
    Fault(
        "missing confidence head",
        "confidence-missing",
        tensor("confidence_head.proj.weight", lambda _: None),
    ),
    Fault("missing tensor", "tensor-missing", tensor("norm.weight", lambda _: None)),
    Fault("forgotten Markov head", "tensor-unexpected", settings(markov_rank=0)),
    Fault("misshapen tensor", "tensor-shape", tensor("fc.weight", lambda t: t[:, :-1])),
    Fault("whole numbers", "tensor-dtype", tensor("fc.weight", lambda t: t.to(torch.int8))),
    Fault("NaN", "tensor-not-finite", tensor("fc.weight", with_nan)),
    Fault("all-zero fc", "tensor-zero", tensor("fc.weight", torch.zeros_like)),
    Fault("a layer twice", "tensor-duplicate", copy_layer),
    Fault("untrained norm", "norm-untrained", tensor("hidden_norm.weight", torch.ones_like)),
    Fault("config is no JSON", "drafter-unreadable", write("config.json", "{")),
    Fault("truncated weights", "drafter-unreadable", truncate),
    Fault(
        "random output matrix",
        "head-differs",
        tensor("lm_head.weight", random_like(0.3)),
        schema="deepspec",
    ),
    Fault(
        "random embedding",
        "embedding-differs",
        tensor("embed_tokens.weight", random_like(0.3)),
        schema="deepspec",
    ),
    Fault(
        "drafts stated for another block",
        "block-size",
        lambda drafter: drafter.set(block_size=3),
        schema="speculators",
    ),
)


@pytest.fixture(scope="session")
def target(trained_pair: tuple[Path, Path]) -> Checkpoint:
    return open_checkpoint(trained_pair[0])


@pytest.fixture(scope="session")
def llm(trained_pair: tuple[Path, Path]) -> LLM:
    return LLM(
        str(trained_pair[0]), backend="torch", dtype="float32", kv_cache_tokens=SELF_TEST_CACHE
    )


def examined(
    target: Checkpoint, drafter: Path, llm: LLM | None, draft_len: int | None = None
) -> Report:
    how = Examination(
        computing=COMPUTING,
        machine=MACHINE,
        setting=SelfTestSetting(rows=PROMPTS, max_tokens=LENGTH, raw=True),
        load=None if llm is None else partial(lambda loaded: loaded, llm),
    )
    pair = open_pair(target, str(drafter), draft_len, flat_fields)
    with unchecked():
        return examine(pair, how)


def export_as(schema: str, source: Path, target: Checkpoint, folder: Path) -> Path:
    """Write the drafter in another project's form, with its record beside it."""
    matrices = TargetMatrices.read(target, "target")
    formats: dict[str, Any] = {"speculators": speculators, "deepspec": deepspec}
    formats[schema].export(load_checkpoint(source), matrices).write(folder)
    record = (source / "provenance.json").read_text("utf-8")
    (folder / "provenance.json").write_text(record, "utf-8")
    return folder


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named(
    fault: Fault, trained_pair: tuple[Path, Path], target: Checkpoint, llm: LLM, tmp_path: Path
) -> None:
    """Catches a fault that the doctor overlooks, or reports as something else."""
    source = trained_pair[1]
    if fault.schema:
        source = export_as(fault.schema, source, target, tmp_path / "exported")
    drafter = Drafter(source, tmp_path / "drafter")
    if fault.reduced:
        reduce_vocabulary(drafter, torch.arange(2, 61))
    fault.plant(drafter)
    report = examined(target, drafter.folder, llm if fault.runs else None)
    found = {each.id: each.severity for each in report.findings}
    assert fault.finding in found, found
    assert found[fault.finding] != "info"
    assert report.is_healthy == (
        found[fault.finding] == "warning" and "error" not in found.values()
    )


def test_there_are_enough_faults() -> None:
    assert len({fault.finding for fault in FAULTS}) >= 20


@pytest.mark.parametrize("schema", ["own", "reduced", "deepspec", "speculators"])
def test_a_sound_drafter_is_healthy(
    schema: str, trained_pair: tuple[Path, Path], target: Checkpoint, llm: LLM, tmp_path: Path
) -> None:
    """Catches false alarms: no error and no warning, in any schema."""
    source = trained_pair[1]
    if schema in ("deepspec", "speculators"):
        source = export_as(schema, source, target, tmp_path / "exported")
    drafter = Drafter(source, tmp_path / "drafter")
    if schema == "reduced":
        reduce_vocabulary(drafter, torch.arange(2, 61))
    report = examined(target, drafter.folder, llm)
    assert [each for each in report.findings if each.severity != "info"] == []
    tests = report.facts["self_test"]
    assert [test["part"] for test in tests] == ["network", "dspark"]
    assert tests[0]["positions"] > 150
    assert tests[0]["first_rate"] > 0.8
    json.dumps(report.record(), allow_nan=False)
