"""One examination: files first, then machine, then a short run of both together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from outrider.analysis.closed_loop import Completed
from outrider.analysis.doctor.configuration import check_configuration, read_config
from outrider.analysis.doctor.findings import Finding, Report
from outrider.analysis.doctor.machine import (
    Computing,
    MachineFacts,
    Memory,
    block_memory,
    check_machine,
    model_memory,
)
from outrider.analysis.doctor.pair import Pair
from outrider.analysis.doctor.self_test import (
    SelfTest,
    SelfTestSetting,
    block_drafter,
    examine_block,
    judged,
    run_plain,
    run_speculative,
)
from outrider.analysis.doctor.tensors import check_tensors
from outrider.analysis.doctor.vocabulary import (
    check_repeated,
    check_same_tokenizer,
    check_tokenizer,
    check_vocabulary,
)
from outrider.drafters.block.checkpoint import BlockCheckpoint, assemble
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.ngram_table_file import open_table
from outrider.drafters.trained_block import ascending
from outrider.engine.llm import LLM
from outrider.errors import IncompatibleDraft, ModelError, OutriderError
from outrider.models.checkpoint import Checkpoint
from outrider.models.weights import SafetensorsSource

SELF_TEST_CACHE: Final = 8192
"""Tokens of the KV caches that the self-test runs with."""
SMALLER: Final = 0.75
"""A draft model of more than this share of the target's parameters cannot pay."""
_NOT_RUNNABLE: Final = frozenset({"hidden-size", "vocab-size", "target-layers"})
_TEXT_METHODS: Final = ("suffix", "ngram")

LoadTarget = Callable[[], LLM]
"""Loads the target, without a drafter, with a KV cache of `SELF_TEST_CACHE` tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is looked at beside the files. `load` None leaves the self-test out."""

    computing: Computing
    machine: MachineFacts
    setting: SelfTestSetting
    load: LoadTarget | None


def examine(pair: Pair, how: Examination) -> Report:
    """Look at everything; nothing that is wrong with the pair raises."""
    report = Report(list(pair.findings))
    report.facts |= {"method": pair.method, "target": str(pair.target.path)}
    report.findings += check_tokenizer(pair.target)
    config, checkpoint = _block(pair, report)
    report.findings += _table(pair)
    report.findings += _draft_model(pair)
    parts = model_memory(pair.target, how.computing, "target")
    if config is not None:
        parts |= block_memory(config, how.computing)
    if pair.draft_model is not None:
        parts |= model_memory(pair.draft_model, how.computing, "draft model")
    memory = Memory(parts)
    report.facts["memory"] = memory.record()
    report.findings += check_machine(how.machine, how.computing, memory)
    if how.load is not None and not report.ids & {"memory-total"}:
        _self_test(pair, checkpoint, report, how)
    return report


def _block(pair: Pair, report: Report) -> tuple[BlockConfig | None, BlockCheckpoint | None]:
    """Look at a block drafter's files; give what of it could be put together."""
    files = pair.block
    if files is None:
        return None, None
    if files.record is None:
        report.findings.append(Finding("record-missing", f"{files.directory} has no record"))
    report.findings += check_configuration(files, pair.target)
    config, refused = read_config(files, report.ids)
    report.findings += refused
    report.findings += check_tensors(files, config)
    report.findings += check_vocabulary(files, pair.target)
    report.findings += check_repeated(files, pair.target)
    if config is None or "d2t-invalid" in report.ids:
        return config, None
    wanted = None if pair.speculative is None else pair.speculative.num_speculative_tokens
    if pair.method != "combined" and wanted is not None and wanted > config.num_drafts:
        detail = f"{wanted} are asked for, a block holds {config.num_drafts}"
        report.findings.append(Finding("draft-len", detail, "num_speculative_tokens"))
    tensors = files.network_tensors
    if "d2t" in files.tensors:
        tensors["d2t"] = files.tensors["d2t"]
    try:
        checkpoint = ascending(assemble(config, tensors, torch.float32))
    except ModelError as error:
        if report.is_healthy:
            report.findings.append(Finding("drafter-refused", str(error)))
        return config, None
    return config, None if report.ids & _NOT_RUNNABLE else checkpoint


