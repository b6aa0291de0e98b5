"""A measurement says where it was made."""

import json
import subprocess
from pathlib import Path

import pytest

from outrider.analysis import environment


def test_the_record_is_complete_json() -> None:
    """Catches a number nobody can place, or a version object that JSON cannot hold."""
    record = environment.environment(["outrider", "bench"])
    json.dumps(record)
    for name in ("cpu", "cores", "usable_cores", "threads", "platform", "python", "torch", "date"):
        assert record[name], name
    assert record["command"] == ["outrider", "bench"]


def test_a_foreign_repository_gives_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches the commit of the project around a virtual environment being reported as ours."""
    for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=b", "commit",
                    "-q", "--allow-empty", "-m", "c"]):  # fmt: skip
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    file = tmp_path / "environment.py"
    file.write_text("", "utf-8")
    monkeypatch.setattr(environment, "__file__", str(file))
    assert environment.git_commit() is None
    subprocess.run(["git", "-C", str(tmp_path), "add", "environment.py"], check=True)
    commit = environment.git_commit()
    assert commit is not None
    assert commit.endswith("+")
