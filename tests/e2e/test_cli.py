"""The commands end to end, in this process, on a tiny model."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main
from outrider.core.outcome import Origin
from outrider.engine.llm import LLM
from outrider.tensor.window import RowVerdict
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.verify import verifier
from tests.unchecked import unchecked

REPETITIVE = "one two one two one two one two"
Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("cli") / "model"
    return str(write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=5))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "words.jsonl"
    rows = [{"id": f"w{i}", "prompt": f"{REPETITIVE} {i}"} for i in range(3)]
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


def last_json(out: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(out.splitlines()[-1])
    return record


def model(tiny: str) -> list[str]:
    return ["--model", tiny, "--dtype", "float64"]


def test_generate_prints_the_text_alone(tiny: str, invoke: Invoke) -> None:
    """Catches a legend, a progress line or a summary on stdout."""
    code, out, err = invoke("generate", REPETITIVE, *model(tiny), "--max-tokens", "12", "--raw")
    llm = LLM(tiny, dtype="float64")
    from outrider.core.request import SamplingParams

    expected = llm.generate(REPETITIVE, SamplingParams(temperature=0, seed=0, max_tokens=12))
    assert code == 0
    assert out == expected[0].outputs[0].text + "\n"
    assert "loading" in err
    assert "tokens/s" in err


def test_the_chat_template_is_used_unless_raw(tiny: str, invoke: Invoke) -> None:
    """Catches --raw being ignored, or a template that is never applied."""
    argv = ["generate", "hello", *model(tiny), "--max-tokens", "4", "--json"]
    _, chat, _ = invoke(*argv)
    _, raw, _ = invoke(*argv, "--raw")
    lengths = [last_json(out)["outputs"][0]["num_prompt_tokens"] for out in (chat, raw)]
    assert lengths == [len("user: hello\nassistant: "), len("hello")]


def test_generate_json_is_complete(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches continuations mixed up between prompts, or lost fields."""
    code, out, _ = invoke(
        "generate", "--prompt-file", prompts, *model(tiny), "--max-tokens", "6", "--n", "2",
        "--temperature", "0.9", "--logprobs", "1", "--draft", "ngram", "--json",
    )  # fmt: skip
    assert code == 0
    assert out.count("\n") == 1
    record = last_json(out)
    assert [(o["id"], o["index"]) for o in record["outputs"]] == [
        (f"w{i}", n) for i in range(3) for n in range(2)
    ]
    for output in record["outputs"]:
        assert len(output["token_ids"]) == len(output["origins"]) == len(output["logprobs"])
        assert output["finish_reason"] in ("length", "stop")
    assert record["speculative_config"]["method"] == "ngram"
    assert record["rounds"] > 0


