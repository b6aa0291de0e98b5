"""`outrider train --method ngram-table`, from tokens to a drafter that generates."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import main
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked

PARAMS = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("train") / "model"
    return str(write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=5))


@pytest.fixture(scope="module")
def data(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty short answers of the target, of which two are held out."""
    path = tmp_path_factory.mktemp("data") / "text.jsonl"
    llm = LLM(model, dtype="float64")
    with unchecked():
        outputs = llm.generate([[3 + i, 4, 5] for i in range(60)], PARAMS)
    lines = [
        json.dumps(
            {
                "tokens": [*each.prompt_token_ids, *each.outputs[0].token_ids],
                "loss_mask": [0] * 3 + [1] * 24,
            }
        )
        for each in outputs
    ]
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_a_trained_table_drafts(
    model: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a table nobody can use, a figure of training text, and sources that get lost."""
    argv = ["train", "--method", "ngram-table", "--model", model, "--data", str(data)]
    with unchecked():
        assert main([*argv, "--output", str(tmp_path / "table"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    path = tmp_path / "table" / "ngram-table.safetensors"
    assert record["bytes"] == path.stat().st_size
    assert record["counted_tokens"] == 58 * 24
    assert record["held_out_documents"] == 2
    assert record["acceptance_length"] >= 1
    argv = ["generate", "abab", "--raw", "--model", model, "--dtype", "float64", "--ignore-eos"]
    argv += ["--draft", "ngram-table", "--draft-model", str(path), "--max-tokens", "24", "--json"]
    with unchecked():
        assert main(argv) == 0
    record = json.loads(capsys.readouterr().out)
    plain = LLM(model, dtype="float64").generate("abab", PARAMS)[0].outputs[0]
    (output,) = record["outputs"]
    assert output["token_ids"] == plain.token_ids
    accepted = output["origins"].count("accepted")
    assert accepted > 0
    assert [source == "ngram-table" for source in output["sources"]] == [
        origin == "accepted" for origin in output["origins"]
    ]
    assert record["sources"]["ngram-table"]["accepted"] == accepted


@pytest.mark.parametrize(
    ("method", "file", "says"),
    [
        ("ngram-tabel", "", "did you mean 'ngram-table'?"),
        ("ngram-table", "absent.jsonl", "there is no training data at"),
    ],
)
def test_bad_usage_is_one_sentence(
    method: str,
    file: str,
    says: str,
    model: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches a traceback, and a method that is guessed."""
    source = str(tmp_path / file) if file else str(data)
    argv = ["train", "--method", method, "--model", model, "--data", source]
    assert main([*argv, "--output", str(tmp_path / "table")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "table").exists()
