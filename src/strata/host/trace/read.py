"""Reads a trace file: perf or tracefs text, plain or gzip, a block at a time, into columns of bounded size."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from strata.errors import UsageError
from strata.host.trace.block import KnownNames, read_block
from strata.host.trace.events import EventKind, Events, Names, Trace
from strata.host.trace.lines import MAX_LINE, read_line

BLOCK_BYTES: Final = 2**20
"""What is parsed at once: enough lines to spread NumPy's cost a call, few enough to stay in the cache."""
MAX_EVENTS: Final = 12_000_000
"""Events that are kept. At 33 bytes each they are 0.4 GB; a report takes three to four times that at its peak."""
PART_EVENTS: Final = 2**18
"""Events that are put together as they come: columns of so many go back to the system once they are joined."""
PACKED_BYTES: Final = 2**16
"""What is unpacked at once of a gzip file: some ten times as much text."""
LOST: Final = re.compile(
    rb"^CPU:\s*\d+ \[(?:LOST )?(?:(\d+) )?EVENTS(?: DROPPED)?\]|PERF_RECORD_LOST(?:_SAMPLES)?:?\s+lost\s+(\d+)",
    re.MULTILINE,
)
"""How tracefs, trace-cmd and perf say that events were lost; none of it fits into a thread's name at its place."""
_WRITTEN: Final = re.compile(rb"#\s*entries-in-buffer/entries-written:\s*(\d+)/(\d+)")
_ASIDE: Final = re.compile(rb"\s*$|#|\t|\s*tracer:|cpus=\d+|version = \d|.*PERF_RECORD_\w{4}")
"""Lines that are rightly not events: comments, the frames of a call chain, headers, perf's own records."""
_CPU: Final = re.compile(rb"\[\d+\] ")
"""What lines begin with that perf was told to print without names and ids."""
_GZIP: Final = b"\x1f\x8b"
_MAGIC: Final = {
    b"PERFILE2": ("a binary trace", "perf script -F comm,pid,tid,cpu,time,event,trace --ns -i {path} > trace.txt"),
    b"\x17\x08Dtracing": ("a binary trace", "trace-cmd report {path} > trace.txt"),
    b"\xfd7zXZ": ("compressed", "xz -dc {path} > trace.txt"),
    b"\x28\xb5\x2f\xfd": ("compressed", "zstd -dc {path} > trace.txt"),
    b"BZh": ("compressed", "bzip2 -dc {path} > trace.txt"),
    b"PK\x03\x04": ("compressed", "unzip -p {path} > trace.txt"),
    b"{": ("JSON", "--kineto {path}, beside a trace of the scheduler, if it is a profiler's"),
    b"[{": ("JSON", "--kineto {path}, beside a trace of the scheduler, if it is a profiler's"),
}
"""First bytes of files that are not text traces: what they are, and what turns them into text."""


def read_trace(path: str | Path, *, max_events: int = MAX_EVENTS) -> Trace:
    """Read a trace, sorted by time. Raises UsageError for what cannot be read or holds no scheduler event.

    Memory is 33 bytes an event that is kept, and the text of one block.
    """
    reader = _Reader(max_events)
    try:
        for block in _blocks(_pieces(path)):
            if not reader.add(block):
                break
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except EOFError:  # of a recording that was killed, or a copy that broke off, there is the start
        reader.is_broken = True
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    trace = reader.trace()
    if not len(trace.events.of(EventKind.SWITCH)):
        what = f"none of its {trace.num_events + trace.unparsed} lines is a sched_switch event"
        raise UsageError(f"{path}: no trace of a scheduler: {what}", hint="strata host record -- YOUR COMMAND")
    return trace


