"""What the first worker of a route does: start every step of a sequence, and make an answer of its tokens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import count
from typing import Final

from strata.serving.wire import FaultMessage, GenerateLine, GenerateMessage, OpenMessage
from strata.serving.worker.holder import AttemptKey
from strata.serving.worker.stage import Passage, StageRunner
from strata.serving.worker.steps import ResultRow, StepRow

STEP_LIMIT_S: Final = 30.0
"""How long one stage may take over a step, waiting for its turn included; a chain has this times its stages."""
PROMPT_TOKENS: Final = 128
REPLAYED_TOKENS: Final = 16
"""Most tokens of a prompt, or of an earlier attempt, in one step: a step ends in time however long they are."""
AHEAD: Final = 64
"""Tokens that a reader may be behind before a sequence waits for it."""
ABORTED: Final = FaultMessage(error="aborted")


class _Drive:
    """One attempt: the steps that are to come, those on their way along the chain, and lines to be read.

    The next step begins in the moment that a token comes, with those of all others that came in the same frame: so
    what ran together stays together.
    """

    def __init__(self, stage: StageRunner, message: GenerateMessage, *, number: int, limit_s: float) -> None:
        self.key = AttemptKey(message.request_id, message.attempt)
        self.lines = deque[GenerateLine]()
        self.has_lines = asyncio.Event()
        self.is_over = self.is_kept = False
        self._stage, self._message, self._number, self._limit_s = stage, message, number, limit_s
        self._most = stage.holder.model.max_positions
        self._num_written, self._position = len(message.generated), 0
        self._sent = self._done = 0
        self._steps = deque(
            [(part, 0) for part in _parts(message.prompt, PROMPT_TOKENS)]
            + [(part, len(part)) for part in _parts(message.generated, REPLAYED_TOKENS)]
        )
        if message.kept is not None:  # all but the last token is cached
            self._position = message.kept.tokens
            self._steps = deque([(list(message.generated[-1:]), 1)])
        self._passage: Passage | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Send the first steps off, or say why not."""
        message, stage = self._message, self._stage
        given = [*message.prompt, *message.generated]
        if max(given) >= stage.holder.model.vocab_size:
            text = f"token {max(given)} is not below {stage.holder.model.vocab_size}"
            self.fault(self.key, FaultMessage(error=text))
            return
        if message.kept is not None and (not message.generated or message.kept.tokens != len(given) - 1):
            text = f"{message.kept.tokens} kept tokens of {len(given)}: all but the last have to be"
            self.fault(self.key, FaultMessage(error=text))
            return
        if self._num_written >= message.max_tokens or len(given) >= self._most:
            self._put(GenerateLine(finish="length"))
            return
        opened = OpenMessage(
            request_id=message.request_id,
            attempt=message.attempt,
            sequence=0,
            stages=message.stages,
            first_url=stage.url,
            drive=self._number,
            kv_tokens=min(len(message.prompt) + message.max_tokens, self._most),
            temperature=message.temperature,
            seed=message.seed,
            kept=message.kept,
        )
        self._passage = stage.open(opened, self)
        self._moved_s = self._loop.time()
        self._timer = self._loop.call_later(self._limit_s, self._look)
        self.advance()

    def advance(self) -> None:
        """Send steps off: parts of a prompt one behind the other, as many as there are stages."""
        while self._passage and self._steps and not self.is_over:
            if self._sent - self._done >= len(self._message.stages) or len(self.lines) >= AHEAD:
                return
            given, replayed = self._steps.popleft()
            row = StepRow(0, self._sent, self._position, len(given), replayed, bool(self._steps))
            self._sent += 1
            self._position += len(given)
            self._stage.enter(self._passage, row, given)

    def result(self, row: ResultRow) -> None:
        """Take a step's token; dropped where nobody waits for it; one that overtook another is a fault."""
        if self.is_over or row.step < self._done or row.step >= self._sent:
            return
        if row.step != self._done:
            self.fault(self.key, FaultMessage(error=f"step {row.step} came out before step {self._done}"))
            return
        self._done += 1
        self._moved_s = self._loop.time()
        if row.token is None:
            self.advance()
        elif row.token in self._message.stop_tokens:
            self._put(GenerateLine(finish="stop"))
        else:
            self._put(GenerateLine(token=row.token))
            self._num_written += 1
            if self._num_written >= self._message.max_tokens or self._position + 1 >= self._most:
                self._put(GenerateLine(finish="length"))
            else:
                self._steps.append(([row.token], 0))
                self.advance()

    def fault(self, _key: AttemptKey, fault: FaultMessage) -> None:
        """End it: its stream says so and closes."""
        if not self.is_over:
            self._put(GenerateLine(error=fault.error, node_id=fault.node_id))

    def close(self) -> None:
        """Wait for nothing more."""
        self.is_over = True
        self._passage = None  # which has this as its origin: what is cached would stay until cycles are collected
        if self._timer is not None:
            self._timer.cancel()

    def _put(self, line: GenerateLine) -> None:
        self.is_over = line.token is None
        self.lines.append(line)
        self.has_lines.set()

    def _look(self) -> None:
        """End a wait that is too long: by one timer, not one a step.

        Longer than any stage waits for its layers, and any link for a sign: who is next to the trouble names it.
        """
        left_s = self._moved_s + self._limit_s - self._loop.time()
        if left_s > 0 or self._sent == self._done:
            self._timer = self._loop.call_later(left_s if left_s > 0 else self._limit_s, self._look)
        else:
            # Whoever comes later would have been named by the one before it.
            text = f"no token within {self._limit_s:g} s"
            self.fault(self.key, FaultMessage(error=text, node_id=self._stage.node_id))