def test_several_answers_are_headed(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches texts of several prompts that run into each other."""
    _, out, _ = invoke(
        "generate", "--prompt-file", prompts, *model(tiny), "--max-tokens", "3", "--draft", "off"
    )
    assert re.findall(r"^== (\w+)$", out, re.M) == ["w0", "w1", "w2"]


def test_stdin_is_a_prompt(tiny: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a pipe that is ignored."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(REPETITIVE))
    _, out, _ = invoke("generate", *model(tiny), "--max-tokens", "2", "--json")
    assert last_json(out)["outputs"][0]["prompt"] == REPETITIVE


def test_compare_reports_both_sides(tiny: str, invoke: Invoke) -> None:
    """Catches a comparison of a run with itself: only one side may draft."""
    code, out, _ = invoke(
        "generate", REPETITIVE, "--compare", *model(tiny), "--max-tokens", "24", "--json"
    )
    assert code == 0
    record = last_json(out)
    assert record["identical"] is True
    assert record["plain"]["texts"] == record["speculative"]["texts"]
    assert record["plain"]["verified"] == 0
    assert record["speculative"]["verified"] > 0
    assert record["speedup"] > 0
    assert "tokens             identical" in out


def test_compare_has_a_prompt_of_its_own_and_reads_no_stdin(
    tiny: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a demo that waits for input."""
    monkeypatch.setattr(sys, "stdin", None)
    code, out, _ = invoke("generate", "--compare", *model(tiny), "--max-tokens", "4")
    assert code == 0
    assert "lighthouse keeper" in out
    assert out.index("── plain") < out.index("── speculative (suffix)") < out.index("speedup")


def test_compare_over_several_prompts(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches a table over the first prompt only."""
    _, out, _ = invoke(
        "generate", "--compare", "--prompt-file", prompts, *model(tiny), "--max-tokens", "4",
        "--ignore-eos", "--json",
    )  # fmt: skip
    assert last_json(out)["plain"]["output_tokens"] == 12


def test_certify_passes_and_says_so(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches a certificate without its environment, or a summary that is not the last line."""
    code, out, _ = invoke(
        "certify", "--prompts", prompts, *model(tiny), "--max-tokens", "8", "--limit", "2",
        "--concurrency", "1", "20", "--json",
    )  # fmt: skip
    assert code == 0
    record = last_json(out)
    assert record["verdict"] == "lossless"
    assert record["drafters"]["auto"]["domains"]["words"]["prompts"] == 2
    assert record["environment"]["command"][0] == "outrider"
    assert "verdict: lossless\n" in out


def test_certify_takes_several_drafters(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches a drafter that is left out, and options that reach the wrong one."""
    code, out, _ = invoke(
        "certify", "--prompts", prompts, *model(tiny), "--max-tokens", "8", "--limit", "2",
        "--temperature", "0", "--concurrency", "600", "--draft", "ngram", "random",
        "--draft-len", "3", "--json",
    )  # fmt: skip
    assert code == 0
    record = last_json(out)
    assert list(record["drafters"]) == ["ngram", "random"]
    assert record["drafters"]["ngram"]["speculative_config"]["num_speculative_tokens"] == 3
    assert record["drafters"]["random"]["speculative_config"] is None
    assert record["drafters"]["random"]["total"]["verified"] > 0
    assert "== random\n" in out
    assert "verdict of all: lossless\n" in out


def test_certify_fails_on_a_broken_engine(
    tiny: str, prompts: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches exit code 0 after an error. The broken verifier never rejects a draft."""
    monkeypatch.setattr(
        verifier,
        "match_ids",
        lambda targets, drafts: RowVerdict(len(drafts), targets[-1], Origin.BONUS),
    )
    common = [*model(tiny), "--max-tokens", "24", "--draft", "ngram"]
    code, out, _ = invoke("certify", "--prompts", prompts, "--temperature", "0", *common)
    assert code == 1
    assert "not explained by rounding" in out
    code, out, _ = invoke("generate", "--compare", REPETITIVE, *common)
    assert code == 1
    assert "tokens differ" in out


def test_certify_runs_further_checks(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches a check that is accepted and not run, and an exit code that ignores it."""
    argv = ["certify", "--prompts", prompts, "--limit", "1", *model(tiny), "--draft", "ngram"]
    checks = ["--checks", "stream", "rejection-fit", "--fit-tokens", "40"]
    code, out, _ = invoke(*argv, "--max-tokens", "12", *checks, "--json")
    record = last_json(out)
    assert code == 0
    assert record["passed"] is True
    assert record["verdict"] is None
    assert [each["check"] for each in record["checks"]] == ["stream", "rejection-fit"]
    fits = record["checks"][1]["fits"]
    assert fits["plain"]["tokens"] >= 40
    assert fits["speculative"]["false_alarm"] == 1e-4
    assert "stream: passed\n" in out


def test_eval_gives_one_json_with_the_length_first(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches a draft length other than 7 by default, and an option that does not get through."""
    argv = ["eval", "--prompts", prompts, *model(tiny), "--max-tokens", "16"]
    code, out, _ = invoke(*argv, "--temperature", "0", "0.8", "--json")
    assert code == 0
    record = last_json(out)
    assert next(iter(record)) == "mean_accept_length"
    assert record["speculative_config"]["num_speculative_tokens"] == 7
    assert [run["temperature"] for run in record["runs"]] == [0.0, 0.8]
    assert record["runs"][0]["domains"]["words"]["num_prompts"] == 3
    assert "temperature 0.8, drafts of up to 7" in out
    _, out, _ = invoke(*argv, "--draft", "ngram", "--draft-len", "2", "--limit", "1", "--json")
    record = last_json(out)
    assert len(record["conditional_accept_rates"]) <= 2
    assert len(record["runs"][0]["prompts"]) == 1


def test_analyze_writes_all_four(tiny: str, prompts: str, invoke: Invoke, tmp_path: Path) -> None:
    """Catches a missing output, or a table of another prompt's tokens."""
    figure, page = tmp_path / "f.svg", tmp_path / "p.html"
    code, out, _ = invoke(
        "analyze", "--prompts", prompts, *model(tiny), "--max-tokens", "12", "--show-tokens", "5",
        "--plot", str(figure), "--html", str(page), "--json",
    )  # fmt: skip
    assert code == 0
    record = last_json(out)
    assert len(record["outputs"]) == 3
    assert all(len(each["entropies"]) == len(each["token_ids"]) for each in record["outputs"])
    assert len(re.findall(r"H=\d\.\d{3}", out)) == 5
    assert figure.read_text("utf-8").startswith("<svg")
    assert page.read_text("utf-8").count("<details>") == 3


def test_estimate_reads_what_eval_and_bench_write(
    tiny: str, prompts: str, invoke: Invoke, tmp_path: Path
) -> None:
    """Catches records whose fields the estimate does not find, and an estimate of another model."""
    argv = ["--prompts", prompts, *model(tiny), "--max-tokens", "24", "--draft", "ngram", "--json"]
    saved, drawing = tmp_path / "run.txt", tmp_path / "speedup.svg"
    for command in (["eval", "--draft-len", "3"], ["bench", "run", "--repeats", "1"]):
        _, out, _ = invoke(*command, *argv)
        saved.write_text(out, "utf-8")
        record = last_json(out)
        counts = record["runs"][0] if command[0] == "eval" else record["speculative"]
        code, out, _ = invoke(
            "estimate", "--from", str(saved), "--domain", "words", "--row-cost", "0",
            "--plot", str(drawing), "--json",
        )  # fmt: skip
        assert code == 0
        (regime,) = last_json(out)["regimes"]
        assert regime["speedups"][-1] == pytest.approx(counts["acceptance_length"])
        assert drawing.read_text("utf-8").startswith("<svg")
        assert ("measured there, 1 at a time" in out) == (command[0] == "bench")


def test_bench_pairs_plain_and_speculative(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches field names that vLLM's tools would not find."""
    code, out, _ = invoke(
        "bench", "run", "--prompts", prompts, *model(tiny), "--max-tokens", "12", "--repeats", "1",
        "--concurrency", "2", "--json",
    )  # fmt: skip
    assert code == 0
    record = last_json(out)
    for side in ("plain", "speculative"):
        for name in (
            "duration", "completed", "total_input_tokens", "total_output_tokens",
            "request_throughput", "output_throughput", "mean_ttft_ms", "median_ttft_ms",
            "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms", "mean_e2el_ms",
            "spec_decode_acceptance_length", "spec_decode_acceptance_rate",
            "spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens",
            "spec_decode_per_position_acceptance_rates",
        ):  # fmt: skip
            assert name in record[side], (side, name)
    assert record["identical"] is True
    assert len(record["speedups"]) == 1
    assert record["speculative"]["spec_decode_num_drafts"] > 0
    assert set(record["domains"]) == {"words"}


def test_bench_measures_the_engine_itself(tiny: str, prompts: str, invoke: Invoke) -> None:
    """Catches a baseline that speculates or answers something else."""
    argv = ["bench", "run", "--prompts", prompts, *model(tiny), "--max-tokens", "6"]
    code, out, _ = invoke(*argv, "--repeats", "2", "--baseline-loop", "--json")
    assert code == 0
    assert last_json(out)["identical"] is True
    assert len(last_json(out)["ratios"]) == 2
    code, out, _ = invoke(*argv, "--repeats", "1", "--plain-only", "--json")
    assert code == 0
    assert "speculative" not in last_json(out)
    code, _, err = invoke(*argv, "--baseline-loop", "--concurrency", "2")
    assert code == 2
    assert "one request at a time" in err


def test_chat_remembers_until_reset(
    tiny: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a conversation that forgets, or a reset that drops the system message."""
    seen: list[list[str]] = []
    chat_prompt = LLM.chat_prompt

    def watched(self: LLM, messages: Any) -> list[int]:
        seen.append([message["role"] for message in messages])
        return chat_prompt(self, messages)

    monkeypatch.setattr(LLM, "chat_prompt", watched)
    lines = ["hello", "", "again", "/nonsense", "/reset", "x" * 600, "new", "/exit", "unheard"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    code, out, err = invoke("chat", "--system", "Be brief.", *model(tiny), "--max-tokens", "3")
    assert code == 0
    system, user, assistant = "system", "user", "assistant"
    assert seen == [
        [system, user],
        [system, user, assistant, user],
        [system, user],
        [system, user],
    ]
    assert out.count("\n") >= 3
    assert "unknown command '/nonsense'" in err
    assert "/reset starts over" in err


def test_models_and_info_list_what_there_is(
    tiny: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a table that does not say how to get a model, and an info that cannot be parsed."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    code, out, _ = invoke("models")
    assert code == 0
    assert "outrider pull smollm2-135m" in out
    _, out, _ = invoke("models", "--json")
    assert last_json(out)["models"][0]["path"] is None
    _, out, _ = invoke("info", "--json")
    assert last_json(out)["cache"] == str(tmp_path)
    code, out, _ = invoke("info", tiny, "--json")
    assert code == 0
    described = last_json(out)["model"]
    assert described["num_layers"] == 2
    assert described["tokenizer_vocab_size"] == 258
    assert described["parameters"] > 0
    code, out, _ = invoke("info", tiny)
    assert re.search(r"^num_layers +2$", out, re.M)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["generate", "hi"], "run: outrider pull smollm2-135m"),
        (["generate", "hi", "--model", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (["generate", "hi", "--model", "none.gguf"], "there is no file"),
        (["generate", " "], "the prompt is empty"),
        (["generate", "\udcff"], "is no Unicode text"),
        (["generate", "hi", "--prompt-file", "x"], "leave one out"),
        (["generate", "--prompt-file", "none.jsonl"], "no prompt file 'none.jsonl'"),
        (["generate", "hi", "--top-p", "7"], "top_p is 7.0"),
        (["generate", "hi", "--draft", "sufix"], "did you mean 'suffix'?"),
        (["generate", "hi", "--draft", "draft-model"], "add --draft-model"),
        (["generate", "hi", "--draft-model", "none.gguf"], "'none.gguf'"),
        (["generate", "hi", "--speculative-config", "{"], "is not JSON"),
        (["generate", "hi", "--compare", "--draft", "off"], "needs a drafter"),
        (["generate", "hi", "--compare", "--n", "2"], "leave --n out"),
        (["certify", "--prompts", "none.jsonl"], "no prompt file"),
        (["certify", "--prompts", ".", "--draft", "off"], "nothing to certify"),
        (["certify", "--prompts", ".", "--draft", "ngram", "off"], "nothing to certify"),
        (["certify", "--prompts", ".", "--draft", "random", "--draft-model", "x"], "no model"),
        (
            ["certify", "--prompts", ".", "--draft", "ngram", "suffix", "--draft-model", "x"],
            "belongs to one drafter",
        ),
        (
            ["certify", "--prompts", ".", "--verify-rule", "rejection", "--temperature", "1"],
            "add 0 to --temperature",
        ),
        (["eval", "--prompts", "none.jsonl"], "no prompt file"),
        (["analyze", "--prompts", "none.jsonl"], "no prompt file"),
        (["analyze", "--prompts", ".", "--draft-cost", "-1"], "a cost is 0 or more"),
        (["eval", "--prompts", ".", "--draft", "off"], "nothing to evaluate"),
        (["estimate", "--alpha", "1.5"], "the acceptance rate is 1.5"),
        (["estimate", "--alpha", "0.5", "--draft-cost", "-1"], "draft_per_token is -1"),
        (["estimate", "--alpha", "0.5", "--domain", "code"], "add --from"),
        (["estimate", "--from", "none.json"], "there is no file 'none.json'"),
        (["estimate", "--alpha", "0.5", "--profile", "none.json"], "cannot be read"),
        (["estimate", "--alpha", "0.5", "--profile", "x", "--draft-cost", "1"], "leave the const"),
        (["bench", "run", "--prompts", "none.jsonl"], "no prompt file"),
        (["pull", "nothing"], "unknown built-in model 'nothing'"),
        (["info", "nothing"], "unknown model 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    argv: list[str],
    says: str,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches tracebacks, and mistakes that are only noticed after the model is loaded."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke(*argv)
    assert code == 2
    assert out == ""
    assert says in err
    assert err.startswith("outrider ")
    assert err.count("\n") == 1
    assert "loading" not in err


def test_debug_shows_where_it_came_from(invoke: Invoke, tmp_path: Path) -> None:
    """Catches a flag that changes nothing."""
    with pytest.raises(FileNotFoundError, match="nothing"):
        invoke("info", str(tmp_path / "nothing"), "--debug")


def test_an_unusable_device_is_refused(tiny: str, invoke: Invoke) -> None:
    """Catches torch's own traceback for a device it does not know."""
    code, _, err = invoke("generate", "hi", *model(tiny), "--device", "abacus")
    assert code == 2
    assert "abacus" in err
