"""Drives one `Core`: tells it what happens and what time it is, and does what it says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from strata.serving.gateway.backend import Ended, Hands
from strata.serving.gateway.meters import Meters
from strata.serving.gateway.request_stream import Ask, Fault, Ticket
from strata.serving.live.core import Core
from strata.serving.live.events import Arrive, Cancelled, Event, Failed, Finished, FirstToken, Planned, Tick
from strata.serving.live.instructions import (
    Abort,
    Dispatch,
    Expel,
    Instruction,
    Load,
    Plan,
    Refuse,
    Reject,
    Release,
)
from strata.serving.live.replan import answer

log = logging.getLogger(__name__)

STATUS: Final = {"queue-full": 429, "request-known": 409, "request-too-long": 400}
"""HTTP status of a rejection; 503 for every other reason."""
AFTER_FAULT_S: Final = 1.0
"""Pause to the next tick after one that went wrong."""


@dataclass(slots=True)
class _Attempt:
    number: int
    node_ids: list[str]
    task: asyncio.Task[None]


class Driver:
    """One model: its scheduler, its requests, and the tasks that run them.

    clock: monotonic seconds. urls: addresses of nodes by id; `hands` reads them, who joins is written by callers,
    who is expelled is taken out here.
    """

    def __init__(
        self, core: Core, hands: Hands, urls: dict[str, str], meters: Meters, *, clock: Callable[[], float]
    ) -> None:
        self.core, self.hands, self.urls, self.meters, self.clock = core, hands, urls, meters, clock
        self.name = core.model.model_name
        self.tickets: dict[str, Ticket] = {}
        self._attempts: dict[str, _Attempt] = {}
        self.tasks = set[asyncio.Task[Any]]()
        self._timer: asyncio.TimerHandle | None = None
        self.num_beats = 0

    def running_on(self, node_id: str) -> frozenset[str]:
        """Return the requests whose present attempt uses a node."""
        return frozenset(name for name, attempt in self._attempts.items() if node_id in attempt.node_ids)

    # What happens

    def post(self, event: Event) -> tuple[Instruction, ...]:
        """Tell the scheduler of an event and do what it says; return what it said.

        Whatever goes wrong is told and counted here, and the next event is served as if nothing had happened.
        """
        try:
            instructions = self.core.handle(event, self.clock())
        except Exception as error:
            self._fault(type(event).__name__, error)
            self._drop(event)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(AFTER_FAULT_S, self._tick)
            return ()
        for instruction in instructions:
            self.meters.instructions.labels(self.name, type(instruction).__name__).inc()
            try:
                self._do(instruction)
            except Exception as error:
                self._fault(type(instruction).__name__, error)
        self._set_timer()
        return instructions

    def submit(self, ask: Ask, request_id: str) -> Ticket:
        """Take a request; its ticket may be over when this returns. Raises Fault for one that cannot be served."""
        signal, prompt = self.hands.admit(ask, request_id)
        ticket = self.tickets[request_id] = Ticket(ask, signal, prompt, arrived_s=self.clock())
        self.meters.tokens.labels(self.name, "prompt").inc(signal.prompt_tokens)
        self.post(Arrive(signal))
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Forget a request whose client has its answer, or has gone."""
        if not ticket.is_over:
            ticket.fail(Fault(499, "the client has gone", "cancelled"))
            self._close(ticket)
            self.post(Cancelled(ticket.request_id))

    def give_up(self) -> None:
        """End all requests: there is no time left for them."""
        for ticket in list(self.tickets.values()):
            self._fail(ticket, Fault(503, "the gateway stops before this request has ended", "draining"))

    async def stop(self) -> None:
        """End all tasks and requests."""
        if self._timer:
            self._timer.cancel()
        self.give_up()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _set_timer(self) -> None:
        wake_s, loop = self.core.next_wake_s(self.clock()), asyncio.get_running_loop()
        if wake_s is None:
            return
        at = loop.time() + wake_s - self.clock()
        # Never put off: under steady traffic every event would, and no tick would ever come.
        if self._timer is None or at < self._timer.when():
            if self._timer:
                self._timer.cancel()
            self._timer = loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(Tick())

    # What is to be done

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Dispatch():
                self._dispatch(instruction)
            case Abort(request_id, attempt):
                self._stop_attempt(request_id, attempt)
            case Reject(request_id, reason, retry_after_s):
                if ticket := self.tickets.get(request_id):
                    status = STATUS.get(reason.token, 503)
                    self._fail(ticket, Fault(status, str(reason), reason.token, retry_after_s=retry_after_s))
            case Plan():
                self._start(self._plan(instruction))
            case Load():
                self._start(self.hands.load(instruction))
            case Release():
                self._start(self.hands.release(instruction))
            case Expel(node_id, reason):
                log.warning("%s", reason)
                self.urls.pop(node_id, None)
            case Refuse():
                pass  # whoever posted the event tells the node

    async def _plan(self, plan: Plan) -> None:
        try:
            planned = await asyncio.to_thread(answer, plan, self.core.model, self.core.demand, self.core.config)
        except Exception as error:
            self._fault("Plan", error)
            planned = Planned(plan.version, plan.current)
        self.post(planned)

    def _dispatch(self, dispatch: Dispatch) -> None:
        ticket = self.tickets.get(dispatch.request_id)
        if ticket is None or ticket.is_over:
            self.post(Cancelled(dispatch.request_id))  # or it would hold its slots until some beat
            return
        ticket.attempt = dispatch.attempt
        task = self._start(self._run(ticket, dispatch))
        nodes = [stage.node_id for stage in dispatch.route.stages]
        self._attempts[dispatch.request_id] = _Attempt(dispatch.attempt, nodes, task)

    async def _run(self, ticket: Ticket, dispatch: Dispatch) -> None:
        request_id, number = dispatch.request_id, dispatch.attempt

        def first_token() -> None:
            if ticket.first_s is None:
                ticket.first_s = self.clock()
                self.meters.ttft.labels(self.name).observe(ticket.first_s - ticket.arrived_s)
            self.post(FirstToken(request_id, number))

        try:
            ended = await self.hands.attempt(ticket, dispatch, first_token)
        except Exception as error:
            self._fault("attempt", error)
            ended = Ended(error=f"{type(error).__name__}: {error}")
        if ticket.attempt != number or ticket.is_over:
            return
        attempt = self._attempts.pop(request_id)
        outcome = "ok" if ended.finish is not None else "refused" if ended.fault else "failed"
        self.meters.attempts.labels(self.name, outcome).inc()
        if not ended.is_clean:
            told = [name for name in attempt.node_ids if name != ended.suspect]
            self._start(self.hands.abort(told, request_id, number))
        if ended.finish is not None:
            ticket.end(ended.finish)
            self._close(ticket)
            self.post(Finished(request_id, number, ticket.num_generated))
        elif ended.fault:
            self._fail(ticket, ended.fault)
            if ended.suspect:
                self.post(Failed(request_id, number, ticket.num_generated, ended.suspect))
            self.post(Cancelled(request_id))
        else:
            log.warning("%s, attempt %d: %s", request_id, number, ended.error)
            self.post(Failed(request_id, number, ticket.num_generated, ended.suspect))

    def _stop_attempt(self, request_id: str, number: int) -> None:
        attempt = self._attempts.get(request_id)
        if attempt is None or attempt.number != number:
            return
        del self._attempts[request_id]
        attempt.task.cancel()
        self.meters.attempts.labels(self.name, "aborted").inc()
        self._start(self.hands.abort(attempt.node_ids, request_id, number))

    # Endings

    def _fail(self, ticket: Ticket, fault: Fault) -> None:
        ticket.fail(fault)
        self._close(ticket)

    def _close(self, ticket: Ticket) -> None:
        if self.tickets.pop(ticket.request_id, None) is None:
            return
        outcome = ticket.finish or (ticket.fault.code if ticket.fault else "unknown")
        self.meters.requests.labels(self.name, outcome).inc()
        self.meters.tokens.labels(self.name, "generated").inc(ticket.num_generated)
        self.meters.latency.labels(self.name).observe(self.clock() - ticket.arrived_s)

    def _drop(self, event: Event) -> None:
        """End the request that an event was about, here and, as far as that goes, with the scheduler."""
        request_id = event.request.request_id if isinstance(event, Arrive) else getattr(event, "request_id", "")
        if ticket := self.tickets.get(request_id):
            self._fail(ticket, Fault(500, "internal error", "internal"))
            if attempt := self._attempts.get(request_id):
                self._stop_attempt(request_id, attempt.number)
            if not isinstance(event, Cancelled):
                self.post(Cancelled(request_id))

    def _fault(self, what: str, error: BaseException) -> None:
        self.meters.faults.labels(self.name, what).inc()
        log.error("%s of %s went wrong", what, self.name, exc_info=error)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._fault("task", error)
