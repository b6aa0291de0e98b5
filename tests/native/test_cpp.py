"""The compute core's own tests, compiled with the machine's compiler and run.

`CXX` and `CXXFLAGS` are honoured, as by other builds; flags in `CXXFLAGS` come last, so
`-fsanitize=address,undefined` makes this a check of memory and undefined behaviour.
"""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import harness

SOURCES: Final = harness.ROOT / "src" / "outrider" / "native" / "csrc"
TESTS: Final = harness.ROOT / "tests" / "native" / "cpp"
PARTS: Final = (
    "blend",
    "cpu",
    "gemm*",
    "ngram_lookup",
    "pack*",
    "quant",
    "suffix_automaton",
    "threads",
)
FLAGS: Final = ("-std=gnu++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-w")
AVX2: Final = ("-mavx2", "-mfma", "-mf16c")
AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
Flags = dict[str, tuple[str, ...]]
X86: Final[Flags] = {"avx2": AVX2, "avxvnni": (*AVX2, "-mavxvnni"), "avx512": (*AVX2, *AVX512)}
ARM: Final[Flags] = {"neon": ("-march=armv8.2-a+dotprod",)}
LEVELS: Final[dict[str, Flags]] = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}
"""Flags of the files named after an instruction set, by machine; the build has the same."""


def compiler() -> list[str]:
    """The command of the C++ compiler, or a skip."""
    named = shlex.split(os.environ.get("CXX", ""))
    wanted = [named] if named else [["g++"], ["clang++"], ["c++"]]
    found = [command for command in wanted if shutil.which(command[0]) is not None]
    if not found:
        harness.missing("there is no C++ compiler")
    return found[0]


def compilations() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Files of the test program that mean something on this machine, and their extra flags."""
    levels = LEVELS.get(platform.machine(), {})
    yield from ((path, ()) for path in sorted(TESTS.glob("*.cpp")))
    for path in sorted(path for part in PARTS for path in SOURCES.glob(f"{part}.cpp")):
        level = path.stem.rpartition("_")[2]
        if level in {**X86, **ARM} and level not in levels:
            continue
        yield path, levels.get(level, ())


def run(command: list[str]) -> str:
    """Run a command without preloaded libraries; what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compute_core(tmp_path: Path) -> None:
    """Catches a kernel, a packing or a thread pool that only C++ can call in its odd cases."""
    cxx = compiler()
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))
    objects = []
    for path, flags in compilations():
        objects.append(str(tmp_path / f"{path.stem}.o"))
        files = ["-I", str(SOURCES), "-c", str(path), "-o", objects[-1]]
        run([*cxx, *FLAGS, *flags, *extra, *files])
    program = str(tmp_path / "tests")
    run([*cxx, "-pthread", *extra, *objects, "-o", program])
    said = run([program])
    assert ", 0 failed checks" in said
