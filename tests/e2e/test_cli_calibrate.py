"""`outrider calibrate` end to end on a tiny model: fit, write, judge what was written."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.cli.main import main
from outrider.core.calibration import Calibration
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked


@pytest.fixture
def options(tmp_path: Path) -> Iterator[list[str]]:
    model = write_tiny_checkpoint(tmp_path / "model", tiny_spec(vocab_size=258), seed=5)
    path = tmp_path / "words.jsonl"
    rows = [{"prompt": f"one two one two one two one two {i}", "domain": "x"} for i in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with unchecked():
        yield [
            *("calibrate", "--prompts", str(path), "--model", str(model), "--dtype", "float64"),
            *("--draft", "suffix", "--max-tokens", "24"),
        ]


def test_what_is_fitted_can_be_judged(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches kinds that are mixed up, a file that cannot be read back, a kind that is lost."""
    path = tmp_path / "found.json"
    assert main([*options, "--temperature", "0", "0.8", "--out", str(path)]) == 0
    fitted = Calibration.from_json(path.read_text("utf-8"), "f")
    assert fitted.temperatures == {"greedy": 0.0, "matching": 0.8}
    assert fitted.kinds["greedy"] != fitted.kinds["matching"]
    assert "matching requests" in capsys.readouterr().out
    assert main([*options, "--judge", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["calibration"]["kinds"].keys() == {"greedy", "matching"}
    found = {
        (each["domain"], each["prediction"])
        for each in record["scores"]["greedy"]
        if each["position"] == 1
    }
    assert found == {(d, p) for d in ("x", "all") for p in ("raw", "calibrated", "live")}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--judge"], "no calibration is shipped"),
        (["--temperature", "0.5", "0.8"], "name 0 and one other at most"),
        (["--limit", "1"], "has 1 prompt"),
    ],
    ids=["nothing", "one-kind", "halves"],
)
def test_what_cannot_be_done_is_said(
    options: list[str], more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a judgement of nothing, and a fit that is silently thrown away for another."""
    assert main([*options, *more]) == 2
    assert says in capsys.readouterr().err
