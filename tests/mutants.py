"""Runs the named mutants: `python -m tests.mutants [NAME...]`, or `scripts/check mutants`.

Each mutant is applied to a temporary copy of `src/`, and each of its tests runs against that copy.
A mutant is killed when every one of them fails. Anything else ends with exit status 1: a test that
stays green (the mutant survived), a test that is red on the sound source too, a test that cannot be
collected, or an old text that is not found exactly once.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.mutants_list import MUTANTS, Mutant

ROOT: Final = Path(__file__).resolve().parent.parent
PASSED: Final = 0
FAILED: Final = 1


class MutantError(Exception):
    """A mutant that does not fit the source or the tests as they are now."""


def mutated(mutant: Mutant, source: str) -> str:
    """Give the file's text with the breakage in it; `MutantError` if it does not fit."""
    count = source.count(mutant.old)
    if count != 1:
        raise MutantError(f"old text found {count} times in {mutant.file}, must be once")
    if mutant.new == mutant.old:
        raise MutantError("new text equals old text")
    return source.replace(mutant.old, mutant.new)


def verdict(mutant: Mutant, root: Path) -> str:
    """Say `killed` or what went wrong, having run the mutant's tests."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        src = Path(scratch) / "src"
        shutil.copytree(root / "src", src, ignore=shutil.ignore_patterns("__pycache__"))
        path = src / mutant.file
        try:
            path.write_text(mutated(mutant, path.read_text("utf-8")), "utf-8")
        except (MutantError, FileNotFoundError) as error:
            return f"does not apply: {error}"
        for test in mutant.tests:
            status = _pytest([test], src, root)
            if status == PASSED:
                return f"SURVIVED {test}"
            if status != FAILED:
                return f"pytest ended with status {status} on {test}"
    return "killed"


def run(mutants: Sequence[Mutant], root: Path) -> bool:
    """Print one line per mutant; True when all of them were killed."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    if tests and (status := _pytest(tests, root / "src", root)) != PASSED:
        print(f"the mutants' tests are not green on the sound source (status {status})")
        return False
    width = max((len(mutant.name) for mutant in mutants), default=0)
    num_killed = 0
    for mutant in mutants:
        answer = verdict(mutant, root)
        num_killed += answer == "killed"
        print(f"{mutant.name:<{width}}  {mutant.file}  {answer}", flush=True)
    print(f"{num_killed} of {len(mutants)} mutants killed")
    return num_killed == len(mutants)


def chosen(names: Iterable[str]) -> list[Mutant]:
    """Mutants by name, all of them without names; `MutantError` for an unknown one."""
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise MutantError(f"no mutant named {', '.join(unknown)}; known: {', '.join(by_name)}")
    return [by_name[name] for name in names] or list(MUTANTS)


def _pytest(tests: Sequence[str], src: Path, root: Path) -> int:
    """Exit status of pytest on `tests`, with the package taken from `src`."""
    # The derandomised profile: a verdict must not depend on what hypothesis happens to draw.
    options = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=ci"]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(src)},
        capture_output=True,
        check=False,
    )
    return finished.returncode


def main() -> int:
    """Run the mutants named on the command line, or all."""
    try:
        mutants = chosen(sys.argv[1:])
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if run(mutants, ROOT) else 1


if __name__ == "__main__":
    sys.exit(main())
