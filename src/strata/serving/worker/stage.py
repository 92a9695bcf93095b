"""A worker's place in a chain: run the layers it holds, pass the activations on, or send the token back.

Layers run in a thread of their own, so that heartbeats and other messages never wait for them: a prompt alone,
decoding steps together with all others that wait by then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from strata.clock import Clock
from strata.serving.wire import Phase, StepHeader, StepSample, TokenMessage
from strata.serving.worker.holder import AttemptKey, ChainError, DecodeRow, Draw, Holder, Refused, Sequence
from strata.serving.worker.links import HttpPeers
from strata.serving.worker.turns import Turns

log = logging.getLogger(__name__)

MAX_SAMPLES: Final = 256
"""Measurements kept for the next heartbeat; the oldest go first."""


class _Step(NamedTuple):
    sequence: Sequence
    header: StepHeader
    given: Any

    @property
    def kind(self) -> int | None:
        """What it may run together with: decoding by the same layers."""
        is_decode = self.header.position and len(self.given) == 1
        return id(self.sequence.held.part) if is_decode else None


class StageRunner:
    """Runs steps on what the holder holds. `deliver` takes tokens of attempts that are driven from here."""

    def __init__(
        self,
        node_id: str,
        holder: Holder,
        *,
        peers: HttpPeers,
        executor: Executor,
        clock: Clock,
        deliver: Callable[[TokenMessage], None],
    ) -> None:
        self.node_id, self.holder, self.peers = node_id, holder, peers
        self.url = ""  # known when the server listens
        self.samples: deque[StepSample] = deque(maxlen=MAX_SAMPLES)
        self.num_steps = 0
        self._clock, self._deliver = clock, deliver
        self._turns = Turns(self._compute, kind=lambda step: step.kind, executor=executor)

    @property
    def num_waiting(self) -> int:
        """Steps that wait for their turn."""
        return len(self._turns)

    async def close(self) -> None:
        """Break off what waits for its turn."""
        await self._turns.close()

    async def step(self, header: StepHeader, given: Any) -> None:
        """Do a step here and have the stages after do theirs; returns when all of them have.

        given: tokens on the first stage, hidden states [T, D] on others. Raises ChainError: the attempt is over.
        """
        key = AttemptKey(header.request_id, header.attempt)
        sequence = self._sequence(key, header)
        try:
            await self._step(key, sequence, header, given)
        except BaseException:
            self.holder.end(key)
            raise

    async def _step(self, key: AttemptKey, sequence: Sequence, header: StepHeader, given: Any) -> None:
        try:
            hidden, token = await self._turns.take(_Step(sequence, header, given))
        except Exception as error:
            log.exception("a step of %s failed", header.request_id)
            raise ChainError(f"{self.node_id}: {type(error).__name__}: {error}", self.node_id) from error
        self.num_steps += 1
        if key not in self.holder.sequences:
            raise ChainError(f"attempt {key.attempt} of {key.request_id} was stopped")
        if len(header.stages) > 1:
            await self.peers.step(header.model_copy(update={"stages": header.stages[1:]}), hidden)
            return
        if header.is_partial:
            return
        assert token is not None, "the last stage chooses a token"
        message = TokenMessage(request_id=header.request_id, attempt=header.attempt, step=header.step, token=token)
        if header.first_url == self.url:
            self._deliver(message)
        else:
            await self.peers.token(header.first_url, message)

    def _sequence(self, key: AttemptKey, header: StepHeader) -> Sequence:
        here, now_s = header.stages[0], self._clock()
        if here.node_id != self.node_id:
            raise ChainError(f"{self.node_id} received a step that was meant for {here.node_id}", here.node_id)
        try:
            if header.position:
                return self.holder.at(key, now_s)
            return self.holder.begin(
                key, here.version, here.first, here.end, kv_tokens=header.kv_tokens, now_s=now_s
            )
        except Refused as refused:
            # A full node is healthy; one that lost what it should hold is not.
            raise ChainError(
                f"{self.node_id}: {refused}", self.node_id if refused.is_at_fault else None
            ) from refused

    def _compute(self, steps: list[_Step]) -> list[tuple[Any, int | None]]:
        """Run the layers, in the executor's thread; choose tokens where this is the last stage; note how long.

        steps: one, or several of one kind.
        """
        first, held = steps[0].header, steps[0].sequence.held
        start = perf_counter()
        if steps[0].kind is None:
            step = steps[0]
            parts = [
                held.part.run(step.sequence.cache, step.given, position=first.position, replayed=first.replayed)
            ]
        else:
            rows = [DecodeRow(step.sequence.cache, step.given[0], step.header.position) for step in steps]
            hidden = held.part.step(rows)
            parts = [hidden[i : i + 1] for i in range(len(steps))]
        tokens = self._chosen(steps, parts)
        if not first.replayed:  # tokens one by one would make a prefill look slow
            phase: Phase = "prefill" if steps[0].kind is None else "decode"
            units = len(steps[0].given) if steps[0].kind is None else len(steps)
            context = sum(step.header.position for step in steps) / len(steps)
            self.samples.append(StepSample(phase, held.first, held.end, units, context, perf_counter() - start))
        return list(zip(parts, tokens, strict=True))

    def _chosen(self, steps: list[_Step], parts: list[Any]) -> list[int | None]:
        """Return the tokens of those whose last stage this is: all go through the head together."""
        last = [i for i, step in enumerate(steps) if len(step.header.stages) == 1 and not step.header.is_partial]
        tokens = list[int | None]([None] * len(steps))
        if last:
            draws = []
            for i in last:
                header, given = steps[i].header, steps[i].given
                draws.append(Draw(header.temperature, header.seed, header.position + len(given)))
            hidden = np.concatenate([parts[i][-1:] for i in last])
            chosen = steps[0].sequence.held.part.choose(hidden, draws)
            for i, token in zip(last, chosen, strict=True):
                tokens[i] = token
        return tokens
