"""What goes over a connection between workers: kinds of frames, and their rows as bytes.

OPEN: an OpenMessage as JSON. STEP: a row of integers for each step, then their float32 activations [tokens,
hidden], little-endian, one after the other. RESULT: a row for each, the closing hop. END: numbers of sequences
that are over. FAULT: a FaultMessage as JSON, against the direction of steps. PARK: as END, but what they have
cached stays for a while. ASK_KV: a KvMessage as JSON, answered under the same number by KV, a part each and an
empty one at the end, or by NO_KV, saying why.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.net.frames import FrameError

PROTOCOL: Final = "strata-steps/1"
PATH: Final = "/steps"
MODEL_HEADER: Final = "strata-model"
OPEN: Final = 1
STEP: Final = 2
RESULT: Final = 3
END: Final = 4
FAULT: Final = 5
PARK: Final = 6
ASK_KV: Final = 7
KV: Final = 8
NO_KV: Final = 9

_STEP: Final = struct.Struct("<IIIHHB3x")
_RESULT: Final = struct.Struct("<IIi")
_END: Final = struct.Struct("<I")
_NONE: Final = -1

Activations = NDArray[np.float32]


class StepRow(NamedTuple):
    """One step of a sequence: which, where its first token is, and how many there are.

    replayed: the last so many were steps of an earlier attempt; they are computed one by one again, so that not a
    bit of what follows differs. is_partial: more of the prompt, or of what is replayed, follows; no token is
    chosen.
    """

    sequence: int
    step: int
    position: int
    tokens: int
    replayed: int = 0
    is_partial: bool = False


class ResultRow(NamedTuple):
    """That a step is through; its token, None of one that is partial."""

    drive: int
    step: int
    token: int | None


def pack_steps(rows: Sequence[tuple[StepRow, Activations]]) -> list[bytes]:
    """Return the parts of a STEP frame."""
    table = b"".join([_STEP.pack(*row) for row, _ in rows])
    return [table, *(hidden.astype("<f4", copy=False).tobytes() for _, hidden in rows)]


def unpack_steps(count: int, payload: bytes, hidden_size: int) -> list[tuple[StepRow, Activations]]:
    """Return the rows of a STEP frame. Raises FrameError where the bytes are not what the rows say."""
    table = payload[: count * _STEP.size]
    if len(table) < count * _STEP.size:
        raise FrameError(f"{len(payload)} bytes are not {count} steps")
    rows = [
        StepRow(sequence, step, position, tokens, replayed, bool(partial))
        for sequence, step, position, tokens, replayed, partial in _STEP.iter_unpack(table)
    ]
    values = sum(row.tokens for row in rows) * hidden_size
    if len(payload) - len(table) != 4 * values:
        raise FrameError(
            f"{len(payload) - len(table)} bytes are not the activations of {hidden_size} float32 values of "
            f"{sum(row.tokens for row in rows)} tokens"
        )
    for row in rows:
        if not 0 <= row.replayed <= row.tokens or not row.tokens:
            raise FrameError(f"a step of {row.tokens} tokens, {row.replayed} of them replayed")
    hidden, at = np.frombuffer(payload, "<f4", offset=len(table)).reshape(-1, hidden_size), 0
    steps = list[tuple[StepRow, Activations]]()
    for row in rows:
        steps.append((row, hidden[at : at + row.tokens]))
        at += row.tokens
    return steps


def pack_results(rows: Iterable[ResultRow]) -> bytes:
    """Return the payload of a RESULT frame."""
    return b"".join([_RESULT.pack(drive, step, _NONE if token is None else token) for drive, step, token in rows])


def unpack_results(count: int, payload: bytes) -> list[ResultRow]:
    """Return the rows of a RESULT frame. Raises FrameError."""
    _measure(count, payload, _RESULT)
    rows = _RESULT.iter_unpack(payload)
    return [ResultRow(drive, step, None if token == _NONE else token) for drive, step, token in rows]


def pack_end(sequence: int) -> bytes:
    """Return the payload of an END frame."""
    return _END.pack(sequence)


def unpack_end(count: int, payload: bytes) -> list[int]:
    """Return the sequences of an END frame. Raises FrameError."""
    _measure(count, payload, _END)
    return [sequence for (sequence,) in _END.iter_unpack(payload)]


def _measure(count: int, payload: bytes, row: struct.Struct) -> None:
    if len(payload) != count * row.size:
        raise FrameError(f"{len(payload)} bytes are not {count} rows of {row.size}")
