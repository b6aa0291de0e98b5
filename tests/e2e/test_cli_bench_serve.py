"""`outrider bench serve` and `bench compare` from the command line, against a scripted server."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main
from tests.fake_server import Action, Received, answer, fake_server, piece, streamed, usage
from tests.loopback import MODEL, serving, tiny_llm
from tests.unchecked import unchecked

Run = Callable[..., tuple[int, str, str]]
# Taken from the result that `vllm bench serve` writes.
VLLM_KEYS = {
    *("date", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency"),
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"),
    *("generated_texts", "errors"),
    *(
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "std", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    ),
    *(
        f"spec_decode_{name}"
        for name in (
            "acceptance_rate",
            "acceptance_length",
            "num_drafts",
            "draft_tokens",
            "accepted_tokens",
            "per_position_acceptance_rates",
        )
    ),
}


def respond(request: Received) -> Sequence[Action]:
    if request.path == "/v1/models":
        return answer("200 OK", b'{"data": [{"id": "tiny"}]}')
    if request.path == "/metrics":
        names = ("drafts", "draft_tokens", "accepted_tokens")
        lines = (f"vllm:spec_decode_num_{name}_total {request.number}" for name in names)
        return answer("200 OK", "\n".join(lines).encode())
    return streamed(piece("Hel"), piece("lo 😀", "length"), usage(7, 4))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> tuple[int, str, str]:
        try:
            code = main(argv)
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    path = tmp_path / "talk.jsonl"
    path.write_text('{"prompt": "one"}\n{"turns": ["two", "three"]}\n')
    return str(path)


def test_a_result_has_the_field_names_of_vllm(run: Run, dataset: str, tmp_path: Path) -> None:
    """Catches a renamed or missing key: dashboards and scripts read them by name."""
    path = tmp_path / "result.json"
    with fake_server(respond) as server:
        argv = ["bench", "serve", "--base-url", server.url, "--dataset-path", dataset, "--json"]
        argv += ["--save-detailed", "--output", str(path), "--goodput", "ttft:60000"]
        code, out, _ = run(*argv, "--max-concurrency", "2", "--header", "X-Team=a=b")
        sent = server.posts[-1]
    record = json.loads(out.splitlines()[-1])
    assert code == 0
    assert not VLLM_KEYS - record.keys()
    assert json.loads(path.read_text("utf-8")) == record
    assert (record["model_id"], sent.body["model"]) == ("tiny", "tiny")
    assert (record["completed"], record["total_output_tokens"]) == (3, 12)
    assert record["request_goodput"] == record["request_throughput"]
    assert record["spec_decode_num_drafts"] == 3
    assert record["request_rate"] == "inf"
    assert record["generated_texts"] == ["Hello 😀"] * 3
    assert sent.headers["x-team"] == "a=b"
    assert "3 completed, 0 failed" in out


def test_the_key_is_sent(run: Run, dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a key that does not arrive, or that ends up in the result."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with fake_server(respond) as server:
        argv = ["bench", "serve", "--base-url", server.url, "--dataset-path", dataset]
        _, out, err = run(*argv, "--json", "--save-detailed")
        assert {each.headers["authorization"] for each in server.received} == {"Bearer sk-secret"}
    assert "sk-secret" not in out + err


def test_failures_are_said_and_nothing_completed_is_an_exit_code(run: Run, dataset: str) -> None:
    """Catches a run of failures that looks like a success to a script."""
    busy = answer("429 Too Many Requests", b"{}")
    with fake_server(lambda _: busy) as server:
        argv = ["bench", "serve", "--base-url", server.url, "--dataset-path", dataset]
        code, out, _ = run(*argv, "--model", "m", "--num-warmups", "0")
    assert code == 1
    assert "2 x HTTP 429" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--request-rate", "0"], "--request-rate is 0"),
        (["--burstiness", "-1"], "--burstiness is -1"),
        (["--timeout", "nan"], "--timeout is nan"),
        (["--temperature", "inf"], "--temperature is inf"),
        (["--goodput", "speed:5"], "no objective"),
        (["--extra-body", "{"], "is not JSON"),
        (["--extra-body", "[]"], "no JSON object"),
        (["--header", "plain"], "NAME=VALUE"),
        (["--base-url", "localhost:1"], "no address of a server"),
        (["--base-url", "http://127.0.0.1:9"], "connection refused"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(
    run: Run, dataset: str, options: list[str], says: str
) -> None:
    """Catches a traceback, and an option that silently means something else."""
    code, _, err = run("bench", "serve", "--dataset-path", dataset, *options)
    assert code == 2
    assert says in err
    assert "Traceback" not in err


def test_a_real_server_is_measured_as_it_counts_itself(
    run: Run, dataset: str, tmp_path: Path
) -> None:
    """Catches a client and a server that mean different things by the same names."""
    with unchecked(), serving(tiny_llm(tmp_path)) as server:
        argv = ["bench", "serve", "--base-url", server.url, "--dataset-path", dataset]
        argv += ["--num-prompts", "4", "--max-concurrency", "2", "--max-tokens", "40"]
        code, out, _ = run(*argv, "--num-warmups", "0", "--ignore-eos", "--json")
        served = server.driver.metrics
    record = json.loads(out.splitlines()[-1])
    assert (code, record["completed"], record["model_id"]) == (0, 6, MODEL)
    assert record["total_output_tokens"] == 6 * 40 == served.num_generated_tokens
    assert record["total_input_tokens"] == served.num_prompt_tokens
    assert record["num_without_usage"] == 0
    counts = served.acceptance
    assert record["spec_decode_num_drafts"] == served.num_drafts > 0
    assert record["spec_decode_draft_tokens"] == counts.verified
    assert record["spec_decode_accepted_tokens"] == counts.accepted
    assert record["spec_decode_per_position_acceptance_rates"] == [
        accepted / served.num_drafts for accepted in counts.accepted_at
    ]


def result(folder: Path, name: str, **changes: Any) -> str:
    record = {"duration": 1.0, "request_throughput": 1.0, "output_throughput": 100.0}
    path = folder / name
    path.write_text(json.dumps(record | changes))
    return str(path)


def test_compare_gates(run: Run, tmp_path: Path) -> None:
    """Catches a threshold that never fails a build, or fails it on a gain."""
    before, slower = result(tmp_path, "a"), result(tmp_path, "b", output_throughput=90.0)
    assert run("bench", "compare", before, slower)[0] == 0
    assert run("bench", "compare", before, slower, "--threshold", "0.2")[0] == 0
    assert run("bench", "compare", slower, before, "--threshold", "0.05")[0] == 0
    code, out, _ = run("bench", "compare", before, slower, "--threshold", "0.05", "--json")
    assert code == 1
    assert json.loads(out.splitlines()[-1])["regressions"] == ["output_throughput"]
    assert "0.900" in out


def test_compare_refuses_what_cannot_be_compared(run: Run, tmp_path: Path) -> None:
    """Catches a table of ratios between figures of different kinds."""
    run_result = tmp_path / "run.json"
    run_result.write_text(json.dumps({"plain": {"output_throughput": 5.0}, "setting": {}}))
    code, _, err = run("bench", "compare", result(tmp_path, "a"), str(run_result))
    assert (code, "of one kind" in err) == (2, True)
    code, _, err = run("bench", "compare", "x", "y", "--metrics", "output_throughput")
    assert (code, "--threshold" in err) == (2, True)
    code, _, err = run("bench", "compare", "x", "y", "--threshold", "-1")
    assert (code, "--threshold is -1" in err) == (2, True)
