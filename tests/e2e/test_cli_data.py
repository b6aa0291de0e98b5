"""`outrider data` end to end, in this process, on a tiny model."""

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.training import shards
from tests.unchecked import unchecked

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data") / "model"
    return write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=5)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{n}", "domain": "words", "prompt": f"say {n}"} for n in range(7)]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Iterator[Invoke]:
    """Run a command; its exit code, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    with unchecked():
        yield run


def generate(tiny: Path, prompts: str, output: Path, *more: str) -> list[str]:
    return [
        "data", "generate", "--model", str(tiny), "--prompts", prompts, "--output", str(output),
        "--max-tokens", "12", "--shard-documents", "3", "--concurrency", "4", "--threads", "1",
        *more,
    ]  # fmt: skip


def test_generate_makes_a_data_set(
    tiny: Path, prompts: str, tmp_path: Path, invoke: Invoke
) -> None:
    """Catches a manifest that does not describe the shards, and a second run that starts over."""
    output = tmp_path / "out"
    code, out, err = invoke(*generate(tiny, prompts, output, "--json"))
    assert code == 0
    record: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert record["tap_layers"] == [0, 1]
    assert record["num_shards"] == 3
    assert record["options"]["max_tokens"] == 12
    assert {p.name for p in output.iterdir()} == {
        "manifest.json", "summary.json", *(f"shard-0000{n}.{e}" for n in range(3)
                                           for e in ("jsonl", "safetensors")),
    }  # fmt: skip
    manifest = json.loads((output / "manifest.json").read_text("utf-8"))
    assert manifest == {key: record[key] for key in manifest}
    for said in ("time       at most", "disk       at most", "cheaper: captured", "tokens/s"):
        assert said in err
    before = {p.name: p.stat().st_mtime_ns for p in output.glob("shard-*")}
    code, _, err = invoke(*generate(tiny, prompts, output))
    assert code == 0
    assert "to do" not in err
    assert {p.name: p.stat().st_mtime_ns for p in output.glob("shard-*")} == before


def test_an_estimate_writes_nothing(
    tiny: Path, prompts: str, tmp_path: Path, invoke: Invoke
) -> None:
    """Catches a dry run that begins a data set."""
    output = tmp_path / "out"
    argv = generate(tiny, prompts, output, "--estimate-only", "--features", "recompute")
    code, _, err = invoke(*argv)
    assert code == 0
    assert "recomputed" in err
    assert not output.exists()


def test_ctrl_c_keeps_finished_shards(
    tiny: Path, prompts: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an interruption that loses or tears shards, or does not say how to go on."""
    output = tmp_path / "out"
    write = shards.DataDirectory.write

    def interrupted(self: shards.DataDirectory, number: int, *rest: Any) -> None:
        if len(list(output.glob("*.jsonl"))) == 2:
            raise KeyboardInterrupt
        write(self, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(shards.DataDirectory, "write", interrupted)
        code, _, err = invoke(*generate(tiny, prompts, output))
    assert code == 130
    assert "2 of 3 shards were finished" in err
    assert "interrupted" in err
    code, out, err = invoke(*generate(tiny, prompts, output))
    assert code == 0
    assert "going on: 2 of 3 shards are finished" in err
    assert "documents" in out


def test_a_full_disk_is_one_sentence(
    tiny: Path, prompts: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a traceback, and a leftover of half a shard."""

    def full(_tensors: Any, path: Path, _metadata: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    output = tmp_path / "out"
    monkeypatch.setattr(shards, "save_file", full)
    code, _, err = invoke(*generate(tiny, prompts, output))
    assert code == 2
    assert "No space left on device" in err.splitlines()[-1]
    assert "run the same command to go on" in err
    assert [p.name for p in output.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--taps", "5"], "layer 5 cannot be tapped"),
        (["--taps", "0", "--features", "none"], "leave one out"),
        (["--max-tokens", "600"], "none of 7 conversations can be used (7 too long)"),
        (["--greedy-share", "2"], "it is a share from 0 to 1"),
        (["--exclude", "no-such-file"], "no prompt file 'no-such-file'"),
    ],
)
def test_bad_usage_is_refused(
    tiny: Path, prompts: str, tmp_path: Path, invoke: Invoke, more: list[str], said: str
) -> None:
    """Catches an error that comes late, or with a traceback."""
    code, _, err = invoke(*generate(tiny, prompts, tmp_path / "out", *more))
    assert code == 2
    assert said in err
    assert not (tmp_path / "out").exists()


def test_synthesize_writes_prompts(tiny: Path, tmp_path: Path, invoke: Invoke) -> None:
    """Catches a shortfall that goes unsaid. A random model writes noise, most of it dropped."""
    output = tmp_path / "prompts.jsonl"
    openers = tmp_path / "openers.json"
    openers.write_text('{"chat": ["Tell me. Now. "]}', "utf-8")
    argv = ["data", "synthesize", "--model", str(tiny), "--output", str(output), "--threads", "1"]
    more = ["--count", "chat=2", "--max-tokens", "12", "--openers", str(openers), "--json"]
    code, out, _ = invoke(*argv, *more)
    assert code == 0
    record = json.loads(out.splitlines()[-1])
    lines = output.read_text("utf-8").splitlines()
    assert record["num_prompts"] == len(lines)
    assert record["num_prompts"] + record["missing"].get("chat", 0) == 2
    assert "prompts in" in out
    code, _, err = invoke(*argv, "--count", "law=2")
    assert code == 2
    assert "no openers for the domain 'law'" in err
    with pytest.raises(SystemExit) as stop:
        main([*argv, "--count", "chat"])
    assert stop.value.code == 2
