"""Drives one `Core`: tells it what happens and what time it is, and does what it says."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from functools import cache
from typing import Final

from strata.clock import Clock
from strata.serving.gateway.backend import AttemptResult, BackendClient
from strata.serving.gateway.meters import Meters
from strata.serving.gateway.openai import ApiError, GenerationRequest
from strata.serving.gateway.request_stream import RequestStream
from strata.serving.live import events, instructions
from strata.serving.live.core import Core
from strata.serving.live.replan import answer
from strata.serving.tasks import TaskSet

log = logging.getLogger(__name__)

STATUS: Final = {"queue-full": 429, "request-known": 409, "request-too-long": 400}
"""HTTP status of a rejection; 503 for every other reason."""
GONE: Final = 499
"""The status of a request whose client has gone, which nobody sees but the counters."""
AFTER_FAULT_S: Final = 1.0
"""Pause to the next tick after one that went wrong."""


class Driver:
    """One model: its scheduler, its requests, and the tasks that run them. clock: monotonic seconds."""

    def __init__(self, core: Core, backend_client: BackendClient, meters: Meters, *, clock: Clock) -> None:
        self.core, self.backend_client, self.meters, self.clock = core, backend_client, meters, clock
        self.name = core.model.model_name
        self.streams: dict[str, RequestStream] = {}
        self.tasks = TaskSet(lambda error: self._fault("task", error))
        self.num_heartbeats = 0
        self._timer: asyncio.TimerHandle | None = None
        # The library looks its children up under a lock.
        self._of = cache(lambda metric, *labels: metric.labels(self.name, *labels))

    def running_on(self, node_id: str) -> frozenset[str]:
        """Return the requests whose present attempt uses a node."""
        return frozenset(name for name, stream in self.streams.items() if node_id in stream.node_ids)

    # What happens

    def post(self, event: events.Event) -> tuple[instructions.Instruction, ...]:
        """Tell the scheduler of an event and do what it says; return what it said.

        Whatever goes wrong is told and counted here, and the next event is served as if nothing had happened.
        """
        try:
            orders = self.core.handle(event, self.clock())
        except Exception as error:
            self._fault(type(event).__name__, error)
            self._drop(event)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(AFTER_FAULT_S, self._tick)
            return ()
        for instruction in orders:
            self._of(self.meters.instructions, type(instruction).__name__).inc()
            try:
                self._do(instruction)
            except Exception as error:
                self._fault(type(instruction).__name__, error)
        self._set_timer()
        return orders

    async def submit(
        self,
        request: GenerationRequest,
        request_id: str,
        *,
        created: int,
        ttft_goal_s: float,
        tpot_goal_s: float,
    ) -> RequestStream:
        """Take a request; its stream may be over when this returns. Raises ApiError where it cannot be served."""
        signal, prompt = await self.backend_client.admit(request, request_id)
        if min(ttft_goal_s, tpot_goal_s) < math.inf:
            signal = replace(signal, ttft_goal_s=ttft_goal_s, tpot_goal_s=tpot_goal_s)
        stream = self.streams[request_id] = RequestStream(
            request,
            signal,
            prompt,
            arrived_s=self.clock(),
            decoder=self.backend_client.decoder(prompt),
            created=created,
            on_first_token=self._first_token,
        )
        self._of(self.meters.tokens, "prompt").inc(signal.prompt_tokens)
        self.post(events.Arrive(signal))
        return stream

    def leave(self, stream: RequestStream) -> None:
        """Forget a request whose client has its answer, or has gone."""
        if not stream.is_over:
            self.post(events.Cancelled(stream.request_id))
            self._fail(stream, ApiError(GONE, "the client disconnected", "cancelled"))

    def give_up(self) -> None:
        """End all requests: there is no time left for them."""
        for stream in list(self.streams.values()):
            self._fail(stream, ApiError(503, "the gateway is stopping; this request did not finish", "draining"))

    async def stop(self) -> None:
        """End all tasks and requests."""
        if self._timer:
            self._timer.cancel()
        self.give_up()
        await self.tasks.close()

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
        self.post(events.Tick())

    # What is to be done

    def _do(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Dispatch():
                self._dispatch(instruction)
            case instructions.Abort(request_id, attempt, is_kept):
                self._stop_attempt(request_id, attempt, is_kept=is_kept)
            case instructions.Reject(request_id, reason, retry_after_s):
                if stream := self.streams.get(request_id):
                    status = STATUS.get(reason.token, 503)
                    fault = ApiError(status, str(reason), reason.token, retry_after_s=retry_after_s)
                    # Where engines refused it to the last, their own words say more than how often.
                    refusal = stream.refusal if reason.token == "attempts-exhausted" else None
                    self._fail(stream, refusal or fault)
            case instructions.Replan():
                self.tasks.start(self._plan(instruction))
            case instructions.Load():
                self.tasks.start(self.backend_client.load(instruction))
            case instructions.Release():
                self.tasks.start(self.backend_client.release(instruction))
            case instructions.EvictNode(node_id, reason):
                log.warning("%s", reason)
                self.backend_client.urls.pop(node_id, None)
            case instructions.RejectJoin():
                pass  # whoever posted the event tells the node

    async def _plan(self, plan: instructions.Replan) -> None:
        try:
            planned = await asyncio.to_thread(answer, plan, self.core.model, self.core.demand, self.core.config)
        except Exception as error:
            self._fault("Plan", error)
            planned = events.Planned(plan.version, plan.current)
        for reason in planned.reasons:
            if reason.token != "plan-kept" and reason not in self.core.plan_reasons:
                log.warning("%s", reason)
        self.post(planned)

    def _dispatch(self, dispatch: instructions.Dispatch) -> None:
        stream = self.streams.get(dispatch.request_id)
        if stream is None or stream.is_over:
            self.post(events.Cancelled(dispatch.request_id))  # or it would hold its slots until some heartbeat
            return
        estimate = self.core.hand_over(
            dispatch, prompt_tokens=stream.signal.prompt_tokens, generated=len(stream.generated)
        )
        if dispatch.kept and (estimate is None or not estimate.is_chosen):
            # Nobody comes for it: a worker that leaves need not wait.
            self.tasks.start(self.backend_client.park(stream, dispatch.kept.attempt, is_kept=False))
            dispatch = replace(dispatch, kept=None)
        task = self.tasks.start(self._run(stream, dispatch))
        stream.begin(dispatch.attempt, task, [stage.node_id for stage in dispatch.route.stages])

    def _first_token(self, stream: RequestStream) -> None:
        if stream.first_s is None:
            stream.first_s = self.clock()
            self._of(self.meters.ttft).observe(stream.first_s - stream.arrived_s)
        self.post(events.FirstToken(stream.request_id, stream.attempt))

    async def _run(self, stream: RequestStream, dispatch: instructions.Dispatch) -> None:
        request_id, number = dispatch.request_id, dispatch.attempt
        try:
            result = await self.backend_client.attempt(stream, dispatch)
        except Exception as error:
            self._fault("attempt", error)
            result = AttemptResult(error=f"{type(error).__name__}: {error}")
        if stream.attempt != number or stream.is_over or not stream.node_ids:
            return
        node_ids, stream.node_ids = stream.node_ids, []
        is_refused = result.fault is not None and not result.may_retry
        outcome = "ok" if result.finish is not None else "refused" if is_refused else "failed"
        self._of(self.meters.attempts, outcome).inc()
        if not result.is_clean:
            others = [name for name in node_ids if name != result.suspect]
            self.tasks.start(self.backend_client.abort(others, request_id, number))
        if result.finish is not None:
            stream.end(result.finish)
            self._close(stream)
            self.post(events.Finished(request_id, number, stream.num_generated))
        elif result.fault and is_refused:
            self._fail(stream, result.fault)
            if result.suspect:
                self.post(events.Failed(request_id, number, stream.num_generated, result.suspect))
            self.post(events.Cancelled(request_id))
        else:
            log.warning("%s, attempt %d: %s", request_id, number, result.error)
            stream.refusal = result.fault
            self.post(events.Failed(request_id, number, stream.num_generated, result.suspect))

    def _stop_attempt(self, request_id: str, number: int, *, is_kept: bool = False) -> None:
        stream = self.streams.get(request_id)
        if stream is None or stream.attempt != number:
            return
        if is_kept and stream.generated:  # by workers: what engines write is text
            _, task = stream.part()
            if task is not None:
                self._of(self.meters.attempts, "aborted").inc()
                self.tasks.start(self._park(stream, number, task))
        elif node_ids := stream.stop():
            self._of(self.meters.attempts, "aborted").inc()
            self.tasks.start(self.backend_client.abort(node_ids, request_id, number))

    async def _park(self, stream: RequestStream, number: int, task: asyncio.Task[None]) -> None:
        """Have an attempt parked before its connection closes, which would free what it has cached."""
        await self.backend_client.park(stream, number)
        task.cancel()

    # Endings

    def _fail(self, stream: RequestStream, fault: ApiError) -> None:
        stream.fail(fault)
        self._close(stream)

    def _close(self, stream: RequestStream) -> None:
        if self.streams.pop(stream.request_id, None) is None:
            return
        outcome = stream.finish or (stream.fault.code if stream.fault else "unknown")
        self._of(self.meters.requests, outcome).inc()
        self._of(self.meters.tokens, "generated").inc(stream.num_generated)
        now_s = self.clock()
        self._of(self.meters.latency).observe(now_s - stream.arrived_s)
        if stream.finish and (tpot_s := stream.tpot_s(now_s)) is not None:
            self._of(self.meters.tpot).observe(tpot_s)

    def _drop(self, event: events.Event) -> None:
        """End the request that an event was about, here and, as far as that goes, with the scheduler."""
        request_id = (
            event.request.request_id if isinstance(event, events.Arrive) else getattr(event, "request_id", "")
        )
        if stream := self.streams.get(request_id):
            self._stop_attempt(request_id, stream.attempt)
            self._fail(stream, ApiError(500, "internal error", "internal"))
            if not isinstance(event, events.Cancelled):
                self.post(events.Cancelled(request_id))

    def _fault(self, what: str, error: BaseException) -> None:
        self._of(self.meters.faults, what).inc()
        log.error("%s failed for model %s", what, self.name, exc_info=error)