def _table(pair: Pair) -> Iterator[Finding]:
    if pair.table is None:
        return
    try:
        open_table(pair.table, pair.target)
    except IncompatibleDraft as error:
        yield Finding("table-tokenizer", str(error), "n-gram table")
    except (ModelError, OSError) as error:
        yield Finding("table-unreadable", str(error), "n-gram table")


def _draft_model(pair: Pair) -> Iterator[Finding]:
    model, target = pair.draft_model, pair.target
    if model is None:
        return
    try:
        yield from check_same_tokenizer(target, model)
    except ModelError as error:
        yield Finding("drafter-unreadable", str(error), "draft model")
        return
    if model.spec.max_context_len < target.spec.max_context_len:
        yield Finding(
            "context-short",
            f"the draft model was made for {model.spec.max_context_len} tokens, the target for "
            f"{target.spec.max_context_len}",
            "draft model",
        )
    sizes = [_num_parameters(each) for each in (model, target)]
    if sizes[0] > SMALLER * sizes[1]:
        detail = f"{sizes[0] / 1e6:.0f} M parameters, the target has {sizes[1] / 1e6:.0f} M"
        yield Finding("draft-not-smaller", detail, "draft model")
    yield from _weights_of(model)


def _num_parameters(checkpoint: Checkpoint) -> int:
    source = checkpoint.gguf or SafetensorsSource(checkpoint.path)
    return sum(torch.Size(shape).numel() for shape in source.shapes().values())


def _weights_of(model: Checkpoint) -> Iterator[Finding]:
    """Look for values that are no numbers in a draft model, one tensor at a time."""
    source = model.gguf or SafetensorsSource(model.path)
    for name, shape in source.shapes().items():
        values = torch.empty(shape, dtype=torch.float32)
        try:
            source.read_into(name, values)
        except (ModelError, OSError) as error:
            yield Finding("drafter-unreadable", str(error), name)
            return
        if not bool(torch.isfinite(values).all()):
            yield Finding("tensor-not-finite", "a value is no finite number", name)


def _self_test(
    pair: Pair, checkpoint: BlockCheckpoint | None, report: Report, how: Examination
) -> None:
    """Run target and drafter together, as far as they can be."""
    if checkpoint is None and (pair.block is not None or not report.is_healthy):
        report.findings.append(Finding("self-test-skipped", "the drafter cannot be put together"))
        return
    assert how.load is not None
    try:
        llm = how.load()
        tests, plain = [], None
        if checkpoint is not None and pair.block is not None:
            found, plain = examine_block(
                llm, checkpoint, pair.block.record, how.setting, SELF_TEST_CACHE
            )
            tests.append(found)
        tests.append(_together(pair, checkpoint, llm, plain or run_plain(llm, how.setting), how))
    except (OutriderError, OSError, RuntimeError) as error:
        report.findings.append(Finding("self-test-failed", str(error)))
        return
    for test in tests:
        report.findings += test.findings
    report.facts["self_test"] = [test.record() for test in tests]


def _together(
    pair: Pair,
    checkpoint: BlockCheckpoint | None,
    llm: LLM,
    plain: list[Completed],
    how: Examination,
) -> SelfTest:
    """Decode with the whole drafter, as the engine would."""
    if checkpoint is not None and pair.method != "combined":
        # Built from what was read, so that schemas and targets the engine refuses run as well.
        drafter = block_drafter(llm, checkpoint, SELF_TEST_CACHE)
        drafting = llm.sibling(drafter=drafter, length_policy="fixed")
    else:
        drafting = llm.sibling(speculative_config=pair.speculative, length_policy="fixed")
    findings, found = run_speculative(llm, drafting, plain, how.setting)
    # A lone network was judged at every position already; text without repetition drafts nothing.
    is_judged = checkpoint is not None or pair.method in _TEXT_METHODS
    if pair.record is not None or not is_judged:
        findings += judged(found, pair.record, pair.method)
    return SelfTest(pair.method, found, pair.record, findings)
