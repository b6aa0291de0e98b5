"""`whatif` end to end on what `bench run` wrote, and what it refuses."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import main
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked

TABLE = "rtx5090-qwen3-4b"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A tiny model, and the log and the trace of a run of it."""
    folder = tmp_path_factory.mktemp("whatif")
    model = str(write_tiny_checkpoint(folder / "model", tiny_spec(vocab_size=258), seed=5))
    prompts, log, trace = (str(folder / name) for name in ("p.jsonl", "log.jsonl", "t.jsonl"))
    rows = [{"prompt": f"one two one two one {n}"} for n in range(3)]
    Path(prompts).write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with unchecked():
        options = "--backend torch --max-tokens 24 --repeats 1 --draft suffix --draft-len 4"
        files = ["--prompts", prompts, "--log", log, "--trace", trace]
        code = main(["bench", "run", "--model", model, *options.split(), *files])
    assert code == 0
    return model, log, trace


def test_the_log_of_a_run(
    files: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a log that the command which it is for cannot read."""
    _, log, _ = files
    plot = tmp_path / "load.svg"
    options = f"--cost-table {TABLE} --lengths 2 4 --concurrency 1 3 --requests 3 --draft suffix"
    code = main(["whatif", log, *options.split(), "--plot", str(plot), "--json"])
    out, err = capsys.readouterr()
    record = json.loads(out.splitlines()[-1])
    assert code == 0
    assert [one["scenario"] for one in record["outcomes"]] == 2 * [
        "plain",
        "suffix 2",
        "suffix 4",
        "suffix throughput",
    ]
    assert record["outcomes"][0]["total_output_tokens"] == 72
    assert record["outcomes"][2]["mean_accept_length"] > 1
    assert "taken as free" in err
    assert "requests at a time" in plot.read_text("utf-8")


def test_the_trace_of_a_run_fitted_to_it(
    files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a trace whose drafter or times are lost on the way."""
    _, _, trace = files
    code = main(["whatif", trace, "--cost-table", TABLE, "--fit", "--lengths", "4", "--json"])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert record["fit"]["forward"] > 0
    assert record["outcomes"][1]["scenario"] == "suffix 4"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["LOG", "--fit"], "--fit needs the times of a trace"),
        (["LOG", "--model", "MODEL", "--draft", "dspark"], ""),
        (["LOG", "--draft", "combined"], "name it with --model"),
        (["TRACE", "--draft", "suffix"], "leave --draft out"),
        (["TRACE"], "the cost table knows no drafter like 'suffix'"),
        (["TRACE", "--model", "other"], "line 1: a trace of"),
        (["LOG", "--drafting", "dflsh"], "the cost table has no drafter 'dflsh'"),
        (["LOG", "--rate", "0"], "the rate is 0"),
        (["LOG", "--rate", "1", "--concurrency", "1", "2"], "give one"),
        (["nowhere.jsonl"], "there is no file"),
        (["LOG", "--cost-table", "nowhere.json"], "or name a shipped one: rtx5090"),
        (["LOG", "--speculative-config", "{}"], "has no method"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_a_sentence(
    files: tuple[str, str, str],
    options: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches tracebacks, and options that are silently ignored."""
    names = dict(zip(("MODEL", "LOG", "TRACE"), files, strict=True))
    argv = [names.get(each, each) for each in options]
    if "--cost-table" not in argv:
        argv += ["--cost-table", TABLE]
    assert main(["whatif", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert reason in err
    assert "Traceback" not in err
