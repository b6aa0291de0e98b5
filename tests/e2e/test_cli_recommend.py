"""`recommend` end to end on a trace and on the record of `bench run`."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import main
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked

TABLE = ["--cost-table", "rtx5090-qwen3-4b", "--drafting", "dflash, up to 15"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The trace and the record of a run of a tiny model."""
    folder = tmp_path_factory.mktemp("recommend")
    model = str(write_tiny_checkpoint(folder / "model", tiny_spec(vocab_size=258), seed=5))
    prompts, record, trace = (str(folder / name) for name in ("p.jsonl", "b.json", "t.jsonl"))
    rows = [{"prompt": f"one two one two one {n}"} for n in range(3)]
    Path(prompts).write_text("\n".join(map(json.dumps, rows)), "utf-8")
    options = "--backend torch --max-tokens 24 --repeats 1 --draft suffix --draft-len 4"
    named = ["--prompts", prompts, "--trace", trace, "--model", model]
    with unchecked(), pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(
            "outrider.cli.console.Console.print", lambda _self, line="": said.append(line)
        )
        assert main(["bench", "run", *named, *options.split(), "--json"]) == 0
    Path(record).write_text("\n".join(said), "utf-8")
    return trace, record


@pytest.mark.parametrize("kind", [0, 1])
def test_options_come_out(
    files: tuple[str, str], kind: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches evidence that the other part of the command cannot read."""
    command = ["recommend", "--from", files[kind], *TABLE, "--load", "1:2", "4", "--json"]
    assert main([*command, "--lengths", "2", "4"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    assert [one["concurrency"] for one in record["expected"]] == [1, 4]
    assert set(record["flags"]) == {"outrider", "vllm", "sglang", "tensorrt-llm", "llama.cpp"}
    assert record["latency_statistic"] == ("p99", "mean")[kind]
    assert out.startswith("run: ")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["TRACE", "--cost-table", "rtx5090-qwen3-4b"], "knows no drafter like 'suffix'"),
        (["RECORD", *TABLE, "--fit"], "--fit needs the times of a trace"),
        (["TRACE", "RECORD", *TABLE], "two records are of one drafter"),
        (["TRACE", *TABLE, "--tpot", "0"], "tpot_ms is 0"),
        (["TRACE", *TABLE[:2], "--drafting", "sufix"], "the cost table has no drafter 'sufix'"),
        (["nowhere.json", *TABLE], "there is no file"),
    ],
)
def test_what_cannot_be_weighed_is_refused_in_a_sentence(
    files: tuple[str, str], options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches tracebacks, and evidence that is silently left out."""
    names = dict(zip(("TRACE", "RECORD"), files, strict=True))
    assert main(["recommend", "--from", *(names.get(each, each) for each in options)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert reason in err
