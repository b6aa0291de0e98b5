"""`outrider doctor` from the command line: exit codes, text and JSON."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import main
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.testing.tiny_block import tiny_block_config, write_tiny_block
from tests.unchecked import unchecked

SPEC = tiny_spec(vocab_size=64, num_layers=4)
CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("doctor") / "model", SPEC, seed=1))


def run(capsys: CAPTURE, *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    with unchecked():
        code = main(["doctor", *argv, "--dtype", "float32"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_broken_drafter_fails_and_says_why(model: str, tmp_path: Path, capsys: CAPTURE) -> None:
    """Catches an exit code of 0, or a finding without its meaning and remedy."""
    config = tiny_block_config(SPEC, target_layer_ids=(0, 2), target_hash="00ff")
    drafter = str(write_tiny_block(tmp_path / "drafter", config))
    code, out, _ = run(capsys, drafter, "--model", model, "--no-self-test", "--json")
    assert code == 1
    *text, last = out.splitlines()
    assert text[0].startswith("error: target-hash target_hash: trained for 00ff, the target is ")
    assert text[1].strip().startswith("means: the drafter was trained for other weights")
    assert text[2].strip().startswith("do:    train a drafter for this target")
    assert text[-1].startswith("not healthy: 1 error")
    record = json.loads(last)
    assert record["healthy"] is False
    assert [each["id"] for each in record["findings"] if each["severity"] == "error"] == [
        "target-hash"
    ]
    assert record["memory"]["needed"] == sum(record["memory"]["parts"].values())
    assert "self_test" not in record


def test_without_a_drafter_the_text_itself_is_examined(model: str, capsys: CAPTURE) -> None:
    """Catches a default that is not there, and a self-test that blames text for not repeating."""
    code, out, _ = run(capsys, "--model", model, "--max-tokens", "16", "--json")
    record = json.loads(out.splitlines()[-1])
    assert code == 0
    assert record["method"] == "suffix"
    assert record["self_test"][0]["part"] == "suffix"
    assert [each for each in record["findings"] if each["severity"] != "info"] == []


def test_nothing_at_that_path_is_bad_usage(model: str, tmp_path: Path, capsys: CAPTURE) -> None:
    """Catches a typing error reported as a broken drafter."""
    code, out, err = run(capsys, str(tmp_path / "nowhere"), "--model", model)
    assert (code, out) == (2, "")
    assert "nowhere" in err
    code, _, err = run(capsys, str(tmp_path), "--model", model)
    assert code == 2
    assert "holds no drafter" in err
