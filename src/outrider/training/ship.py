"""Packs a trained drafter for shipping: weights made small, the table, the figures, and a card.

The folder is what `drafters.shipped` looks for: `manifest.json`, `network/`,
`ngram-table.safetensors`, `eval.json` and `MODEL_CARD.md`. Paths of the machine it was made on are
left out of all of them.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.drafters.block.checkpoint import (
    BlockCheckpoint,
    load_checkpoint,
    require_target,
    save_checkpoint,
    write_json,
)
from outrider.drafters.ngram_table_file import TABLE_FILE, open_table
from outrider.drafters.shipped import CALIBRATION, MANIFEST, VERSION
from outrider.errors import ConfigError
from outrider.models.checkpoint import Checkpoint
from outrider.models.fields import read_json
from outrider.models.fingerprint import target_hash
from outrider.training.model_card import Card, card_text

NETWORK, TABLE, FIGURES, CARD = "network", TABLE_FILE, "eval.json", "MODEL_CARD.md"
PROVENANCE = "provenance.json"
# A matrix of fewer rows is a head of one number or so: too small to be worth it.
_FEWEST_ROWS = 32
_BLOCK_VALUES = 32
_READABLE = 0o644
_ABSOLUTE = re.compile(r"(?<![\w.~])/(?:[^\s/]+/)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What is packed.

    `network` is a block drafter's checkpoint, `table` an n-gram table; at least one is there.
    `kind` is the ggml type its matrices are stored in. `options` are further fields of the
    speculative config, such as the draft length. `record` is what `outrider eval --json` printed,
    `calibration` what `outrider calibrate --out` wrote for what is packed.
    """

    name: str
    target: Checkpoint
    network: Path | None = None
    table: Path | None = None
    kind: str = "q8_0"
    options: Mapping[str, Any]
    record: Mapping[str, Any] | None = None
    calibration: Path | None = None
    data: Path | None = None
    licence: str = "Apache-2.0"
    notes: tuple[str, ...] = ()
    """Further lines of the card, such as where the prompts came from."""


def ship(place: Path, parcel: Parcel) -> Path:
    """Write the folder `place / parcel.name` and return it; files of the same names are replaced.

    A calibration that lies there is removed unless the parcel brings one.

    Raises:
        ConfigError: There is nothing to pack.
        ModelError: A part is damaged or was made for another target.
    """
    if parcel.network is None and parcel.table is None:
        raise ConfigError("there is nothing to ship; name a network, a table or both")
    folder = place / parcel.name
    folder.mkdir(parents=True, exist_ok=True)
    found_hash = target_hash(parcel.target)
    network = provenance = table = None
    if parcel.network is not None:
        provenance = _without_folders(read_json(parcel.network / PROVENANCE))
        network = _pack_network(parcel, found_hash, folder / NETWORK)
        write_json(folder / NETWORK / PROVENANCE, provenance)
    if parcel.table is not None:
        path = parcel.table / TABLE if parcel.table.is_dir() else parcel.table
        table = open_table(str(path), parcel.target)
        _copy_whole(path, folder / TABLE)
    config = speculative_options(parcel, provenance or {})
    manifest = {
        "version": VERSION,
        "target": parcel.name,
        "target_hash": found_hash,
        "speculative_config": config,
        "licence": parcel.licence,
    }
    write_json(folder / MANIFEST, manifest)
    calibration = _pack_calibration(parcel.calibration, folder / CALIBRATION)
    figures = None if parcel.record is None else _figures(parcel.record)
    if figures is not None:
        write_json(folder / FIGURES, figures)
    card = Card(
        target=parcel.name,
        target_hash=found_hash,
        config=config,
        network=None if network is None else network.config,
        num_parameters=0 if network is None else _num_parameters(network),
        kind=parcel.kind,
        table=None if table is None else table.header,
        table_entries=0 if table is None else len(table),
        sizes={"network": _num_bytes(folder / NETWORK), "table": _num_bytes(folder / TABLE)},
        provenance=provenance or {},
        calibration=calibration,
        data={} if parcel.data is None else data_facts(parcel.data),
        figures=figures,
        licence=parcel.licence,
        notes=parcel.notes,
    )
    (folder / CARD).write_text(card_text(card), "utf-8")
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(_READABLE)
    return folder


def _copy_whole(source: Path, path: Path) -> None:
    """Put a copy in place at once: an engine that has mapped the old file keeps it."""
    unfinished = path.with_name(path.name + ".part")
    shutil.copyfile(source, unfinished)
    unfinished.replace(path)


def data_facts(directory: Path) -> dict[str, int]:
    """Count what a data set holds, from the lines beside its shards.

    Raises:
        ConfigError: A line is not what `outrider data generate` writes.
    """
    facts = {"documents": 0, "tokens": 0, "tokens written by the target": 0}
    for path in sorted(directory.glob("shard-*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            try:
                one = json.loads(line)
                length, prompt = int(one["len"]), int(one["prompt_len"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}, line {number}: no line of a data set") from error
            facts["documents"] += 1
            facts["tokens"] += length
            facts["tokens written by the target"] += length - prompt
    return facts


def speculative_options(parcel: Parcel, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Give the speculative config that drafts with all parts of the parcel.

    A table is always asked beside the request's own text, which costs nothing.
    """
    method = str(provenance.get("method", "dspark"))
    if parcel.network is None:
        return {"method": "combined", "ngram_table": TABLE, **parcel.options}
    if parcel.table is None:
        return {"method": method, "model": NETWORK, **parcel.options}
    parts = {"model": NETWORK, "network": method, "ngram_table": TABLE}
    return {"method": "combined", **parts, **parcel.options}


def _pack_network(parcel: Parcel, found_hash: str, folder: Path) -> BlockCheckpoint:
    assert parcel.network is not None
    checkpoint = load_checkpoint(parcel.network)
    require_target(checkpoint.config, found_hash, parcel.name)
    kinds = {
        name: parcel.kind
        for name, values in checkpoint.network.state_dict().items()
        if values.ndim == len(("rows", "columns"))
        and values.shape[0] >= _FEWEST_ROWS
        and values.shape[1] % _BLOCK_VALUES == 0
    }
    save_checkpoint(folder, checkpoint, dtype=torch.float32, kinds=kinds)
    # What was written must be what a user reads; a torn or misread file would only draft badly.
    return load_checkpoint(folder)


def _pack_calibration(source: Path | None, path: Path) -> dict[str, Any] | None:
    if source is None:
        # One that was made for what lay here before would mislead.
        path.unlink(missing_ok=True)
        return None
    calibration: dict[str, Any] = read_json(source)
    _copy_whole(source, path)
    return calibration


def _num_parameters(checkpoint: BlockCheckpoint) -> int:
    return sum(values.numel() for values in checkpoint.network.state_dict().values())


def _num_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(each.stat().st_size for each in path.iterdir())
    return path.stat().st_size if path.is_file() else 0


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the figures of `outrider eval` without the list of prompts."""
    if "mean_accept_length" not in record or "runs" not in record:
        raise ConfigError("the figures are no record of `outrider eval`; save what --json prints")
    runs = [
        {name: value for name, value in run.items() if name != "prompts"} for run in record["runs"]
    ]
    cleaned: dict[str, Any] = _without_folders({**record, "runs": runs})
    return cleaned


def _without_folders(value: Any) -> Any:
    """Shorten absolute paths in all strings to their last parts."""
    if isinstance(value, str):
        return _ABSOLUTE.sub("", value)
    if isinstance(value, Mapping):
        return {name: _without_folders(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return value
