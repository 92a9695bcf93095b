"""A worker's place in a chain: run the layers it holds, pass the activations on, or send the token back.

Layers run in a thread of their own, so that heartbeats and other messages never wait for them: a prompt alone,
decoding steps together with others that wait by then. What ran together goes on together, in one frame.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from strata.clock import Clock
from strata.net.frames import FrameError
from strata.serving.wire import FaultMessage, KeptMessage, KvMessage, OpenMessage, Phase, StepSample
from strata.serving.worker.handover import KvError, give, take
from strata.serving.worker.holder import ROWS, AttemptKey, DecodeRow, Draw, Holder, Refused, Sequence
from strata.serving.worker.peers import Link, Links
from strata.serving.worker.steps import Activations, ResultRow, StepRow
from strata.serving.worker.turns import Turns

log = logging.getLogger(__name__)

MAX_SAMPLES: Final = 256
"""Measurements kept for the next heartbeat; the oldest go first."""


class Origin(Protocol):
    """Where a sequence's steps come from: its driver, or the worker before."""

    def fault(self, key: AttemptKey, fault: FaultMessage) -> None:
        """Hear that a sequence is over here."""


@dataclass(slots=True, eq=False)
class Passage:
    """A sequence's way through this worker. onward: the link to the next one, and the number it has there.

    num_waiting: steps that wait for their turn, or run. early: those that wait for what an earlier attempt kept.
    """

    key: AttemptKey
    opened: OpenMessage
    sequence: Sequence
    origin: Origin
    onward: tuple[Link, int] | None = None
    back: Link | None = None
    num_waiting: int = 0
    early: list[tuple[StepRow, Any]] | None = None


class _Step(NamedTuple):
    passage: Passage
    row: StepRow
    given: Any

    @property
    def kind(self) -> int | None:
        """What it may run together with: decoding by the same layers."""
        return id(self.passage.sequence.held.part) if self.row.position and self.row.tokens == 1 else None


