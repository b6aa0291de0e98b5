"""Timed requests against a scripted server: what is noted of good and of broken answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from outrider.core.exchange import Exchange
from outrider.errors import ConfigError
from outrider.serving.load.client import RequestOptions, first_model, read_stream, send
from outrider.serving.load.http import Address, HttpClient
from tests.fake_server import (
    BREAK,
    END,
    STREAM,
    Action,
    FakeServer,
    Received,
    answer,
    chunk,
    event,
    fake_server,
    piece,
    streamed,
    usage,
)

QUESTION = [{"role": "user", "content": "Hi"}]
GOOD = streamed(piece(""), piece("Hel"), piece("lo"), piece("", "stop"), usage(7, 3))


def ask(server: FakeServer, num: int = 1, **options: Any) -> list[Exchange]:
    """Send requests one after the other over one client."""
    exchanges = [Exchange("c", 0, 0.0) for _ in range(num)]

    async def run() -> None:
        http = HttpClient(server.url, {"X-Test": "yes"})
        chosen = RequestOptions(model="m", **options)
        for number, each in enumerate(exchanges):
            clock = asyncio.get_running_loop().time
            await send(http, chosen, QUESTION, each, number, clock)
        await http.close()

    asyncio.run(run())
    return exchanges


def test_a_whole_answer_is_read() -> None:
    """Catches text, usage or the finish reason being lost, and a role event taken for a token."""
    with fake_server(lambda _: GOOD) as server:
        (got,) = ask(server)
    assert (got.text, got.finish_reason, got.error) == ("Hello", "stop", None)
    assert (got.input_tokens, got.output_tokens, len(got.chunk_times)) == (7, 3, 2)
    body = server.posts[0].body
    assert body == {
        "model": "m",
        "messages": QUESTION,
        "max_tokens": 128,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert server.posts[0].headers["x-test"] == "yes"


def test_text_completions_and_options_in_the_body() -> None:
    """Catches an option that is not sent, or chat's shape sent to the other endpoint."""
    script = streamed(piece("a", chat=False), piece("b", "length", chat=False))
    with fake_server(lambda _: script) as server:
        first, second = ask(
            server,
            2,
            endpoint="/v1/completions",
            temperature=0.5,
            seed=4,
            ignore_eos=True,
            extra={"top_p": 0.9, "stream_options": None},
        )
    assert (first.text, second.text, second.num_output) == ("ab", "ab", 2)
    bodies = [each.body for each in server.posts]
    assert bodies[0]["prompt"] == "Hi"
    assert [each["seed"] for each in bodies] == [4, 5]
    assert bodies[0]["ignore_eos"] is True
    assert bodies[0]["top_p"] == 0.9
    assert "stream_options" not in bodies[0]


def test_connections_are_used_again_and_replaced_when_they_went_stale() -> None:
    """Catches a connection per request, and a failure because an idle one was closed."""
    with fake_server(lambda _: GOOD) as server:
        assert all(each.is_complete for each in ask(server, 3))
        assert server.connections == 1
    with fake_server(lambda _: [*GOOD, BREAK]) as server:
        assert all(each.is_complete for each in ask(server, 3))
        assert server.connections == 3


