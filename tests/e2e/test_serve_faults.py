"""Clients that are strangers, hostile or half dead, and a search for requests that break it."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

from outrider.engine.llm import LLM
from tests.loopback import MODEL, Loopback, serving, tiny_llm
from tests.unchecked import unchecked

KEY = "correct horse"
BODY = {"model": MODEL, "prompt": "abc", "max_tokens": 4}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    with unchecked():
        return tiny_llm(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def guarded(llm: LLM) -> Iterator[Loopback]:
    """With a key, small limits and little patience."""
    limits = {"max_body_bytes": 4096, "read_seconds": 0.4, "write_seconds": 0.4}
    with (
        unchecked(),
        serving(
            llm, api_key=KEY, cors_origins=("https://friend.example",), max_connections=8, **limits
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def http(guarded: Loopback) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=guarded.url, headers=headers) as one:
        yield one


def test_only_with_the_key(guarded: Loopback, http: httpx.Client) -> None:
    """Catches a path that forgot to ask, a key compared in part, and a key that is told."""
    assert http.post("/v1/completions", json=BODY).status_code == 200
    assert http.get("/metrics").status_code == 200
    for given in (None, "", "Bearer", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", KEY):
        headers = {} if given is None else {"authorization": given}
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            answer = http.build_request("GET", path)
            answer.headers.pop("authorization")
            answer.headers.update(headers)
            refused = http.send(answer)
            assert refused.status_code == 401, (given, path)
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in refused.text
    assert httpx.get(f"{guarded.url}/health").status_code == 200


def test_other_origins_may_read_only_where_it_is_allowed(llm: LLM, http: httpx.Client) -> None:
    """Catches a server that lets every web site read what it says."""
    origin = {"origin": "https://friend.example"}
    allowed = http.get("/v1/models", headers=origin).headers
    assert allowed["access-control-allow-origin"] == "https://friend.example"
    stranger = http.get("/v1/models", headers={"origin": "https://other.example"})
    assert "access-control-allow-origin" not in stranger.headers


def test_large_bodies_are_refused_before_they_are_read(http: httpx.Client) -> None:
    """Catches a body that fills the memory, announced or not."""
    large = b"x" * 5000
    assert http.post("/v1/completions", content=large).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(50):
            yield large[:500]

    unannounced = http.post("/v1/completions", content=pieces())
    assert unannounced.status_code == 413
    assert unannounced.json()["error"]["type"] == "invalid_request_error"


def exchange(port: int, sent: bytes, seconds: float = 5.0) -> bytes:
    """What comes back for some bytes, until the server closes."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=seconds)) as line:
        line.sendall(sent)
        received = b""
        with suppress(ConnectionResetError):
            while piece := line.recv(65536):
                received += piece
        return received


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Fail if it does not hold within so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer correct horse\r\n"


@pytest.mark.parametrize(
    ("sent", "begins"),
    [
        (b"", b""),
        (b"GET /hea", b""),
        (HEAD + b"content-length: 20\r\n\r\n{", b"HTTP/1.1 408"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (HEAD + b"".join(b"x%d: y\r\n" % n for n in range(9000)), b"HTTP/1.1 400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"HTTP/1.1 400"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", b"HTTP/1.1 400"),
    ],
    ids=["silent", "half a line", "half a body", "long line", "many headers", "tls", "length"],
)
def test_connections_end_whatever_is_sent(guarded: Loopback, sent: bytes, begins: bytes) -> None:
    """Catches a connection that can be held open for nothing, and headers without a bound."""
    started = time.monotonic()
    received = exchange(guarded.port, sent)
    assert received[: len(begins) or 1] == begins
    if begins:
        error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
        assert set(error) == {"message", "type", "param", "code"}
    assert time.monotonic() - started < 4
    assert httpx.get(f"{guarded.url}/health").status_code == 200


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (b"", b"GET /hea"),
        (b"content-length: 10\r\n", b"x"),
        (b"transfer-encoding: chunked\r\n", b"5\r\nab"),
    ],
    ids=["half a second head", "half a body nobody reads", "half a chunk"],
)
def test_a_connection_ends_that_stalls_after_an_answer(
    guarded: Loopback, first: bytes, later: bytes
) -> None:
    """Catches a byte that puts off the end of an idle connection for ever."""
    with closing(socket.create_connection(("127.0.0.1", guarded.port), timeout=8)) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + first + b"\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += line.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        line.sendall(later)
        with suppress(ConnectionResetError):
            assert line.recv(65536) == b""


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"x: " + b"y" * 20_000 + b"\r\n\r\n",
    ],
    ids=["two lengths", "a long head that comes at once"],
)
def test_heads_that_are_refused_end_the_connection(guarded: Loopback, head: bytes) -> None:
    """Catches a second request hidden in the first, and a bound that speed evades."""
    hidden = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    received = exchange(guarded.port, HEAD + head + hidden)
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1


