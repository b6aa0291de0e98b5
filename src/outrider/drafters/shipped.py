"""Drafters that come with the package, and which of them fits a target.

A shipped drafter is a folder with a `manifest.json`:

    {"version": 1, "target": "smollm2-135m", "target_hash": "…",
     "speculative_config": {"method": "combined", "model": "."}}

`target_hash` is that of `models.fingerprint` and decides; `target` is for people. The config is
what method `auto` stands for; its model and its n-gram table are paths inside the folder. Beside
them there may be a `calibration.json`, made by `outrider calibrate` for this drafter. Folders
of this form are also looked for in `drafts/` of the cache directory, before those of the package.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from outrider.drafters.config import SpeculativeConfig
from outrider.errors import ConfigError, OutriderError
from outrider.models import hub
from outrider.models.checkpoint import Checkpoint
from outrider.models.fields import Fields, read_json
from outrider.models.fingerprint import target_hash

logger = logging.getLogger(__name__)

AUTO: Final = "auto"
FALLBACK: Final = "suffix"
MANIFEST: Final = "manifest.json"
CALIBRATION: Final = "calibration.json"
VERSION: Final = 1
ASSETS: Final = Path(__file__).resolve().parent.parent / "assets" / "drafts"


@dataclass(frozen=True, slots=True)
class Shipped:
    """One folder. `config` names its files by their full paths."""

    folder: Path
    target: str
    target_hash: str
    config: SpeculativeConfig


def folders() -> tuple[Path, ...]:
    """Where shipped drafters are looked for, first come first served."""
    return (hub.cache_dir() / "drafts", ASSETS)


def folder_of(config: SpeculativeConfig) -> Path | None:
    """Give the shipped folder that a drafter is from; None where any file of it is a user's."""
    named = [name for name in (config.model, config.ngram_table) if name is not None]
    folders = list({Path(name).parent for name in named})
    if len(folders) == 1 and (folders[0] / MANIFEST).is_file():
        return folders[0]
    return None


def calibration_of(config: SpeculativeConfig) -> Path | None:
    """Give the calibration that is shipped with the drafter of a config, if there is one."""
    folder = folder_of(config)
    path = None if folder is None else folder / CALIBRATION
    return path if path is not None and path.is_file() else None


def read_manifest(folder: Path) -> Shipped:
    """Read the manifest in `folder`.

    Raises:
        CorruptCheckpoint: A field is missing or of the wrong type.
        ConfigError: It is of another version, or its speculative config cannot be used.
    """
    record = read_json(folder / MANIFEST)
    fields = Fields(record)
    version = fields.integer("version")
    if version != VERSION:
        raise ConfigError(
            f"{folder / MANIFEST} is of version {version}, but this release reads {VERSION}"
        )
    options = record.get("speculative_config")
    if not isinstance(options, dict) or options.get("method") == AUTO:
        raise ConfigError(f"{folder / MANIFEST} has no speculative config that can be used")
    config = SpeculativeConfig.from_options(options)
    if config.model is not None:
        config = replace(config, model=str(folder / config.model))
    if config.ngram_table is not None:
        config = replace(config, ngram_table=str(folder / config.ngram_table))
    return Shipped(folder, fields.text("target"), fields.text("target_hash"), config)


def shipped_drafters(places: Sequence[Path] | None = None) -> Iterator[Shipped]:
    """Go through what is there; a folder that cannot be used is skipped with a warning."""
    for place in folders() if places is None else places:
        for manifest in sorted(place.glob(f"*/{MANIFEST}")):
            try:
                yield read_manifest(manifest.parent)
            except (OutriderError, OSError) as error:
                logger.warning("the drafter in %s is left out: %s", manifest.parent, error)


def find_shipped(checkpoint: Checkpoint, places: Sequence[Path] | None = None) -> Shipped | None:
    """Give the first drafter made for this very target."""
    own_hash: str | None = None
    for each in shipped_drafters(places):
        # Reading the embedding takes a moment, so not before there is something to compare.
        own_hash = own_hash or target_hash(checkpoint)
        if each.target_hash == own_hash:
            return each
    return None


def without_auto(
    config: SpeculativeConfig | None, checkpoint: Checkpoint
) -> SpeculativeConfig | None:
    """Replace method `auto` by the drafter shipped for the target, or by `suffix` without one.

    A draft length that was asked for stays.
    """
    if config is None or config.method != AUTO:
        return config
    found = find_shipped(checkpoint)
    if found is None:
        logger.info("no drafter is shipped for this target; drafting with %s", FALLBACK)
        return replace(config, method=FALLBACK)
    logger.info("drafting with %s", found.folder)
    if config.num_speculative_tokens is None:
        return found.config
    return replace(found.config, num_speculative_tokens=config.num_speculative_tokens)
