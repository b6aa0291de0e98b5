"""What passes between the engine's thread and one HTTP request on the event loop."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outrider.core.acceptance import Acceptance
from outrider.core.request import Request
from outrider.engine.report import Delta
from outrider.errors import RequestError


@dataclass(frozen=True, slots=True)
class End:
    """How a continuation ended and what it was worth; made by the engine's thread.

    `accepted_by_length` counts the rounds that verified a draft by (verified, accepted). `failure`
    says why there is no whole answer. Seconds are since the HTTP request arrived.
    """

    num_output: int = 0
    num_cached_prompt: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    accepted_by_length: Mapping[tuple[int, int], int] = field(default_factory=dict)
    first_token_seconds: float | None = None
    seconds: float = 0.0
    failure: RequestError | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What continuation `number` of a ticket gained; with `end` nothing more comes."""

    number: int
    delta: Delta | None
    end: End | None = None


class Ticket:
    """The continuations of one HTTP request, and a mailbox for what they gain.

    Only the event loop's thread touches it.
    """

    def __init__(self, requests: Sequence[Request], arrival: float) -> None:
        """Hold a place for `requests`; `arrival` is a reading of the driver's clock."""
        self.requests = tuple(requests)
        self.arrival = arrival
        self.num_open = len(requests)
        self._inbox: list[Update] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, update: Update) -> None:
        """Add to the mailbox."""
        if update.end is not None:
            self.num_open -= 1
        self._inbox.append(update)
        self._wake()

    async def take(self, seconds: float | None = None) -> list[Update]:
        """Wait until there is something and give all of it; nothing when `seconds` are over."""
        if not self._inbox:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        updates, self._inbox = self._inbox, []
        return updates

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