def test_nonsense_is_not_sent_back_by_the_megabyte(http: httpx.Client) -> None:
    """Catches an answer that grows with what was wrong."""
    long = "x" * 3000
    for body in ({long: 1}, {"model": long}, {"structured_outputs": {"choice": ["", long]}}):
        answer = http.post("/v1/completions", json={**BODY, **body})
        assert answer.status_code in (400, 404, 422)
        assert len(answer.content) < 2000


def test_prompts_that_are_too_many_are_not_tokenized(
    llm: LLM, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches seconds of work on a request that is refused in the end."""
    monkeypatch.setattr(llm.tokenizer, "encode", None)
    answer = http.post("/v1/completions", json={"prompt": ["a"] * 500})
    assert answer.status_code == 400
    assert "500 continuations" in answer.json()["error"]["message"]


def test_names_a_template_cannot_have(http: httpx.Client) -> None:
    """Catches a keyword of the client's that is one of a method's own."""
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"self": 1}}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


def test_paths_are_not_corrected(http: httpx.Client) -> None:
    """Catches a redirect to whatever host the client named, without encryption, with the key."""
    assert http.post("/v1/completions/", json=BODY).status_code == 404


def test_one_connection_too_many_is_dropped(guarded: Loopback) -> None:
    """Catches sockets that run out."""
    connections = guarded.server.server_state.connections.copy
    before = connections()
    lines = [socket.create_connection(("127.0.0.1", guarded.port), timeout=5) for _ in range(12)]
    try:
        lines[-1].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with suppress(ConnectionResetError):
            assert lines[-1].recv(100)[:12] in (b"HTTP/1.1 429", b"")
    finally:
        for line in lines:
            line.close()
    wait_until(lambda: connections() <= before)
    assert httpx.get(f"{guarded.url}/health").status_code == 200


def test_a_client_that_does_not_read_is_dropped(guarded: Loopback) -> None:
    """Catches answers that pile up for a reader who never comes."""
    body = (
        b'{"prompt": "abc", "max_tokens": 450, "ignore_eos": true, "stream": true, "n": 16, '
        b'"logprobs": 20}'
    )
    connections = guarded.server.server_state.connections.copy
    before = connections()
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    line.connect(("127.0.0.1", guarded.port))
    with closing(line):
        line.sendall(HEAD + b"content-type: application/json\r\n")
        line.sendall(b"content-length: %d\r\n\r\n" % len(body) + body)
        cache = guarded.driver.llm.engine.cache
        wait_until(lambda: guarded.driver.num_running > 0)
        wait_until(lambda: connections() <= before)
        wait_until(lambda: cache.num_free == cache.num_blocks)


def test_no_request_of_the_schema_breaks_the_server(llm: LLM) -> None:
    """Catches a 5xx for any body that the served OpenAPI document allows or forbids."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok

    with unchecked(), serving(llm, max_total_tokens=64, max_request_seconds=5.0) as running:
        schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        found = schema.get_all_operations()
        operations = [each.ok() for each in found if isinstance(each, Ok)]
        assert {"/v1/chat/completions", "/v1/completions", "/tokenize"} <= {
            each.path for each in operations
        }
        for operation in operations:
            both = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
            both |= operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

            @given(case=both)
            @settings(
                max_examples=15,
                deadline=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                database=None,
            )
            def never_breaks(case: Any) -> None:
                case.call_and_validate(base_url=running.url, checks=[not_a_server_error])

            never_breaks()
