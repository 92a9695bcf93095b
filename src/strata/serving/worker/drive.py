"""What the first worker of a route does: start every step of a sequence, and wait for its token to come around."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from strata.serving.tasks import TaskSet
from strata.serving.wire import GenerateLine, GenerateMessage, StepHeader, TokenMessage
from strata.serving.worker.holder import AttemptKey, ChainError
from strata.serving.worker.stage import StageRunner

STEP_LIMIT_S: Final = 30.0
"""How long one stage may take over a step, waiting for its turn included; a chain has this times its stages."""
PROMPT_TOKENS: Final = 128
REPLAYED_TOKENS: Final = 16
"""Most tokens of a prompt, or of an earlier attempt, in one step: a step ends in time however long they are."""


@dataclass(slots=True)
class _Drive:
    """One attempt: the step whose token it waits for, and the steps that are on their way along the chain."""

    step: int = 0
    token: asyncio.Future[int] | None = None
    steps: set[asyncio.Task[None]] = field(default_factory=set)
    is_aborted: bool = False


class ChainDriver:
    """The attempts that are driven from here, each with the token it waits for."""

    def __init__(self, *, step_limit_s: float = STEP_LIMIT_S) -> None:
        self.driven: dict[AttemptKey, _Drive] = {}
        self.num_tokens = 0
        self.step_limit_s = step_limit_s
        self.loose = TaskSet(lambda _error: None)
        """Steps whose token has come or is not wanted: only the chain's answer is due, which nobody waits for."""

    def deliver(self, message: TokenMessage) -> None:
        """Take a token; one nobody waits for (of an aborted attempt, or a second time) is dropped."""
        drive = self.driven.get(AttemptKey(message.request_id, message.attempt))
        if drive and drive.token and not drive.token.done() and drive.step == message.step:
            drive.token.set_result(message.token)

    def abort(self, key: AttemptKey) -> None:
        """End an attempt: its stream says so and closes."""
        if drive := self.driven.get(key):
            drive.is_aborted = True
            if drive.token and not drive.token.done():
                drive.token.set_exception(ChainError("aborted"))

    async def generate(self, stage: StageRunner, message: GenerateMessage) -> AsyncGenerator[GenerateLine, None]:
        """Yield the tokens of an attempt as they come, then how it ended; frees nothing on other workers."""
        key = AttemptKey(message.request_id, message.attempt)
        assert key not in self.driven, "who asks has looked"
        drive = self.driven[key] = _Drive()
        try:
            async for line in self._tokens(stage, message, drive):
                yield line
        except ChainError as fault:
            yield GenerateLine(error=str(fault), node_id=fault.node_id)
        finally:
            del self.driven[key]
            if drive.token:
                drive.token.cancel()
            stage.holder.stop(key)
            for step in drive.steps:
                self.loose.keep(step)

    async def close(self) -> None:
        """Break off what is still on its way."""
        await self.loose.close()

    async def _tokens(
        self, stage: StageRunner, message: GenerateMessage, drive: _Drive
    ) -> AsyncGenerator[GenerateLine, None]:
        model = stage.holder.model
        most = model.max_positions
        given = [*message.prompt, *message.generated]
        if max(given) >= model.vocab_size:
            raise ChainError(f"token {max(given)} is not below {model.vocab_size}")
        num_written, position = len(message.generated), 0
        if num_written >= message.max_tokens or len(given) >= most:
            yield GenerateLine(finish="length")
            return
        steps = deque(
            [(part, 0) for part in _parts(message.prompt, PROMPT_TOKENS)]
            + [(part, len(part)) for part in _parts(message.generated, REPLAYED_TOKENS)]
        )
        for number in count():
            if drive.is_aborted:  # between two steps
                raise ChainError("aborted")
            given, replayed = steps.popleft()
            header = StepHeader(
                request_id=message.request_id,
                attempt=message.attempt,
                position=position,
                step=number,
                stages=message.stages,
                first_url=stage.url,
                kv_tokens=min(len(message.prompt) + message.max_tokens, most),
                replayed=replayed,
                is_partial=bool(steps),
                temperature=message.temperature,
                seed=message.seed,
            )
            token = await self._token(stage, header, given, drive)
            position += len(given)
            if token is None:
                continue
            if token in message.stop_tokens:
                yield GenerateLine(finish="stop")
                return
            self.num_tokens += 1
            yield GenerateLine(token=token)
            num_written += 1
            if num_written >= message.max_tokens or position + 1 >= most:
                yield GenerateLine(finish="length")
                return
            steps.append(([token], 0))

    async def _token(self, stage: StageRunner, header: StepHeader, given: list[int], drive: _Drive) -> int | None:
        """Return the token of a step, or raise the ChainError of whichever step of the sequence met it.

        None: of a part of what there is to read, when it has been read everywhere.

        The token is not held up by the answers along the chain: those of earlier steps may still be on their way.
        """
        steps, future = drive.steps, asyncio.get_running_loop().create_future()
        drive.step, drive.token = header.step, future
        step = asyncio.create_task(stage.step(header, given))
        steps.add(step)
        # Longer than any hop waits for the rest of the chain: the worker next to the trouble names it.
        limit_s = self.step_limit_s * (len(header.stages) + 1)
        try:
            async with asyncio.timeout(limit_s):
                while not future.done() and not (header.is_partial and step.done()):
                    await asyncio.wait({future, *steps}, return_when=asyncio.FIRST_COMPLETED)
                    for ended in [each for each in steps if each.done()]:
                        steps.discard(ended)
                        ended.result()
                return None if header.is_partial and not future.done() else int(await future)
        except TimeoutError:
            # Whoever comes later would have been named by the one before it.
            raise ChainError(f"no token within {limit_s:g} s", stage.node_id) from None


def _parts(tokens: Sequence[int], most: int) -> list[list[int]]:
    return [list(tokens[i : i + most]) for i in range(0, len(tokens), most)]
