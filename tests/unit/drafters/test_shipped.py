"""Which shipped drafter fits a target, and what `auto` means where none does."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.calibration import Calibration
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.shipped import (
    ASSETS,
    calibration_of,
    find_shipped,
    folder_of,
    folders,
    read_manifest,
    shipped_drafters,
    without_auto,
)
from outrider.engine.llm import LLM
from outrider.engine.surroundings import drafter_name
from outrider.errors import ConfigError, CorruptCheckpoint
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.fingerprint import target_hash
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    folder = tmp_path_factory.mktemp("targets")
    return [
        open_checkpoint(write_tiny_checkpoint(folder / str(seed), tiny_spec(vocab_size=258), seed))
        for seed in (1, 2)
    ]


def ship(place: Path, target: Checkpoint, **changes: Any) -> Path:
    folder = place / str(changes.pop("name", "tiny"))
    folder.mkdir(parents=True)
    manifest = {
        "version": 1,
        "target": "tiny",
        "target_hash": target_hash(target),
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest | changes), "utf-8")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    return tmp_path / "drafts"


def test_files_are_found_in_the_folder(cache: Path, targets: list[Checkpoint]) -> None:
    """Catches a model or a table that is looked for where the command was started."""
    config = {"method": "combined", "model": ".", "ngram_table": "table.safetensors"}
    folder = ship(cache, targets[0], speculative_config=config)
    found = read_manifest(folder).config
    assert found.model is not None
    assert Path(found.model) == folder
    assert found.ngram_table == str(folder / "table.safetensors")


def test_the_hash_decides(cache: Path, targets: list[Checkpoint]) -> None:
    """Catches a drafter picked by name or by shape: both targets have the same."""
    ship(cache, targets[1], name="a-tiny")
    folder = ship(cache, targets[0], name="b-tiny")
    found = find_shipped(targets[0])
    assert found is not None
    assert found.folder == folder
    assert find_shipped(targets[1], [cache.parent / "nowhere"]) is None


def test_a_model_is_a_path_inside_the_folder(cache: Path, targets: list[Checkpoint]) -> None:
    """Catches a path that only works from the folder it was written in."""
    options = {"method": "dspark", "model": "network"}
    folder = ship(cache, targets[0], speculative_config=options)
    assert read_manifest(folder).config.model == str(folder / "network")


def test_a_calibration_lies_beside_the_drafter(
    cache: Path, targets: list[Checkpoint], tmp_path: Path
) -> None:
    """Catches one that is not found, or that is taken for a drafter of the user's own."""
    options = {"method": "dspark", "model": "network"}
    folder = ship(cache, targets[0], speculative_config=options)
    config = read_manifest(folder).config
    assert folder_of(config) == folder
    assert calibration_of(config) is None
    (folder / "calibration.json").write_text("{}")
    assert calibration_of(config) == folder / "calibration.json"
    assert drafter_name(config, 7) == "dspark tiny, up to 7"
    own = SpeculativeConfig(method="dspark", model=str(tmp_path / "mine"))
    assert folder_of(own) is None
    # Another network beside the shipped table costs something else, and is believed otherwise.
    mixed = replace(own, ngram_table=str(folder / "ngram-table.safetensors"))
    assert folder_of(mixed) is None
    assert drafter_name(mixed, 7) == drafter_name(own, 7)
    assert calibration_of(own) is None
    assert drafter_name(own, 7) == f"dspark {tmp_path / 'mine'}, up to 7"


def test_what_is_shipped_with_a_calibration_fits_it() -> None:
    """Catches a drafter that was replaced, or a folder renamed, without its calibration."""
    found = 0
    for folder in sorted(each.parent for each in ASSETS.glob("*/calibration.json")):
        shipped, path = read_manifest(folder), folder / "calibration.json"
        calibration = Calibration.from_json(path.read_text("utf-8"), str(path))
        length = shipped.config.num_speculative_tokens
        assert length is not None
        assert calibration.drafter == drafter_name(shipped.config, length)
        assert shipped.target_hash.startswith(calibration.model.rsplit(" ", 1)[-1])
        assert calibration.num_positions == length
        assert set(calibration.kinds) == {"greedy", "matching"}
        assert all(own.effects for kind in calibration.kinds.values() for own in kind.values())
        found += 1
    assert found == 2


def test_auto_takes_what_is_shipped_and_keeps_a_length(
    cache: Path, targets: list[Checkpoint]
) -> None:
    """Catches an `auto` that overrides what the user asked for, or touches other methods."""
    ship(cache, targets[0])
    auto = SpeculativeConfig(method="auto")
    shipped = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    assert without_auto(auto, targets[0]) == shipped
    longer = SpeculativeConfig(method="auto", num_speculative_tokens=9)
    expected = SpeculativeConfig(method="ngram", num_speculative_tokens=9)
    assert without_auto(longer, targets[0]) == expected
    fallback = SpeculativeConfig(method="suffix", num_speculative_tokens=9)
    assert without_auto(longer, targets[1]) == fallback
    named = SpeculativeConfig(method="suffix")
    assert without_auto(named, targets[0]) is named
    assert without_auto(None, targets[0]) is None


@unchecked()
def test_an_engine_says_what_it_drafts_with(cache: Path, targets: list[Checkpoint]) -> None:
    """Catches `auto` left in the config, where reports would print it."""
    ship(cache, targets[0])
    llm = LLM(str(targets[0].path), dtype="float64", speculative_config={"method": "auto"})
    assert llm.config.speculative == read_manifest(cache / "tiny").config
    other = llm.sibling(speculative_config={"method": "auto", "num_speculative_tokens": 2})
    assert other.config.speculative is not None
    assert other.config.speculative.num_speculative_tokens == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "version 2"),
        ({"target_hash": None}, "target_hash"),
        ({"speculative_config": "ngram"}, "no speculative config"),
        ({"speculative_config": {"method": "auto"}}, "no speculative config"),
        ({"speculative_config": {"method": "ngram", "lenght": 3}}, "lenght"),
    ],
)
def test_a_bad_manifest_is_left_out_with_a_word(
    cache: Path,
    targets: list[Checkpoint],
    changes: dict[str, Any],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Catches a default that fails because of a folder nobody asked for."""
    folder = ship(cache, targets[0], name="a-bad", **changes)
    ship(cache, targets[0], name="b-good")
    with pytest.raises((ConfigError, CorruptCheckpoint), match=says):
        read_manifest(folder)
    with caplog.at_level(logging.WARNING):
        found = find_shipped(targets[0])
    assert found is not None
    assert found.folder.name == "b-good"
    assert says in caplog.text
    (folder / "manifest.json").write_text("{", "utf-8")
    assert [each.folder.name for each in shipped_drafters([cache])] == ["b-good"]


def test_the_cache_comes_before_the_package(cache: Path) -> None:
    """Catches a drafter trained here that never gets its turn."""
    assert folders() == (cache, ASSETS)


def test_what_the_package_ships_can_be_read() -> None:
    """Catches a manifest, a card or a file of it that was forgotten."""
    for folder in sorted(ASSETS.glob("*/")):
        shipped = read_manifest(folder)
        assert (folder / "MODEL_CARD.md").is_file()
        assert (folder / "eval.json").is_file()
        if shipped.config.model is not None:
            assert Path(shipped.config.model).exists()
