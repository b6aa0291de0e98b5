"""The engine's own thread, and what the event loop may ask of it.

The thread owns the engine: nothing else steps it or changes it. Requests and cancellations reach
it through a queue that is emptied between two steps; what a step brought goes back in one hand-over
per step, however many requests it served.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from outrider.core.ids import RequestId
from outrider.core.request import Request
from outrider.core.sequence import Status
from outrider.engine.llm import LLM
from outrider.engine.recovery import recover
from outrider.engine.report import Delta, StepReport
from outrider.errors import RequestError, RequestFailed
from outrider.serving.failures import Cancelled, Overloaded, ServerStopping, TimeLimitExceeded
from outrider.serving.flight import Flight
from outrider.serving.history import StepSummary
from outrider.serving.metrics import Metrics
from outrider.serving.ticket import Ticket, Update

logger = logging.getLogger(__name__)

HISTORY_LENGTH: Final = 600
SECONDS_BETWEEN_CHECKS: Final = 0.2
LONGEST_RETRY: Final = 60
FINISHES_REMEMBERED: Final = 64
STOPPING: Final = "the server is shutting down; send the request to another one"


class Driver:
    """Serves tickets with one engine.

    `metrics` and `history` are written by the engine's thread; reading them elsewhere may catch a
    step half counted, never a broken number.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        max_queue: int,
        max_seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Serve with `llm`; at most `max_queue` continuations wait, none lasts `max_seconds`."""
        self.llm = llm
        self.metrics = Metrics()
        self.history: deque[StepSummary] = deque(maxlen=HISTORY_LENGTH)
        self.clock = clock
        self.is_draining = False
        self.is_alive = False
        self.capacity = llm.config.max_num_seqs + max_queue
        self._max_seconds = max_seconds
        self._engine = llm.engine
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._flights: dict[RequestId, Flight] = {}
        self._unstarted: list[Flight] = []
        self._tickets: dict[RequestId, tuple[Ticket, int]] = {}
        self._finishes: deque[float] = deque(maxlen=FINISHES_REMEMBERED)
        self._drain_until = math.inf
        self._next_check = 0.0
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)

    # On the event loop.

    def start(self) -> None:
        """Start the thread; what it brings is handed to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.is_alive = True
        self._thread.start()

    @property
    def num_running(self) -> int:
        """Requests that hold KV blocks."""
        return self._engine.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that were accepted and hold no KV blocks yet."""
        return max(0, len(self._tickets) - self._engine.num_running)

    def submit(self, requests: Sequence[Request], arrival: float) -> Ticket:
        """Queue continuations, all or none.

        Raises:
            Overloaded: The queue has no room for them.
            ServerStopping: The server is going down.
            RequestRejected: An option cannot be served by this engine.
            CapacityError: The KV cache could never hold one.
        """
        if self.is_draining or not self.is_alive:
            raise ServerStopping(STOPPING)
        for request in requests:
            if request.index == 0:  # The others of its prompt have the same options.
                self._engine.check(request)
        if len(self._tickets) + len(requests) > self.capacity:
            raise Overloaded(
                f"{len(self._tickets)} continuations are running or waiting and "
                f"{len(requests)} more do not fit in {self.capacity}; try again later",
                self._retry_after(),
            )
        ticket = Ticket(requests, arrival)
        for number, request in enumerate(requests):
            self._tickets[request.id] = (ticket, number)
        self._commands.put(partial(self._add, ticket.requests, arrival))
        if self._has_ended():  # It broke down meanwhile and may never hear of them.
            self._refuse(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Stop working on a ticket; harmless when it is done."""
        if ticket.num_open:
            error = Cancelled("the client went away")
            self._commands.put(partial(self._fail, [each.id for each in ticket.requests], error))

    def drain(self, seconds: float) -> None:
        """Accept nothing more, and end after `seconds` what is not done by then.

        A second call can only shorten the time.
        """
        self.is_draining = True
        self._commands.put(partial(self._set_drain, self.clock() + seconds))

    async def stop(self) -> None:
        """End everything and the thread."""
        self.is_draining = True
        if self._thread.is_alive():
            self._commands.put(self._stop)
            await asyncio.to_thread(self._thread.join)

    def _has_ended(self) -> bool:
        return not self.is_alive

    def _refuse(self, ticket: Ticket) -> None:
        for request in ticket.requests:
            flight = Flight(request, ticket.arrival, self.clock)
            flight.give_up(ServerStopping(STOPPING))
            self._dispatch([(request.id, None, flight)])

    def _retry_after(self) -> int:
        """Seconds in which one place should become free, from how often that happened lately."""
        if not self._finishes:
            return 1
        per_finish = (self.clock() - self._finishes[0]) / len(self._finishes)
        return min(LONGEST_RETRY, max(1, math.ceil(per_finish * self.num_waiting)))

    def _dispatch(self, updates: Sequence[tuple[RequestId, Delta | None, Flight | None]]) -> None:
        """Sort what a step brought into the mailboxes."""
        for request_id, delta, ended in updates:
            found = self._tickets.get(request_id)
            if found is None:
                continue
            ticket, number = found
            if ended is not None:
                del self._tickets[request_id]
                self._finishes.append(self.clock())
            ticket.put(Update(number, delta, None if ended is None else ended.end()))

    # On the engine's thread.

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._obey()
                if self._flights and not self._is_stopped:
                    self._check_limits()
                    self._step()
        except Exception:
            logger.exception("the engine's thread broke down")
        finally:
            self.is_alive = False
            while not self._commands.empty():
                self._commands.get()()
            self._fail(list(self._flights), ServerStopping(STOPPING))

    def _obey(self) -> None:
        """Carry out what was asked for; without requests to serve, wait until something is."""
        if not self._flights:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _add(self, requests: Sequence[Request], arrival: float) -> None:
        for request in requests:
            flight = Flight(request, arrival, self.clock)
            self._flights[request.id] = flight
            try:
                flight.sequence = self._engine.add(request)
                self._unstarted.append(flight)
            except RequestError as error:
                self._fail([request.id], error)
            except Exception as error:
                logger.exception("request %s could not be queued", request.id)
                self._fail([request.id], RequestFailed(f"internal error: {error!r}"))

    def _fail(self, ids: Iterable[RequestId], error: RequestError) -> None:
        """End requests without an answer."""
        ended: list[tuple[RequestId, Delta | None, Flight | None]] = []
        for request_id in ids:
            flight = self._flights.pop(request_id, None)
            if flight is not None:
                self._take_out(request_id)
                flight.give_up(error)
                flight.count(self.metrics)
                ended.append((request_id, None, flight))
        self._hand_over(ended)

    def _take_out(self, request_id: RequestId) -> None:
        """Abort; the client is told and the others go on even if that fails."""
        try:
            self._engine.abort(request_id)
        except Exception:
            logger.exception("request %s could not be aborted", request_id)

    def _set_drain(self, until: float) -> None:
        self._drain_until = min(self._drain_until, until)
        self._next_check = 0.0

    def _stop(self) -> None:
        self._is_stopped = True

    def _check_limits(self) -> None:
        """End what has lasted too long."""
        now = self.clock()
        if now < self._next_check:
            return
        self._next_check = now + SECONDS_BETWEEN_CHECKS
        if now >= self._drain_until:
            self._fail(list(self._flights), ServerStopping(STOPPING))
            return
        late = [
            request_id
            for request_id, flight in self._flights.items()
            if now - flight.arrival > self._max_seconds
        ]
        if late:
            message = f"the request was not done after {self._max_seconds:g} s; ask for less"
            self._fail(late, TimeLimitExceeded(message))

    def _step(self) -> None:
        try:
            report = self._engine.step()
        except Exception as error:
            logger.exception("a step failed; its requests are tried one by one")
            self._recover(error)
        else:
            self._tell(report)

    def _recover(self, error: Exception) -> None:
        has_suspects = False
        for outcome in recover(self._engine, error):
            has_suspects = True
            if isinstance(outcome, StepReport):
                self._tell(outcome)
            else:
                request_id, reason = outcome
                self._fail([request_id], RequestFailed(reason))
        if not has_suspects:  # It broke before anyone was chosen, and would again.
            self._fail(list(self._flights), RequestFailed(f"internal error: {error!r}"))

    def _tell(self, report: StepReport) -> None:
        """Count a step and hand over what it brought."""
        now = self.clock()
        self.metrics.see_step(report, self._engine)
        self.history.append(StepSummary.of(report, now, self._engine, self.llm.config))
        for done in report.rounds:
            if (flight := self._flights.get(done.request_id)) is not None:
                flight.see_round(done)
        self._note_starts(now - report.times.total)
        updates: list[tuple[RequestId, Delta | None, Flight | None]] = []
        for delta in report.deltas:
            flight = self._flights.get(delta.request_id)
            if flight is None:
                continue
            flight.see(delta, now, self.metrics)
            if delta.finish is None:
                updates.append((delta.request_id, delta, None))
                continue
            del self._flights[delta.request_id]
            flight.count(self.metrics)
            updates.append((delta.request_id, delta, flight))
        self._hand_over(updates)

    def _note_starts(self, began: float) -> None:
        """Note who was in a step for the first time; `began` is when it did."""
        still = []
        for flight in self._unstarted:
            if flight.sequence.status is Status.WAITING:
                still.append(flight)
            else:
                self.metrics.queue_seconds.observe(max(0.0, began - flight.arrival))
        self._unstarted = still

    def _hand_over(self, updates: Sequence[tuple[RequestId, Delta | None, Flight | None]]) -> None:
        if not updates or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._dispatch, updates)
        except RuntimeError:
            logger.debug("the event loop is gone; nobody hears of %d updates", len(updates))
