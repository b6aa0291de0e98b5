"""What this process computes on, in words."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from outrider.native.availability import instruction_sets


def cpu_model() -> str:
    """Name of the processor, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text("utf-8"), re.M)
        if found:
            return found[1].strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return output_of(command) or platform.machine()
    return platform.processor() or platform.machine()


def machine_name(device: str, cores: int) -> str:
    """Tell apart machines on which a step takes different times."""
    sets = "+".join(instruction_sets()) or platform.machine()
    return f"{cpu_model()}, {cores} cores, {sets}, {device}"


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def output_of(command: list[str]) -> str | None:
    """What a command printed; None if it is missing or failed."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