class ChainDriver:
    """The attempts that are driven from here."""

    def __init__(self, *, step_limit_s: float = STEP_LIMIT_S) -> None:
        self.driven: dict[AttemptKey, _Drive] = {}
        self.num_tokens = 0
        self.step_limit_s = step_limit_s
        self._numbered: dict[int, _Drive] = {}
        self._numbers = count()

    def deliver(self, results: Iterable[ResultRow]) -> None:
        """Take what came around; of an attempt that has ended, nothing."""
        for row in results:
            if drive := self._numbered.get(row.drive):
                drive.result(row)

    def abort(self, key: AttemptKey, *, is_kept: bool = False) -> None:
        """End an attempt: its stream says so and closes. is_kept: what is cached of it stays for a while."""
        if drive := self.driven.get(key):
            drive.is_kept = is_kept
            drive.fault(key, ABORTED)

    async def generate(self, stage: StageRunner, message: GenerateMessage) -> AsyncGenerator[GenerateLine, None]:
        """Yield the tokens of an attempt as they come, then how it ended; all workers free what they hold."""
        number = next(self._numbers) % 2**32
        limit_s = self.step_limit_s * (len(message.stages) + 1)
        drive = _Drive(stage, message, number=number, limit_s=limit_s)
        if drive.key in self.driven:
            yield GenerateLine(error=f"attempt {message.attempt} of {message.request_id} is already running")
            return
        self.driven[drive.key] = self._numbered[number] = drive
        try:
            drive.begin()
            while True:
                await drive.has_lines.wait()
                drive.has_lines.clear()
                while drive.lines:
                    line = drive.lines.popleft()
                    self.num_tokens += line.token is not None
                    yield line
                    if line.token is None:
                        return
                drive.advance()
        finally:
            drive.close()
            del self.driven[drive.key], self._numbered[number]
            if drive.is_kept:
                stage.park(drive.key)
            else:
                stage.stop(drive.key)


def _parts(tokens: Sequence[int], most: int) -> list[list[int]]:
    return [list(tokens[i : i + most]) for i in range(0, len(tokens), most)]
