"""Conversations onto a server: as fast as a number of users takes them, or at random times."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from outrider.core.exchange import Conversation, Exchange, Message
from outrider.errors import ConfigError, RequestFailed
from outrider.serving.load.client import Clock, RequestOptions, first_model, get_text, send
from outrider.serving.load.http import HttpClient

METRICS = "/metrics"
_WARM_UP = Conversation("warm-up", ("Count from one to twenty in words.",))

OnProgress = Callable[[int, int], None]
"""Called with the conversations that are done, and with how many there are."""
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSetting:
    """How the load is put on.

    Without a rate all conversations are there from the start, and `max_concurrency` users work
    through them. With a rate, in conversations per second, they arrive at random times: gaps from
    a gamma distribution with shape `burstiness`, 1 is a Poisson process, less comes in bursts.
    """

    max_concurrency: int | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    seed: int = 0
    num_warmups: int = 1


@dataclass(slots=True)
class LoadResult:
    """Every exchange in the order they were sent, and the metrics page before and after."""

    model: str
    seconds: float
    exchanges: list[Exchange] = field(default_factory=list)
    skipped: int = 0
    """Turns that were not sent because an earlier one of their conversation failed."""
    metrics_before: str | None = None
    metrics_after: str | None = None


def arrival_times(num: int, setting: LoadSetting) -> list[float]:
    """Give the seconds after the start at which each conversation arrives.

    They are scaled so that the last arrives at `num` / rate: the rate is kept in every draw.
    """
    if math.isinf(setting.request_rate) or num == 0:
        return [0.0] * num
    rng = np.random.default_rng(setting.seed)
    ends = np.cumsum(rng.gamma(setting.burstiness, size=num))
    return [float(each) for each in ends / ends[-1] * num / setting.request_rate]


async def put_load(
    http: HttpClient,
    conversations: Sequence[Conversation],
    options: RequestOptions,
    setting: LoadSetting,
    on_progress: OnProgress = lambda _done, _all: None,
    *,
    clock: Clock = time.perf_counter,
    sleep: Sleep = asyncio.sleep,
) -> LoadResult:
    """Warm up, then run all conversations. A request that fails ends its conversation alone.

    Raises:
        RequestFailed: A warm-up request failed: the server or the options are not right.
    """
    await _warm_up(http, options, setting.num_warmups, clock)
    before = await _metrics(http)
    load = _Load(http, options, setting, clock, sleep)
    started = clock()
    due = arrival_times(len(conversations), setting)
    first_numbers = np.cumsum([0, *(len(each.turns) for each in conversations)])
    done = 0

    async def play(index: int, conversation: Conversation) -> None:
        nonlocal done
        await load.play(conversation, int(first_numbers[index]), started + due[index])
        done += 1
        on_progress(done, len(conversations))

    async with asyncio.TaskGroup() as tasks:
        for index, conversation in enumerate(conversations):
            tasks.create_task(play(index, conversation))
    return LoadResult(
        model=options.model,
        seconds=clock() - started,
        exchanges=sorted(load.exchanges, key=lambda each: each.sent),
        skipped=load.skipped,
        metrics_before=before,
        metrics_after=await _metrics(http),
    )


async def _metrics(http: HttpClient) -> str | None:
    """Read the metrics page; a server without one is measured all the same."""
    try:
        return await get_text(http, METRICS)
    except ConfigError:
        return None


async def _warm_up(http: HttpClient, options: RequestOptions, num: int, clock: Clock) -> None:
    for number in range(num):
        exchange = Exchange(_WARM_UP.id, 0, clock())
        messages = [_user(_WARM_UP.turns[0])]
        await send(http, options, messages, exchange, number, clock)
        if not exchange.is_complete:
            raise RequestFailed(
                f"the warm-up request failed ({exchange.reason}): {exchange.error}; "
                "check --base-url, --endpoint and --model"
            )


@dataclass(slots=True)
class _Load:
    """Runs conversations side by side."""

    http: HttpClient
    options: RequestOptions
    setting: LoadSetting
    clock: Clock
    sleep: Sleep
    exchanges: list[Exchange] = field(default_factory=list)
    skipped: int = 0
    _seats: contextlib.AbstractAsyncContextManager[None] = field(init=False)

    def __post_init__(self) -> None:
        limit = self.setting.max_concurrency
        self._seats = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()

    async def play(self, conversation: Conversation, first_number: int, due: float) -> None:
        """Wait until it is due and there is a seat, then send turn after turn."""
        pause = due - self.clock()
        if pause > 0:
            await self.sleep(pause)
        async with self._seats:
            messages = list(conversation.opening)
            for turn, text in enumerate(conversation.turns):
                messages.append(_user(text))
                exchange = Exchange(conversation.id, turn, due if turn == 0 else self.clock())
                number = first_number + turn
                await send(self.http, self.options, messages, exchange, number, self.clock)
                self.exchanges.append(exchange)
                if not exchange.is_complete:
                    self.skipped += len(conversation.turns) - turn - 1
                    return
                messages.append({"role": "assistant", "content": exchange.text})


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def run_load(
    base_url: str,
    headers: dict[str, str],
    conversations: Sequence[Conversation],
    options: RequestOptions,
    setting: LoadSetting,
    on_progress: OnProgress,
) -> LoadResult:
    """Do `put_load` in a loop of its own; an empty model name asks the server for its first.

    Raises:
        RequestFailed: A warm-up request failed.
        ConfigError: No server answers, or the address is none.
    """

    async def run() -> LoadResult:
        http = HttpClient(base_url, headers)
        chosen = options
        try:
            if not options.model:
                chosen = replace(options, model=await first_model(http))
            return await put_load(http, conversations, chosen, setting, on_progress)
        finally:
            await http.close()

    return asyncio.run(run())
