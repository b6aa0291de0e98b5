"""The engine's thread and its queue, without HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from outrider.core.ids import RequestId
from outrider.core.request import SamplingParams
from outrider.errors import RequestRejected
from outrider.serving.driver import Driver
from outrider.serving.failures import Cancelled, Overloaded, ServerStopping, TimeLimitExceeded
from outrider.serving.ticket import End, Ticket
from tests.loopback import tiny_llm
from tests.unchecked import unchecked

LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def drive(
    folder: Path,
    body: Callable[[Driver], Awaitable[None]],
    *,
    max_queue: int = 4,
    max_seqs: int = 1,
) -> Driver:
    """Run the body on an event loop with a driver of a tiny model; everything must be free then."""
    llm = tiny_llm(folder, max_num_seqs=1)
    driver = Driver(llm, max_queue=max_queue, max_seconds=60.0)

    async def run() -> None:
        driver.start()
        try:
            await body(driver)
        finally:
            await driver.stop()

    with unchecked():
        asyncio.run(asyncio.wait_for(run(), 60))
    assert not driver.is_alive
    assert llm.engine.cache.num_free == llm.engine.cache.num_blocks
    return driver


def submit(driver: Driver, params: SamplingParams = LONG) -> Ticket:
    return driver.submit(driver.llm.new_requests("abc", params), driver.clock())


async def ends_of(ticket: Ticket) -> list[End]:
    ends: list[End] = []
    while len(ends) < len(ticket.requests):
        ends += [update.end for update in await ticket.take() if update.end is not None]
    return ends


def test_a_ticket_ends_with_all_its_continuations(tmp_path: Path) -> None:
    """Catches an end that is missing or told twice, and times that run backwards."""

    async def body(driver: Driver) -> None:
        ticket = submit(driver, SamplingParams(max_tokens=9, n=3, ignore_eos=True))
        for end in await ends_of(ticket):
            assert end.failure is None
            assert end.num_output == 9
            assert end.first_token_seconds is not None
            assert 0 <= end.first_token_seconds <= end.seconds
        assert ticket.num_open == 0
        assert driver.num_waiting == 0
        driver.cancel(ticket)

    driver = drive(tmp_path, body)
    assert driver.metrics.finished == {"length": 3}
    assert driver.metrics.num_generated_tokens == 27
    assert (
        sum(len(step.verify_lengths) for step in driver.history) == driver.metrics.acceptance.rounds
    )


def test_the_queue_has_an_end(tmp_path: Path) -> None:
    """Catches a request that is half accepted, and a place that is not given back."""

    async def body(driver: Driver) -> None:
        first, second = submit(driver), submit(driver)
        with pytest.raises(Overloaded) as refused:
            driver.submit(
                driver.llm.new_requests("abc", SamplingParams(max_tokens=1, n=2)), driver.clock()
            )
        assert refused.value.retry_after >= 1
        third = submit(driver)
        with pytest.raises(Overloaded):
            submit(driver)
        driver.cancel(second)
        [end] = await ends_of(second)
        assert isinstance(end.failure, Cancelled)
        fourth = submit(driver, SamplingParams(max_tokens=1))
        for ticket in (first, third, fourth):
            assert [end.failure for end in await ends_of(ticket)] == [None]

    driver = drive(tmp_path, body, max_queue=2)
    assert driver.metrics.finished == {"length": 3, "abort": 1}


def test_bad_requests_never_reach_the_queue(tmp_path: Path) -> None:
    """Catches a refusal that comes after the answer has begun."""

    async def body(driver: Driver) -> None:
        bad = SamplingParams(max_tokens=1, logit_bias={9999: 1.0})
        with pytest.raises(RequestRejected):
            submit(driver, bad)
        assert driver.num_waiting == 0

    drive(tmp_path, body)


def test_a_drained_driver_ends_what_is_left(tmp_path: Path) -> None:
    """Catches requests that are accepted or go on after the end, and ends without a reason."""

    async def body(driver: Driver) -> None:
        tickets = [submit(driver) for _ in range(3)]
        await tickets[0].take()
        driver.drain(0.0)
        with pytest.raises(ServerStopping):
            submit(driver)
        for ticket in tickets:
            [end] = await ends_of(ticket)
            assert isinstance(end.failure, ServerStopping)

    drive(tmp_path, body)


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Catches a limit that is only kept by requests that run."""

    async def body(driver: Driver) -> None:
        tickets = [driver.submit(driver.llm.new_requests("abc", LONG), -100.0) for _ in range(3)]
        for ticket in tickets:
            [end] = await ends_of(ticket)
            assert isinstance(end.failure, TimeLimitExceeded)

    drive(tmp_path, body)


def test_an_abort_that_fails_harms_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches an engine's thread that dies of one request it could not let go."""

    async def body(driver: Driver) -> None:
        abort = driver.llm.engine.abort
        broken = submit(driver)
        await broken.take()

        def fail_once(request_id: RequestId) -> None:
            driver.llm.engine.abort = abort  # type: ignore[method-assign]
            abort(request_id)
            raise RuntimeError("planted")

        driver.llm.engine.abort = fail_once  # type: ignore[method-assign]
        driver.cancel(broken)
        [end] = await ends_of(submit(driver, SamplingParams(max_tokens=4, ignore_eos=True)))
        assert end.failure is None

    drive(tmp_path, body)
    assert "could not be aborted" in caplog.text
