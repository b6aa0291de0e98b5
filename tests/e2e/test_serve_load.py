"""Many clients at a time: the same texts as alone, whatever others do, break or leave half done."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.core.request import SamplingParams, StructuredOutputsParams
from outrider.drafters.base import Drafter
from outrider.engine.llm import LLM
from outrider.serving.choice import Choice, Piece
from outrider.serving.driver import Driver
from outrider.serving.ticket import Update
from outrider.tensor.batch import Batch
from outrider.tensor.window import Proposal
from tests.loopback import MODEL, Loopback, serving, tiny_llm
from tests.unchecked import unchecked

CONCURRENCY = 16
FORM = "(ab|日本)[0-9]{2,6}"
Case = tuple[str, dict[str, Any], SamplingParams]
"""Prompt, body of the request, and what it means."""


def case(number: int) -> Case:
    """One of many mixed requests."""
    prompt = f"{'abc' * (1 + number % 5)} {number}"
    common: dict[str, Any] = {"seed": number, "max_tokens": 8 + number % 25}
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {},
        {"presence_penalty": 0.6, "frequency_penalty": 0.4},
        {"n": 2},
        {"logprobs": 2},
        {"regex": FORM},
        {"stop": ["a", "\x1a", "e"]},
        {"top_k": 12, "top_p": 0.9, "temperature": 1.3},
    ]
    own = common | kinds[number % len(kinds)]
    meant = dict(own)
    if "stop" in meant:
        meant["stop"] = tuple(meant["stop"])
    if "regex" in meant:
        meant["structured_outputs"] = StructuredOutputsParams(regex=meant.pop("regex"))
    speculation: list[Any] = [None, False, {"max_draft_len": 2}]
    body = {"model": MODEL, "prompt": prompt, **own}
    body |= {"speculative": speculation[number % 3], "stream": number % 2 == 1}
    return prompt, body, SamplingParams(**meant)


def texts_of(answer: httpx.Response) -> list[str]:
    """Texts by choice, of a stream or of a whole answer."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        return [choice["text"] for choice in answer.json()["choices"]]
    texts: dict[int, str] = {}
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return [texts[index] for index in sorted(texts)]


async def post_all(
    url: str, bodies: Sequence[dict[str, Any]], concurrency: int = CONCURRENCY
) -> list[httpx.Response]:
    """Send all of them, some at a time, and give the answers in order."""
    gate = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def one(body: dict[str, Any]) -> httpx.Response:
            async with gate:
                return await client.post("/v1/completions", json=body)

        return list(await asyncio.gather(*map(one, bodies)))


def alone(llm: LLM, cases: Sequence[Case]) -> list[list[str]]:
    """Texts of each request, generated one by one."""
    return [
        [one.text for one in llm.generate(prompt, params)[0].outputs] for prompt, _, params in cases
    ]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    with unchecked():
        return tiny_llm(tmp_path_factory.mktemp("load"))


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Loopback]:
    with unchecked(), serving(llm) as running:
        yield running


@unchecked()
def test_mixed_requests_at_a_time_give_what_each_gives_alone(server: Loopback, llm: LLM) -> None:
    """Catches anything that leaks from a request to its mates, or a draft that changes a text."""
    cases = [case(number) for number in range(200)]
    expected = alone(llm.sibling(), cases)
    answers = asyncio.run(post_all(server.url, [body for _, body, _ in cases]))
    for (_, body, _), answer, texts in zip(cases, answers, expected, strict=True):
        assert texts_of(answer) == texts, body
    assert server.driver.metrics.acceptance.accepted > 50


@pytest.mark.model
@unchecked()
def test_mixed_requests_on_a_real_model(default_model: Path) -> None:
    """Catches what needs merges, a large vocabulary and real drafts to show."""
    llm = LLM(str(default_model), threads=1, speculative_config={"method": "suffix"})
    cases = [case(number) for number in range(16)]
    with serving(llm) as running:
        answers = asyncio.run(post_all(running.url, [body for _, body, _ in cases]))
    for (_, body, _), answer, texts in zip(
        cases, answers, alone(llm.sibling(), cases), strict=True
    ):
        assert texts_of(answer) == texts, body