BROKEN: dict[str, tuple[Sequence[Action], str, str]] = {
    "disconnect before the headers": ([BREAK], "disconnected", ""),
    "disconnect mid-stream": ([STREAM, chunk(piece("a")), BREAK], "disconnected", "a"),
    "disconnect mid-chunk": ([STREAM, b"ff\r\ndata", BREAK], "disconnected", ""),
    "stream without an end": ([STREAM, chunk(piece("a")), END], "cut off", "a"),
    "malformed event": ([STREAM, chunk(b"data: {oops\n\n"), END], "malformed event", ""),
    "event of another shape": (streamed(b"data: [1]\n\n"), "malformed event", ""),
    "usage of another shape": (streamed(event({"usage": {"x": 1}})), "malformed event", ""),
    "bytes that are no text": (streamed(b"data: \xff\xfe\n\n"), "malformed event", ""),
    "error in the stream": (
        streamed(piece("a"), event({"error": {"message": "no memory"}})),
        "error in stream",
        "a",
    ),
    "no HTTP": ([b"SSH-2.0-OpenSSH\r\n", BREAK], "no HTTP", ""),
    "bad chunk size": ([STREAM, b"zz\r\n", BREAK], "no HTTP", ""),
    "error status": (
        answer("404 Not Found", b'{"error": {"message": "no model m"}}'),
        "HTTP 404",
        "",
    ),
    "error page": (answer("500 Internal Server Error", b"<html>"), "HTTP 500", ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers_are_failures_by_reason(name: str) -> None:
    """Catches a broken answer counted as a good one, and one that stops the whole run."""
    script, reason, text = BROKEN[name]
    with fake_server(lambda _: script) as server:
        (got,) = ask(server)
    assert (got.reason, got.text) == (reason, text)
    assert got.error


def test_messages_of_errors_are_kept() -> None:
    """Catches a report that hides what the server said."""
    with fake_server(lambda _: BROKEN["error status"][0]) as server:
        (got,) = ask(server)
    assert got.error == "no model m"


def test_a_slow_server_times_out_alone() -> None:
    """Catches a request without a limit, and a late answer read by the next request."""

    def respond(request: Received) -> Sequence[Action]:
        return [STREAM, chunk(piece("a")), 5.0] if request.number == 0 else GOOD

    with fake_server(respond) as server:
        slow, good = ask(server, 2, timeout=0.2)
    assert (slow.reason, slow.text) == ("timeout", "a")
    assert good.text == "Hello"


BUSY = answer("429 Too Many Requests", b'{"error": {"message": "full"}}', "Retry-After: 0.01")


def test_a_busy_server_is_asked_again_only_if_wanted() -> None:
    """Catches 429 hidden from the count, a pause that is not kept, and endless retries."""
    with fake_server(lambda request: BUSY if request.number < 2 else GOOD) as server:
        turned_away, served = ask(server, 1)[0], ask(server, 1, max_retries=2)[0]
    assert (turned_away.reason, turned_away.error) == ("HTTP 429", "full")
    assert (served.error, served.retries, served.text) == (None, 1, "Hello")
    assert served.ttft >= 0.01
    with fake_server(lambda _: BUSY) as server:
        (given_up,) = ask(server, 1, max_retries=2)
    assert (given_up.reason, given_up.retries, len(server.posts)) == ("HTTP 429", 2, 3)


def test_times_are_those_of_arrival() -> None:
    """Exact arithmetic: catches TTFT, TPOT, ITL or E2EL off by an event."""
    now = 100.0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal now
        script = [(0.5, piece("")), (0.25, piece("a")), (1.0, piece("b") + piece("c"))]
        script += [(2.0, piece("d")), (0.5, piece("", "stop")), (9.0, usage(3, 7))]
        for pause, data in script:
            now += pause
            yield data

    exchange = Exchange("c", 0, wanted=99.0, sent=100.0)
    asyncio.run(read_stream(pieces(), exchange, lambda: now))
    assert exchange.chunk_times == [100.75, 101.75, 101.75, 103.75]
    assert (exchange.ttft, exchange.e2el, exchange.queued) == (0.75, 4.25, 1.0)
    assert exchange.tpot == pytest.approx((4.25 - 0.75) / 6)


def test_an_answer_without_text_ends_where_it_ends() -> None:
    """Catches a crash, or a TTFT of zero, where the model has nothing to say."""

    async def pieces() -> AsyncIterator[bytes]:
        yield piece("", "stop")

    exchange = Exchange("c", 0, wanted=0.0, sent=1.0)
    asyncio.run(read_stream(pieces(), exchange, lambda: 3.0))
    assert (exchange.error, exchange.ttft, exchange.tpot, exchange.num_output) == (
        None,
        2.0,
        None,
        0,
    )


def test_addresses() -> None:
    """Catches a port, a path or a scheme taken wrongly."""
    assert Address.parse("https://a.b/v2/") == Address("a.b", 443, True, "/v2")
    assert Address.parse("http://[::1]:80") == Address("::1", 80, False, "")
    for bad in ("127.0.0.1:8000", "ftp://a", "http://", "http://a:b"):
        with pytest.raises(ConfigError, match="no address"):
            Address.parse(bad)


def test_the_first_model_is_asked_for() -> None:
    """Catches a traceback where the server is down or lists nothing."""

    def model_of(url: str) -> str:
        async def run() -> str:
            http = HttpClient(url)
            try:
                return await first_model(http)
            finally:
                await http.close()

        return asyncio.run(run())

    listed = json.dumps({"data": [{"id": "tiny"}, {"id": "other"}]}).encode()
    with fake_server(lambda _: answer("200 OK", listed)) as server:
        assert model_of(server.url) == "tiny"
        assert server.received[0].path == "/v1/models"
    with pytest.raises(ConfigError, match="no server answers"):
        model_of(server.url)
    with (
        fake_server(lambda _: answer("200 OK", b"{}")) as server,
        pytest.raises(ConfigError, match="--model"),
    ):
        model_of(server.url)
