"""Where a number was measured: machine, versions, commit, command, date."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import outrider
from outrider.engine.resolve import available_cores
from outrider.native.availability import fault, instruction_sets


def environment(command: Sequence[str]) -> dict[str, Any]:
    """Describe this process; `command` is what the user typed."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": available_cores(),
        "native": ", ".join(instruction_sets()) or fault(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "outrider": outrider.__version__,
        "git_commit": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
    }


def cpu_model() -> str:
    """Name of the processor, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text("utf-8"), re.M)
        if found:
            return found[1].strip()
    if sys.platform == "darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    return platform.processor() or platform.machine()


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, `+` if changed; None if it is not in git."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    # An installed package may lie inside somebody else's repository, ignored by it.
    if _output([*git, "ls-files", "--error-unmatch", here.name]) is None:
        return None
    commit = _output([*git, "rev-parse", "--short=12", "HEAD"])
    if commit is None:
        return None
    return f"{commit}+" if _output([*git, "status", "--porcelain"]) else commit


def _output(command: Sequence[str]) -> str | None:
    """What a command printed; None if it is missing or failed."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