@unchecked()
def test_requests_that_do_not_fit_are_preempted_and_complete(tmp_path: Path) -> None:
    """Catches a full KV cache that stalls, fails a request, or changes what it says."""
    llm = tiny_llm(tmp_path, kv_cache_tokens=160, max_context_len=128)
    cases = [
        (f"{number} abc", {"prompt": f"{number} abc", "seed": number, "max_tokens": 60}
         | {"ignore_eos": True, "stream": number % 2 == 0},
         SamplingParams(seed=number, max_tokens=60, ignore_eos=True))
        for number in range(8)
    ]  # fmt: skip
    with serving(llm) as running:
        answers = asyncio.run(post_all(running.url, [body for _, body, _ in cases]))
        assert running.driver.metrics.num_preemptions > 0
    expected = alone(llm.sibling(kv_cache_tokens=1024), cases)
    assert [texts_of(answer) for answer in answers] == expected


LONG = {"model": MODEL, "prompt": "abc", "max_tokens": 480, "ignore_eos": True, "stream": True}


def wait_until(holds: Any, seconds: float) -> bool:
    """Whether it holds within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return bool(holds())


def test_clients_that_leave_free_their_blocks(server: Loopback) -> None:
    """Catches work that goes on for nobody, in a stream, for a whole answer and in the queue."""
    cache = server.driver.llm.engine.cache

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url) as client:
            for _ in range(10):
                stream = client.stream("POST", "/v1/completions", json=LONG)
                answer = await stream.__aenter__()
                await anext(answer.aiter_bytes())
            body = LONG | {"stream": False, "n": 8}
            whole = asyncio.create_task(client.post("/v1/completions", json=body))
            await asyncio.sleep(0.05)
            assert cache.num_free < cache.num_blocks
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)

    asyncio.run(leave())
    assert wait_until(lambda: cache.num_free == cache.num_blocks, 5)
    assert wait_until(lambda: not server.driver.num_waiting, 5)
    assert httpx.get(f"{server.url}/health").status_code == 200


class BreaksFor:
    """A drafter that raises while a certain text is being continued."""

    def __init__(self, inner: Drafter, prompt: Sequence[int]) -> None:
        self._inner, self._prompt = inner, tuple(prompt)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, batch: Batch, rule: Any) -> Proposal:
        for row in batch:
            if row.sequence.prompt == self._prompt and row.sequence.num_output > 6:
                raise LookupError("injected")
        return self._inner.propose(batch, rule)


@unchecked()
def test_a_crash_in_one_request_ends_that_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an exception in the engine or at the edge that reaches other requests."""
    llm = tiny_llm(tmp_path)
    cases = [case(number) for number in range(0, 48, 2)]
    expected = alone(llm.sibling(), cases)
    engine_victim: Any = {"prompt": "victim", "max_tokens": 40, "ignore_eos": True}
    broken = BreaksFor(llm.engine._drafter, llm.tokenizer.encode("victim"))  # type: ignore[arg-type]
    monkeypatch.setattr(llm.engine, "_drafter", broken)
    take = Choice.take

    def breaks(self: Choice, update: Update) -> Piece:
        if self.request.params.max_tokens == 77:
            raise LookupError("injected at the edge")
        return take(self, update)

    monkeypatch.setattr(Choice, "take", breaks)
    edge_victim = {"prompt": "edge", "max_tokens": 77, "ignore_eos": True}
    victims = [engine_victim, engine_victim | {"stream": True}, edge_victim]
    bodies = [body for _, body, _ in cases]
    bodies[8:8] = victims
    with serving(llm) as running:
        answers = asyncio.run(post_all(running.url, bodies))
        assert httpx.get(f"{running.url}/health").status_code == 200
    failed = answers[8:11]
    del answers[8:11]
    assert [texts_of(answer) for answer in answers] == expected
    assert failed[0].status_code == failed[2].status_code == 500
    assert "LookupError" in failed[0].json()["error"]["message"]
    assert failed[2].json()["error"]["message"] == "internal error"
    last = failed[1].text.strip().split("\n\n")[-2]
    assert "error" in json.loads(last.removeprefix("data: "))


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    """Catches a queue without an end, and a refusal that tells clients nothing."""
    with unchecked(), serving(tiny_llm(tmp_path, max_num_seqs=1), max_queue=1) as running:
        bodies = [LONG | {"max_tokens": 200}] * 6
        answers = asyncio.run(post_all(running.url, bodies))
        codes = sorted(answer.status_code for answer in answers)
        assert codes[:2] == [200, 200]
        assert codes[-1] == 429
        for answer in answers:
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "queue_full"
                assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert httpx.post(f"{running.url}/v1/completions", json=LONG | {"n": 3}).status_code == 400


