"""Builds the native runner into the wheel where there is a C++ compiler; goes on without otherwise.

`OUTRIDER_NATIVE=require` makes a failure an error, for building wheels to publish; `skip` builds
none.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILERS = ("c++", "g++", "clang++")
_BUILD_TOOLS = ["nanobind>=2.4", "cmake>=3.18", "ninja>=1.10"]


class NativeRunnerHook(BuildHookInterface):
    """Compiles `outrider/native/_native` with CMake."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for build tools only where they can be used."""
        return _BUILD_TOOLS if _reason_to_skip() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the result into the wheel or, for an editable install, the tree."""
        mode = os.environ.get("OUTRIDER_NATIVE", "auto")
        fault = _reason_to_skip()
        work = Path(tempfile.mkdtemp(prefix="outrider-native-"))
        library = None
        if fault is None:
            fault, library = _compile(Path(self.root), work)
        if library is None:
            if mode == "require":
                raise RuntimeError(f"the native runner could not be built: {fault}")
            sys.stderr.write(f"outrider: no native runner ({fault}); torch will be used\n")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        package = Path("outrider", "native", library.name)
        if version == "editable":
            shutil.copy2(library, Path(self.root, "src", package))
        else:
            build_data["force_include"][str(library)] = str(package)


def _reason_to_skip() -> str | None:
    if os.environ.get("OUTRIDER_NATIVE") == "skip":
        return "OUTRIDER_NATIVE=skip"
    named = os.environ.get("CXX")
    if named is not None and shutil.which(named.split()[0] if named.split() else "") is None:
        return f"no C++ compiler: CXX is {named!r}"
    if named is None and not any(shutil.which(each) for each in _COMPILERS):
        return f"no C++ compiler: none of {', '.join(_COMPILERS)} is on the path"
    return None


def _compile(root: Path, work: Path) -> tuple[str | None, Path | None]:
    """Give the reason why it failed, or the library."""
    try:
        import nanobind
    except ImportError:
        return "nanobind is not installed", None
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [
        "cmake",
        *("-S", str(root), "-B", str(work), *generator),
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dnanobind_ROOT={nanobind.cmake_dir()}",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    build = ["cmake", "--build", str(work), "--config", "Release", "--parallel"]
    for command in (configure, build):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"cmake does not run: {error}", None
        if done.returncode:
            sys.stderr.write(done.stdout + done.stderr)
            return f"`{' '.join(command[:2])}` failed, see above", None
    found = sorted(work.glob("_native*.so")) + sorted(work.glob("_native*.pyd"))
    return (None, found[0]) if found else ("the build left no library", None)
