"""The repository as the architecture tests see it: which files there are, and their text."""

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SRC: Final = ROOT / "src"
PACKAGE: Final = SRC / "outrider"


def source_files() -> list[Path]:
    """Every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def module_names(paths: Iterable[Path]) -> list[str]:
    """Dotted names of package files, a sub-package under its own name."""
    names = [".".join(path.relative_to(SRC).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file git has or would add; outside a git checkout, every file not hidden or built."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return tuple(path for path in sorted(ROOT.rglob("*")) if _is_unpacked_source(path))
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in sorted(paths) if path.is_file())


def _is_unpacked_source(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    built = {"build", "dist", "__pycache__"}
    return path.is_file() and not any(
        part in built or (part.startswith(".") and part != ".ci") for part in parts
    )


def pages() -> list[Path]:
    """Every Markdown page of the repository."""
    return [path for path in repository_files() if path.suffix == ".md"]


def show(path: Path) -> str:
    """Path below the root, as failure messages and test ids name it."""
    return path.relative_to(ROOT).as_posix()


def run_python(code: str) -> str:
    """Run code in a fresh interpreter on this tree's package; what it printed."""
    finished = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    if finished.returncode != 0:
        raise AssertionError(f"the interpreter failed:\n{finished.stderr}")
    return finished.stdout