def _pieces(path: str | Path) -> Iterator[bytes]:
    """Yield the text of a plain or gzip file.

    Raises UsageError for binary files, OSError, and EOFError where gzip data break off.
    """
    with open(path, "rb") as stream:
        raw = stream.read(16)
        for known, (what, command) in _MAGIC.items():
            if raw.startswith(known) and not _CPU.match(raw):
                raise UsageError(f"{path}: {what}, not a trace's text", hint=command.format(path=path))
        if raw.startswith(_GZIP):
            yield from _unpacked(raw, iter(lambda: stream.read(PACKED_BYTES), b""))
            return
        while raw:
            yield raw
            raw = stream.read(BLOCK_BYTES)


def _unpacked(raw: bytes, more: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what gzip data hold. Raises EOFError after all that is before an early end, or before damage."""
    unpack = None
    while raw:
        unpack = unpack or zlib.decompressobj(wbits=31)
        before = unpack.copy()
        try:
            yield unpack.decompress(raw)
        except zlib.error:
            yield _until_damage(before, raw)
            raise EOFError from None
        raw = unpack.unused_data or next(more, b"")
        unpack = None if unpack.eof else unpack
    if unpack is not None:
        raise EOFError


def _until_damage(unpack: zlib._Decompress, raw: bytes) -> bytes:
    text = bytearray()
    with suppress(zlib.error):
        for i in range(len(raw)):
            text += unpack.decompress(raw[i : i + 1])
    return bytes(text)


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines; the last line gets the newline it may lack."""
    left = b""
    for piece in pieces:
        whole, newline, rest = piece.rpartition(b"\n")
        if newline:
            yield left + whole + newline
            left = rest
        elif len(left) <= MAX_LINE:  # of a line without end no more is kept than shows that it is none
            left += piece
    if left:
        yield left + b"\n"


class _Reader:
    """Collects the events of blocks in compact columns."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._names = Names()
        self._known = KnownNames(self._names)
        self._parts: list[Events] = []
        self._latest: list[Events] = []
        self.is_broken = False
        self._kept = self._seen = self._unparsed = self._lost = self._overwritten = 0

    def add(self, raw: bytes) -> bool:
        """Add a block; returns whether there is room for more."""
        block = read_block(raw, self._known)
        events = block.events
        is_event = np.ones(len(events), bool)
        for index, line in block.rest.items():
            is_event[index] = self._add_line(events, index, line)
        self._seen += int(is_event.sum())
        kept = events.take(events.kind != EventKind.OTHER)
        self._latest.append(kept)
        self._kept += len(kept)
        if sum(map(len, self._latest)) >= PART_EVENTS:
            self._parts.append(Events.join(self._latest))
            self._latest = []
        return self._kept < self._max_events

    def _add_line(self, events: Events, index: int, line: bytes) -> bool:
        if match := LOST.search(line):
            self._lost += int(match[1] or match[2] or 1)
            return False
        row = None if _ASIDE.match(line) else read_line(line, self._names)
        if row is not None:
            (
                events.time_ns[index], events.cpu[index], events.kind[index], events.tid[index],
                events.other[index], events.arg[index], events.comm[index], events.other_comm[index],
            ) = row  # fmt: skip
            return True
        if match := _WRITTEN.match(line):
            self._overwritten = max(int(match[2]) - int(match[1]), 0)
        elif not _ASIDE.match(line):
            self._unparsed += 1
        return False

    def trace(self) -> Trace:
        """Return what was read, in the order of time."""
        parts = [*self._parts, *self._latest]
        self._parts = self._latest = []
        events = Events.join(parts.pop(0) for _ in range(len(parts)))
        is_cut = len(events) > self._max_events
        events = events.take(slice(self._max_events)) if is_cut else events
        backwards = 0
        if len(events) and np.any(np.diff(events.time_ns) < 0):
            by_cpu = np.argsort(events.cpu, kind="stable")
            is_same = np.diff(events.cpu[by_cpu]) == 0
            backwards = int(np.sum((np.diff(events.time_ns[by_cpu]) < 0) & is_same))
            events = events.take(np.argsort(events.time_ns, kind="stable"))
        lost = max(self._lost, self._overwritten)
        return Trace(events, self._names, self._seen, self._unparsed, lost, backwards, is_cut, self.is_broken)
