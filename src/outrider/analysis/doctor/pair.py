"""What is examined: a target and a drafter of any kind, recognised by what lies on the disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from outrider.analysis.doctor.files import (
    BlockFiles,
    Expectation,
    Flatten,
    eval_record,
    is_block_config,
    read_block,
)
from outrider.analysis.doctor.findings import Finding
from outrider.core.paths import expanded
from outrider.drafters.block.checkpoint import CONFIG_FILE
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.ngram_table_file import TABLE_FILE
from outrider.drafters.shipped import FALLBACK, MANIFEST, find_shipped, read_manifest
from outrider.errors import ConfigError, ModelError, OutriderError
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.fields import read_json
from outrider.models.fingerprint import target_hash

FIGURES: Final = "eval.json"
BEST_OF_A_RUN: Final = "best"
_SHORT_HASH: Final = 12


@dataclass(slots=True)
class Pair:
    """A target and the parts of its drafter.

    `speculative` is what the engine would be told, None where it cannot load the files as they
    are. `record` is about all parts together, `findings` what was noticed while opening.
    """

    target: Checkpoint
    method: str
    block: BlockFiles | None = None
    table: str | None = None
    draft_model: Checkpoint | None = None
    speculative: SpeculativeConfig | None = None
    record: Expectation | None = None
    findings: list[Finding] = field(default_factory=list)


def open_pair(
    target: Checkpoint, drafter: str | None, draft_len: int | None, flatten: Flatten
) -> Pair:
    """Open the drafter at a path or of a name; None: the one shipped for the target, if any.

    Raises:
        ModelNotFound: There is nothing of that name.
        ConfigError: It is a kind of file that no drafter has.
    """
    if drafter is None:
        found = find_shipped(target)
        if found is None:
            options = SpeculativeConfig(method=FALLBACK, num_speculative_tokens=draft_len)
            return Pair(target, FALLBACK, speculative=options)
        return _shipped(target, found.folder, draft_len, flatten)
    path = expanded(drafter)
    if path.is_dir():
        return _folder(target, path, draft_len, flatten)
    if path.suffix == ".safetensors" and path.is_file():
        return _table(target, path, draft_len)
    return _model(target, drafter, draft_len)


def _folder(target: Checkpoint, path: Path, draft_len: int | None, flatten: Flatten) -> Pair:
    if (path / MANIFEST).is_file():
        return _shipped(target, path, draft_len, flatten)
    if not (path / CONFIG_FILE).is_file() and (path / BEST_OF_A_RUN / CONFIG_FILE).is_file():
        path = path / BEST_OF_A_RUN
    if not (path / CONFIG_FILE).is_file() and (path / TABLE_FILE).is_file():
        return _table(target, path / TABLE_FILE, draft_len)
    if not (path / CONFIG_FILE).is_file():
        raise ConfigError(f"{path} holds no drafter: no {CONFIG_FILE}, {MANIFEST} or {TABLE_FILE}")
    try:
        raw = read_json(path / CONFIG_FILE)
    except ModelError as error:
        return Pair(target, "block", findings=[Finding("drafter-unreadable", str(error))])
    if not is_block_config(raw):
        return _model(target, str(path), draft_len)
    return _block(target, path, raw, draft_len, flatten)


def _block(
    target: Checkpoint,
    path: Path,
    raw: Mapping[str, Any],
    draft_len: int | None,
    flatten: Flatten,
) -> Pair:
    method = "dspark" if raw.get("markov_rank") else "dflash"
    pair = Pair(target, method)
    try:
        pair.block = read_block(path, target.spec, flatten)
    except ModelError as error:
        pair.findings.append(Finding("drafter-unreadable", str(error)))
        return pair
    if not pair.block.is_foreign:
        pair.speculative = SpeculativeConfig(
            method=method, model=str(path), num_speculative_tokens=draft_len
        )
    return pair


def _shipped(target: Checkpoint, folder: Path, draft_len: int | None, flatten: Flatten) -> Pair:
    try:
        shipped = read_manifest(folder)
    except (OutriderError, OSError) as error:
        return Pair(target, "shipped", findings=[Finding("drafter-unreadable", str(error))])
    config = shipped.config
    pair = Pair(target, config.method, record=eval_record(folder / FIGURES))
    if shipped.target_hash != (own := target_hash(target)):
        detail = f"made for {shipped.target_hash[:_SHORT_HASH]}, the target is {own[:_SHORT_HASH]}"
        pair.findings.append(Finding("target-hash", detail, MANIFEST))
    network = None if config.method == "ngram-table" else config.model
    if network is not None and (Path(network) / CONFIG_FILE).is_file():
        opened = _folder(target, Path(network), None, flatten)
        pair.block, pair.draft_model = opened.block, opened.draft_model
        pair.findings += opened.findings
    elif network is not None:
        detail = f"{network}, which {MANIFEST} names, is not there"
        pair.findings.append(Finding("drafter-unreadable", detail))
    pair.table = config.model if config.method == "ngram-table" else config.ngram_table
    length = draft_len or config.num_speculative_tokens
    pair.speculative = replace(config, num_speculative_tokens=length)
    return pair


def _table(target: Checkpoint, path: Path, draft_len: int | None) -> Pair:
    options = SpeculativeConfig(
        method="ngram-table", model=str(path), num_speculative_tokens=draft_len
    )
    return Pair(target, "ngram-table", table=str(path), speculative=options)


def _model(target: Checkpoint, name: str, draft_len: int | None) -> Pair:
    options = SpeculativeConfig(method="draft-model", model=name, num_speculative_tokens=draft_len)
    pair = Pair(target, "draft-model", speculative=options)
    try:
        pair.draft_model = open_checkpoint(name)
    except ModelError as error:
        if isinstance(error, FileNotFoundError):
            raise
        pair.findings.append(Finding("drafter-unreadable", str(error), name))
    return pair
