"""Where a number was measured: machine, versions, commit, command, date."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import outrider
from outrider.engine.machine import available_cores, cpu_model, output_of
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


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, `+` if changed; None if it is not in git."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    # An installed package may lie inside somebody else's repository, ignored by it.
    if output_of([*git, "ls-files", "--error-unmatch", here.name]) is None:
        return None
    commit = output_of([*git, "rev-parse", "--short=12", "HEAD"])
    if commit is None:
        return None
    return f"{commit}+" if output_of([*git, "status", "--porcelain"]) else commit