class StageRunner:
    """Runs steps on what the holder holds. `deliver` takes results of sequences that are driven from here."""

    def __init__(
        self,
        node_id: str,
        holder: Holder,
        *,
        peers: Links,
        executor: Executor,
        clock: Clock,
        deliver: Callable[[Iterable[ResultRow]], None],
    ) -> None:
        self.node_id, self.holder, self.peers, self.deliver = node_id, holder, peers, deliver
        peers.on_fault, peers.on_lost = self.fail, self._lost
        self.url = ""  # known when the server listens
        self.samples: deque[StepSample] = deque(maxlen=MAX_SAMPLES)
        self.num_steps = 0
        self.passages: dict[AttemptKey, Passage] = {}
        self._clock, self._executor = clock, executor
        self._turns = Turns(
            self._compute,
            kind=lambda step: step.kind,
            whose=lambda step: step.passage.key,
            is_wanted=lambda step: self._is_here(step.passage),
            most=ROWS,
            executor=executor,
            done=self._done,
        )

    @property
    def num_waiting(self) -> int:
        """Steps that wait for their turn."""
        return len(self._turns)

    def close(self) -> None:
        """Forget what waits for its turn."""
        self._turns.close()

    def open(self, message: OpenMessage, origin: Origin) -> Passage | None:
        """Begin a sequence here and at the workers after; None where it cannot be, of which the origin is told."""
        key, here = AttemptKey(message.request_id, message.attempt), message.stages[0]
        if here.node_id != self.node_id:
            error = f"{self.node_id} received a sequence that was meant for {here.node_id}"
            origin.fault(key, FaultMessage(error=error, node_id=here.node_id))
            return None
        try:
            sequence = self.holder.begin(
                key,
                here.version,
                here.first,
                here.end,
                kv_tokens=message.kv_tokens,
                now_s=self._clock(),
                source=AttemptKey(message.request_id, message.kept.attempt) if message.kept else None,
            )
        except Refused as refused:
            # A full node is healthy; one that lost what it should hold is not.
            suspect = self.node_id if refused.is_at_fault else None
            origin.fault(key, FaultMessage(error=f"{self.node_id}: {refused}", node_id=suspect))
            return None
        self.passages[key] = passage = Passage(key, message, sequence, origin)
        if len(message.stages) > 1:
            link = self.peers.to(message.stages[1].url)
            passage.onward = (
                link,
                link.open(passage.key, message.model_copy(update={"stages": message.stages[1:]})),
            )
        elif message.first_url != self.url:
            passage.back = self.peers.to(message.first_url)
        if message.kept is not None:
            passage.early = []
            self.peers.tasks.start(self._take(passage, message.kept))
        return passage

    def enter(self, passage: Passage, row: StepRow, given: Any) -> None:
        """Have a step done. given: tokens on the first stage, hidden states [T, D] on others."""
        if passage.early is not None:
            passage.early.append((row, given))
        elif self._is_here(passage):
            passage.sequence.moved_s = self._clock()
            passage.num_waiting += 1
            self._turns.put(_Step(passage, row, given))

    def end(self, key: AttemptKey) -> None:
        """Free what a sequence holds, here and at the workers after; one that is not here has ended already."""
        passage = self.passages.pop(key, None)
        self.holder.end(key)
        if passage is not None and passage.onward is not None:
            link, number = passage.onward
            link.end(number)

    def park(self, key: AttemptKey) -> None:
        """End a sequence, and keep what it has cached for another attempt, here and at the workers after."""
        self.holder.park(key, self._clock())
        passage = self.passages.pop(key, None)
        if passage is not None and passage.onward is not None:
            link, number = passage.onward
            link.end(number, is_kept=True)

    async def give(self, message: KvMessage) -> list[bytes]:
        """Return what an attempt has cached in one block of the model; it ends here. Raises KvError."""
        key = AttemptKey(message.request_id, message.attempt)
        if key in self.passages:  # who asks has heard of its end before this worker
            self.park(key)
        return await give(self.holder, self._executor, message)

    async def _take(self, passage: Passage, kept: KeptMessage) -> None:
        try:
            await take(passage.key, kept, passage.sequence, peers=self.peers, executor=self._executor)
        except (KvError, FrameError, TimeoutError) as error:
            text = f"{self.node_id}: the keys and values of attempt {kept.attempt} did not come: {error}"
            self.fail(passage.key, FaultMessage(error=text))
            return
        except Exception as error:  # of the memory they were to lie in
            log.exception("the keys and values of %s cannot be kept", passage.key.request_id)
            text = f"{self.node_id}: {type(error).__name__}: {error}"
            self.fail(passage.key, FaultMessage(error=text, node_id=self.node_id))
            return
        early, passage.early = passage.early or [], None
        for row, given in early:
            self.enter(passage, row, given)

    def stop(self, key: AttemptKey) -> None:
        """End a sequence for good, whatever still comes of it."""
        self.holder.stop(key)
        self.end(key)

    def fail(self, key: AttemptKey, fault: FaultMessage) -> None:
        """End a sequence, and tell where it came from why."""
        if passage := self.passages.get(key):
            self.end(key)
            passage.origin.fault(key, fault)

    def fail_late(self, before_s: float, limit_s: float) -> None:
        """End sequences whose steps have waited here since: the layers hang."""
        for passage in list(self.passages.values()):
            if passage.num_waiting and passage.sequence.moved_s < before_s:
                error = f"{self.node_id}: a step was not done within {limit_s:g} s"
                self.fail(passage.key, FaultMessage(error=error, node_id=self.node_id))

    def _is_here(self, passage: Passage) -> bool:
        return self.passages.get(passage.key) is passage

    def _lost(self, link: Link, why: str) -> None:
        for passage in list(self.passages.values()):
            error = f"{link.url}: {why}"
            if passage.onward is not None and passage.onward[0] is link:
                passage.onward = None
                self.fail(passage.key, FaultMessage(error=error, node_id=passage.opened.stages[1].node_id))
            elif passage.back is link:
                # The first worker waits for what this one cannot send.
                self.fail(passage.key, FaultMessage(error=error, node_id=self.node_id))

    def _done(self, steps: list[_Step], results: list[tuple[Any, int | None]] | Exception, seconds: float) -> None:
        if isinstance(results, Exception):
            log.error("a step of %s failed", steps[0].passage.key.request_id, exc_info=results)
            error = f"{self.node_id}: {type(results).__name__}: {results}"
            for step in steps:
                self.fail(step.passage.key, FaultMessage(error=error, node_id=self.node_id))
            return
        self.num_steps += len(steps)
        self._note(steps, seconds)
        onward = defaultdict[Link, list[tuple[StepRow, Activations]]](list)
        back = defaultdict[Link | None, list[ResultRow]](list)
        for (passage, row, _), (hidden, token) in zip(steps, results, strict=True):
            passage.num_waiting -= 1
            if not self._is_here(passage):
                continue
            if passage.onward is not None:
                link, number = passage.onward
                onward[link].append((row._replace(sequence=number), hidden))
            else:
                back[passage.back].append(ResultRow(passage.opened.drive, row.step, token))
        for link, rows in onward.items():
            link.steps(rows)
        for to, results_of in back.items():
            if to is None:
                self.deliver(results_of)
            else:
                to.results(results_of)

    def _note(self, steps: list[_Step], seconds: float) -> None:
        row, held = steps[0].row, steps[0].passage.sequence.held
        if row.replayed:  # tokens one by one would make a prefill look slow
            return
        phase: Phase = "prefill" if steps[0].kind is None else "decode"
        units = row.tokens if phase == "prefill" else len(steps)
        context = sum(step.row.position for step in steps) / len(steps)
        self.samples.append(StepSample(phase, held.first, held.end, units, context, seconds))

    def _compute(self, steps: list[_Step]) -> list[tuple[Any, int | None]]:
        """Run the layers, in the executor's thread; choose tokens where this is the last stage.

        steps: one, or several of one kind.
        """
        passage, row, given = steps[0]
        part = passage.sequence.held.part
        if steps[0].kind is None:
            parts = [part.run(passage.sequence.cache, given, position=row.position, replayed=row.replayed)]
        else:
            hidden = part.step(
                [DecodeRow(step.passage.sequence.cache, step.given[0], step.row.position) for step in steps]
            )
            parts = [hidden[i : i + 1] for i in range(len(steps))]
        return list(zip(parts, self._chosen(part, steps, parts), strict=True))

    def _chosen(self, part: Any, steps: list[_Step], parts: list[Any]) -> list[int | None]:
        """Return the tokens of those whose last stage this is: all go through the head together."""
        last = [
            i for i, step in enumerate(steps) if len(step.passage.opened.stages) == 1 and not step.row.is_partial
        ]
        tokens = list[int | None]([None] * len(steps))
        if last:
            draws = []
            for i in last:
                opened, row = steps[i].passage.opened, steps[i].row
                draws.append(Draw(opened.temperature, opened.seed, row.position + row.tokens))
            hidden = np.concatenate([parts[i][-1:] for i in last])
            for i, token in zip(last, part.choose(hidden, draws), strict=True):
                tokens[i] = token
        return tokens