def test_requests_that_take_too_long_are_ended(tmp_path: Path) -> None:
    """Catches a time limit that is not kept, or that is told as a success."""
    with unchecked(), serving(tiny_llm(tmp_path), max_request_seconds=0.0) as running:
        whole = httpx.post(f"{running.url}/v1/completions", json=LONG | {"stream": False})
        assert (whole.status_code, whole.json()["error"]["code"]) == (408, "time_limit")
        assert whole.headers["x-should-retry"] == "false"


def test_an_engine_thread_that_breaks_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a server that answers its health check while nothing can be served."""

    def breaks(_self: Driver, _report: object) -> None:
        raise LookupError("injected")

    with unchecked(), serving(tiny_llm(tmp_path)) as running:
        monkeypatch.setattr(Driver, "_tell", breaks)
        answer = httpx.post(f"{running.url}/v1/completions", json=LONG | {"stream": False})
        assert answer.status_code == 503
        assert httpx.get(f"{running.url}/health").status_code == 503
        assert httpx.post(f"{running.url}/v1/completions", json=LONG).status_code == 503


SERVE = "import sys; from outrider.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("drain", [30.0, 0.0])
def test_sigterm_under_load_finishes_or_fails_every_request(tmp_path: Path, drain: float) -> None:
    """Catches a server that drops requests without a word, hangs, or exits with an error."""
    environment = {**os.environ, "OUTRIDER_API_KEY": "a secret of this test"}
    environment["OUTRIDER_CACHE"] = str(tmp_path)
    tiny_llm(tmp_path)
    command = [sys.executable, "-c", SERVE, "serve", "--model", str(tmp_path / "model")]
    command += ["--threads", "1", "--port", "0", "--drain-seconds", str(drain)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, cwd=Path.cwd()
    ) as process:
        try:
            assert process.stderr is not None
            said = [process.stderr.readline()]
            while "serving" not in said[-1]:
                assert said[-1], "".join(said)
                said.append(process.stderr.readline())
            url = said[-1].split()[-1]
            texts = asyncio.run(_streams_until_sigterm(url, process))
            assert process.wait(30) == 0
            said.append(process.stderr.read())
        finally:
            process.kill()
    assert "a secret" not in "".join(said)
    endings = [_ending(text) for text in texts]
    assert set(endings) <= {"length", "shutting_down"}
    assert ("length" in endings) if drain else ("shutting_down" in endings)


async def _streams_until_sigterm(url: str, process: "subprocess.Popen[str]") -> list[str]:
    headers = {"authorization": "Bearer a secret of this test"}
    texts = [""] * 20
    body = LONG | {"model": None}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:

        async def one(number: int) -> None:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for text in answer.aiter_text():
                    texts[number] += text

        tasks = [asyncio.create_task(one(number)) for number in range(len(texts))]
        while not all(texts[:4]):
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        await asyncio.gather(*tasks)
    return texts


def _ending(text: str) -> str:
    """Finish reason or error code of a stream, or the code of an answer that is an error."""
    if not text.startswith("data:"):
        return str(json.loads(text)["error"]["code"])
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    return str(last["error"]["code"] if "error" in last else last["choices"][0]["finish_reason"])


def test_an_address_that_is_taken_is_bad_usage(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Catches a traceback, or a server that seems to run."""
    from outrider.cli.main import main

    tiny_llm(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with unchecked():
            code = main(["serve", "--model", str(tmp_path / "model"), "--port", port])
    assert code == 2
    assert f"port {port}" in capfd.readouterr().err
