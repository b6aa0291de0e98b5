"""Who is sent when: users in a closed loop, random arrivals, turns of a conversation."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outrider.core.exchange import Conversation
from outrider.errors import RequestFailed
from outrider.serving.load.client import RequestOptions
from outrider.serving.load.generate import (
    LoadResult,
    LoadSetting,
    arrival_times,
    put_load,
    run_load,
)
from outrider.serving.load.http import HttpClient
from tests.fake_server import (
    BREAK,
    STREAM,
    Action,
    FakeServer,
    Received,
    answer,
    chunk,
    fake_server,
    piece,
    streamed,
)

TALKS = [Conversation(f"c{number}", ("one", "two")) for number in range(6)]


def respond(request: Received) -> Sequence[Action]:
    """Answer slowly enough that requests overlap; the metrics page counts the posts."""
    if request.path == "/metrics":
        return answer("200 OK", f"posts {request.number}".encode())
    first, *rest = streamed(piece(f"a{len(request.body['messages'])}", "stop"))
    return [first, 0.005, *rest]


def load(server: FakeServer, **setting: Any) -> LoadResult:
    options = RequestOptions(model="m", temperature=1.0)
    done: list[tuple[int, int]] = []
    result = run_load(
        server.url, {}, TALKS, options, LoadSetting(**setting), lambda *each: done.append(each)
    )
    assert done == [(number + 1, len(TALKS)) for number in range(len(TALKS))]
    return result


@pytest.mark.parametrize("users", [1, 3, None])
def test_so_many_requests_are_under_way(users: int | None) -> None:
    """Catches a limit that is not kept or not used, in a closed loop."""
    with fake_server(respond) as server:
        result = load(server, max_concurrency=users, num_warmups=0)
    assert server.most_running == (users or len(TALKS))
    assert len(result.exchanges) == 12
    assert all(each.is_complete for each in result.exchanges)


def test_turns_follow_each_other_with_the_servers_own_answers() -> None:
    """Catches a turn sent before the last answer, or without it, and seeds that repeat."""
    with fake_server(respond) as server:
        load(server, max_concurrency=2, num_warmups=0)
    later = [each.body for each in server.posts if len(each.body["messages"]) == 3]
    assert len(later) == len(TALKS)
    assert [message["content"] for message in later[0]["messages"]] == ["one", "a1", "two"]
    assert sorted(each.body["seed"] for each in server.posts) == list(range(12))


def test_warm_ups_are_not_counted() -> None:
    """Catches warm-up requests in the figures or between the readings of the metrics."""
    with fake_server(respond) as server:
        result = load(server, max_concurrency=1, num_warmups=2)
    assert len(server.posts) == 14
    assert len(result.exchanges) == 12
    assert (result.metrics_before, result.metrics_after) == ("posts 2", "posts 14")


def test_a_failed_warm_up_stops_at_once() -> None:
    """Catches a whole run of failures because of a wrong model name."""
    refusal = answer("404 Not Found", b'{"error": {"message": "no such model"}}')
    with (
        fake_server(lambda _: refusal) as server,
        pytest.raises(RequestFailed, match=r"HTTP 404.*no such model"),
    ):
        load(server)


def test_a_failure_ends_its_own_conversation_alone() -> None:
    """Catches turns sent after a failed one, and one failure that stops the others."""

    def broken(request: Received) -> Sequence[Action]:
        is_first = request.method == "POST" and request.number == 0
        return [STREAM, chunk(piece("a")), BREAK] if is_first else respond(request)

    with fake_server(broken) as server:
        result = load(server, max_concurrency=1, num_warmups=0)
    assert [each.is_complete for each in result.exchanges] == [False, *[True] * 10]
    assert result.skipped == 1


def test_no_server_is_said_in_a_sentence() -> None:
    """Catches a traceback where nothing listens, or where the server goes during the run."""
    with fake_server(respond) as server:
        pass
    with pytest.raises(RequestFailed, match="connection refused"):
        load(server)
    result = load(server, num_warmups=0)
    assert {each.reason for each in result.exchanges} == {"connection refused"}
    assert (result.metrics_before, result.metrics_after) == (None, None)


def test_arrivals_keep_the_rate_and_the_burstiness() -> None:
    """Statistics of one fixed draw: catches rate and shape exchanged or inverted."""
    for burstiness in (0.25, 1.0, 4.0):
        times = arrival_times(20000, LoadSetting(request_rate=5.0, burstiness=burstiness))
        gaps = np.diff([0.0, *times])
        assert times[-1] == pytest.approx(20000 / 5.0)
        # A gamma distribution has a deviation of mean / sqrt(shape).
        assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)
    setting = LoadSetting(request_rate=5.0, burstiness=4.0, seed=1)
    assert arrival_times(9, setting) == arrival_times(9, setting)
    assert arrival_times(3, LoadSetting()) == [0.0, 0.0, 0.0]


def test_arrivals_are_waited_for() -> None:
    """Catches conversations sent before they are due, by a clock that only sleeping moves."""
    now = 0.0
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        sleeps.append(seconds)

    async def run(url: str) -> LoadResult:
        http = HttpClient(url)
        setting = LoadSetting(request_rate=2.0, num_warmups=0, seed=3)
        talks = [Conversation(f"c{number}", ("one",)) for number in range(4)]
        options = RequestOptions(model="m")
        result = await put_load(http, talks, options, setting, clock=lambda: now, sleep=sleep)
        await http.close()
        return result

    with fake_server(respond) as server:
        result = asyncio.run(run(server.url))
    due = arrival_times(4, LoadSetting(request_rate=2.0, seed=3))
    assert sleeps == due
    assert sorted(each.wanted for each in result.exchanges) == due
    assert due[-1] == 2.0
