"""What another worker sends over a connection that it opened."""

from __future__ import annotations

import logging

from strata.net.frames import FrameConnection, FrameError, WireFrame
from strata.serving.wire import FaultMessage, KvMessage, OpenMessage
from strata.serving.worker import steps as codec
from strata.serving.worker.handover import KvError
from strata.serving.worker.holder import AttemptKey
from strata.serving.worker.stage import Passage, StageRunner

log = logging.getLogger(__name__)


class Incoming:
    """A connection that another worker opened: sequences that pass through here, tokens for those driven here."""

    def __init__(self, stage: StageRunner, *, frame_bytes: int, frame_s: float) -> None:
        self._stage = stage
        self._passages = dict[int, Passage]()
        self._numbers = dict[AttemptKey, int]()
        self.connection = FrameConnection(self._heard, self._lost, frame_bytes=frame_bytes, frame_s=frame_s)

    def fault(self, key: AttemptKey, fault: FaultMessage) -> None:
        """Tell the worker before that a sequence is over."""
        number = self._numbers.pop(key, None)
        if number is not None:
            self._passages.pop(number, None)
            body = fault.model_copy(update={"sequence": number}).model_dump_json().encode()
            self.connection.send(codec.FAULT, 1, body)

    def _heard(self, frame: WireFrame) -> None:
        match frame.kind:
            case codec.STEP:
                hidden_size = self._stage.holder.model.info.hidden_size
                for row, hidden in codec.unpack_steps(frame.number, frame.payload, hidden_size):
                    if passage := self._passages.get(row.sequence):  # or it has ended here
                        self._stage.enter(passage, row, hidden)
            case codec.RESULT:
                self._stage.deliver(codec.unpack_results(frame.number, frame.payload))
            case codec.OPEN:
                self._open(frame.payload)
            case codec.END | codec.PARK:
                for number in codec.unpack_end(frame.number, frame.payload):
                    if passage := self._passages.pop(number, None):
                        self._numbers.pop(passage.key, None)
                        (self._stage.end if frame.kind == codec.END else self._stage.park)(passage.key)
            case codec.ASK_KV:
                self._stage.peers.tasks.start(self._give(frame))
            case _:
                raise FrameError(f"a frame of kind {frame.kind}, which is none of a worker that sends steps")

    async def _give(self, frame: WireFrame) -> None:
        try:
            parts = await self._stage.give(KvMessage.model_validate_json(frame.payload))
        except (KvError, ValueError) as error:
            self.connection.send(codec.NO_KV, frame.number, str(error).encode())
            return
        except Exception as error:  # of the memory it takes: who asks would wait to its limit
            log.exception("keys and values cannot be given")
            self.connection.send(codec.NO_KV, frame.number, f"{type(error).__name__}: {error}".encode())
            return
        for part in (*parts, b""):
            self.connection.send(codec.KV, frame.number, part)

    def _open(self, payload: bytes) -> None:
        try:
            message = OpenMessage.model_validate_json(payload)
        except ValueError as error:
            raise FrameError(f"no sequence: {error}") from None
        key = AttemptKey(message.request_id, message.attempt)
        if message.sequence in self._passages or key in self._numbers:
            raise FrameError(f"sequence {message.sequence} is open already")
        self._numbers[key] = message.sequence
        if passage := self._stage.open(message, self):
            self._passages[message.sequence] = passage

    def _lost(self, why: str) -> None:
        """End what came over this connection: nothing of it comes any more."""
        passages = list(self._passages.values())
        self._passages.clear()
        self._numbers.clear()
        for passage in passages:
            self._stage.end(passage.key)
