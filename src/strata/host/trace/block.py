"""The fast reader: all lines of a block of text at once, as long as they have the usual form.

A line is accepted only where every part it is read from was found at its place; all others are left to the grammar
in `lines.py`. Both must give the same events for any line (a test holds them together).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Ints
from strata.host.trace.events import NAME_BYTES, EventKind, Events, Names, TaskState
from strata.host.trace.lines import USUAL
from strata.host.trace.words import (
    TOP,
    Mask,
    Places,
    Words,
    digits_before,
    has_space,
    number,
    spaces_before,
    text,
    word,
    words,
)

PAD: Final = b"\0" * 32
"""So that the characters before the first and after the last line can be looked at."""

_SLOW: Final = (b"sched_process_exec", b"cpu_frequency")
"""What is always left to the grammar: rare, or with fields of any length."""
_IS_SLOW: Final = 255


@dataclass(frozen=True, slots=True)
class TraceBlock:
    """What was read of a block: one event a line, and the lines [bytes] that are still to be read, by index."""

    events: Events
    rest: dict[int, bytes]


class KnownNames:
    """Finds the indices of many names at once, each given as two words of eight characters."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._hashes = np.zeros(0, np.uint64)  # sorted
        self._indices = np.zeros(0, np.int32)
        self._first = np.zeros(0, np.uint64)
        self._second = np.zeros(0, np.uint64)

    def indices(self, first: Words, second: Words) -> NDArray[np.int32]:
        """Return the index of each name; -1 for one whose hash is that of another name."""
        hashes = first * np.uint64(0x9E3779B97F4A7C15) ^ second * np.uint64(0xC2B2AE3D27D4EB4F)
        where = self._where(hashes)
        if self._hashes.size == 0 or np.any(self._hashes[where] != hashes):
            self._learn(hashes, first, second)
            where = self._where(hashes)
        is_same = (self._first[where] == first) & (self._second[where] == second)
        return np.where(is_same, self._indices[where], np.int32(-1))

    def _where(self, hashes: Words) -> NDArray[np.intp]:
        return np.minimum(np.searchsorted(self._hashes, hashes), max(self._hashes.size - 1, 0))

    def _learn(self, hashes: Words, first: Words, second: Words) -> None:
        new, at = np.unique(hashes, return_index=True)
        place = np.searchsorted(self._hashes, new)
        is_new = np.append(self._hashes, np.uint64(0))[place] != new
        is_new |= place == len(self._hashes)
        new, at, place = new[is_new], at[is_new], place[is_new]
        raw = (np.stack([first[at], second[at]], axis=1).tobytes()[i : i + 16] for i in range(0, 16 * len(at), 16))
        indices = np.array([self._names.index(name.rstrip(b"\0")) for name in raw], np.int32)
        # Put in place, not sorted again: of a storm of processes every block brings new names.
        self._hashes = np.insert(self._hashes, place, new)
        self._indices = np.insert(self._indices, place, indices)
        self._first = np.insert(self._first, place, first[at])
        self._second = np.insert(self._second, place, second[at])


def read_block(raw: bytes, known: KnownNames) -> TraceBlock:
    """Read a block of whole lines, the last with its newline."""
    padded = PAD + raw + PAD
    chars = np.frombuffer(padded, np.uint8)
    at = words(padded)
    ends = np.flatnonzero(chars == ord("\n"))
    starts = np.concatenate([np.array([len(PAD)]), ends[:-1] + 1])
    ends = ends - (chars[ends - 1] == ord("\r"))
    events = Events.empty(len(ends))
    is_read = np.zeros(len(ends), bool)
    if head := _Header.read(chars, at, starts, ends):
        kind = _kinds(at, head.event_end)
        equals = np.flatnonzero(chars == ord("="))
        first = np.searchsorted(equals, head.event_end)
        num_equals = np.searchsorted(equals, ends[head.line]) - first
        is_known = (kind == EventKind.OTHER) | (num_equals == _NUM_EQUALS[kind])
        head, kind, first = head.only(is_known), kind[is_known], first[is_known]
        events.time_ns[head.line] = head.time_ns
        events.cpu[head.line] = head.cpu
        events.tid[head.line] = np.where(kind != EventKind.OTHER, head.tid, -1)
        fields = _Fields(chars, at, ends, known, events)
        is_good = np.ones(len(kind), bool)
        for event_kind, form in _FORMS.items():
            these = np.flatnonzero(kind == event_kind)
            if these.size and form:
                places = equals[first[these, None] + np.arange(_NUM_EQUALS[event_kind])].T
                is_good[these] = fields.read(form, head.line[these], head.event_end[these], places)
        events.kind[head.line] = kind
        is_read[head.line] = is_good
    rest = np.flatnonzero(~is_read)
    events.kind[rest] = EventKind.OTHER
    return TraceBlock(events, {int(i): padded[starts[i] : ends[i]] for i in rest})


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before the fields of those lines whose header has the usual form; one value a line."""

    line: NDArray[np.intp]
    time_ns: Ints
    cpu: Ints
    tid: Ints
    event_end: Places

    def only(self, which: Mask) -> _Header:
        return _Header(
            *(column[which] for column in (self.line, self.time_ns, self.cpu, self.tid, self.event_end))
        )

    @classmethod
    def read(cls, chars: NDArray[np.uint8], at: Words, starts: Places, ends: Places) -> _Header | None:
        """Read backwards and forwards from the dot of the time, which must be the only such dot of its line."""
        dots = np.flatnonzero(chars == ord("."))
        dots = dots[(dots >= len(PAD)) & (dots < len(chars) - len(PAD))]
        is_ns = chars[dots + 10] == ord(":")
        dots, is_ns = (column[is_ns | (chars[dots + 7] == ord(":"))] for column in (dots, is_ns))
        line = np.searchsorted(ends, dots)
        is_only = np.bincount(line, minlength=len(ends))[line] == 1
        brackets = np.flatnonzero(chars == ord("]"))
        colons = np.flatnonzero(chars == ord(":"))
        if not np.any(is_only) or not len(brackets):
            return None
        dots, is_ns, line = dots[is_only], is_ns[is_only], line[is_only]

        seconds, num_seconds = digits_before(at, dots)
        digits = np.where(is_ns, 9, 6)
        colon = dots + 1 + digits
        high, is_fraction = number(at, dots + 1, dots + 7)
        low, is_low = number(at, colon - 3, colon)
        fraction = np.where(is_ns, high * 1000 + low, high * 1000)
        good: Mask = (num_seconds >= 1) & (num_seconds < 8) & is_fraction & (is_low | ~is_ns)

        close = brackets[np.maximum(np.searchsorted(brackets, dots) - 1, 0)]
        cpu, num_cpu = digits_before(at, close)
        opening = close - num_cpu - 1
        good &= (close < dots) & (close > starts[line] + 3) & (num_cpu >= 1) & (num_cpu < 8)
        good &= (chars[opening] == ord("[")) & (chars[opening - 1] == ord(" "))
        good &= _is_flags(chars, at, close, dots - num_seconds)
        tid_end = opening - spaces_before(at, opening)
        tid, num_tid = digits_before(at, tid_end)
        before = chars[tid_end - num_tid - 1]
        # perf writes an exited thread as `:-1  -1/-1`; in tracefs the minus stands between name and number.
        is_minus_one = (before == ord("-")) & np.isin(chars[tid_end - num_tid - 2], list(b"/ "))
        good &= (num_tid >= 1) & (num_tid < 8) & (tid_end < opening) & ~is_minus_one
        good &= np.isin(before, list(b"-/ ")) & (tid_end - num_tid - 1 > starts[line])

        order = np.searchsorted(colons, colon)
        colons = np.concatenate([colons, np.full(2, len(chars) - 1)])
        end = colons[np.minimum(order + 1, len(colons) - 1)]
        has_group = chars[np.minimum(end + 1, len(chars) - 1)] != ord(" ")
        end = np.where(has_group, colons[np.minimum(order + 2, len(colons) - 1)], end)
        follows = chars[np.minimum(end + 1, len(chars) - 1)]
        good &= (
            (end < ends[line]) & (chars[colon + 1] == ord(" ")) & ((follows == ord(" ")) | (end + 1 >= ends[line]))
        )
        good &= chars[end - 1] >= ord("0")
        return cls(line, seconds * 10**9 + fraction, cpu, tid, end).only(good)


def _is_flags(chars: NDArray[np.uint8], at: Words, close: Places, start: Places) -> Mask:
    """Return where nothing, or one word of four to six characters, stands between `close` and the time."""
    spaces = spaces_before(at, start)
    end = start - spaces
    length = end - close - 2
    is_word: Mask = (length >= 4) & (length <= 6) & ~has_space(at, end, np.clip(length, 0, 8))
    is_apart: Mask = (spaces > 0) & (chars[close + 1] == ord(" "))
    is_usual: Mask = is_apart & ((end == close + 1) | is_word)
    return is_usual


def _kinds(at: Words, end: Places) -> NDArray[np.uint8]:
    """Return the kinds of events by the last 16 characters of their names, with what stands before."""
    high, low = at[end - 8], at[end - 16]
    kinds = np.full(len(end), EventKind.OTHER, np.uint8)
    usual = {event.encode(): kind for event, (kind, _) in USUAL.items()}
    for name, kind in {**usual, **dict.fromkeys(_SLOW, _IS_SLOW)}.items():
        is_it = high == word(name[-8:])
        more = name[-16:-8]
        for before in (b" ", b":"):
            tail = (before + more)[-8:]
            mask = TOP[len(tail)]
            is_this = is_it & ((low & mask) == word(tail.rjust(8, b"\0")))
            kinds[is_this] = kind
    return kinds


_Form = tuple[tuple[bytes, str], ...]
"""Fields in their order: what stands before a value, with the `=` that ends it, and what the value is."""


def _form(text: str) -> _Form:
    parts = re.split(r"<(\w+)>", text)
    # The first field follows the colon that ends the event's name.
    return tuple(zip((f": {parts[0]}".encode(), *map(str.encode, parts[2::2])), parts[1::2], strict=False))


_FORMS: Final = {kind: _form(text) for kind, text in USUAL.values()}
_NUM_EQUALS: Final = np.full(_IS_SLOW + 1, -1)
"""How many `=` an event's fields have where no name holds one, by its kind."""
for _kind, _text in USUAL.values():
    _NUM_EQUALS[_kind] = _text.count("=")
_STATES: Final = np.array([TaskState.of(bytes([letter])) for letter in range(256)], np.int32)


class _Fields:
    """Reads the fields of one kind of event into the columns; says where they had their usual form."""

    def __init__(
        self, chars: NDArray[np.uint8], at: Words, ends: Places, known: KnownNames, events: Events
    ) -> None:
        self.chars, self.at, self.ends, self.known, self.events = chars, at, ends, known, events

    def read(self, form: _Form, line: NDArray[np.intp], event_end: Places, equals: Places) -> Mask:
        """Read the lines of a form, `equals[k]` the place of each line's k-th `=`."""
        stops = equals[np.cumsum([before.count(b"=") for before, _ in form]) - 1]
        good: Mask = stops[0] - event_end == len(form[0][0]) - 1
        for k, (before, field) in enumerate(form):
            good &= self._is(stops[k], before.removesuffix(b"="))
            is_last = k + 1 == len(form)
            end = self.ends[line] if is_last else stops[k + 1] - len(form[k + 1][0]) + 1
            good &= self._value(field, stops[k] + 1, end, line)
        return good

    def _is(self, place: Places, text: bytes) -> Mask:
        """Return where the characters before `place` are `text`."""
        good = np.ones(len(place), bool)
        for end in range(len(text), 0, -8):
            part = text[max(end - 8, 0) : end]
            at = self.at[place - (len(text) - end) - 8]
            good &= (at & TOP[len(part)]) == word(part.rjust(8, b"\0"))
        return good

    def _value(self, field: str, start: Places, end: Places, line: NDArray[np.intp]) -> Mask:
        if field == "rest":
            return np.ones(len(line), bool)
        if field == "irq_name":  # cut where names of threads end
            return self._name(start, np.minimum(end, start + NAME_BYTES), self.events.other_comm, line)
        if field == "prio":  # below zero for deadline threads
            return number(self.at, start + (self.chars[start] == ord("-")), end)[1]
        if field == "state":
            return self._state(start, end, line)
        column: NDArray[np.int32] = getattr(self.events, field)
        if field in ("comm", "other_comm"):
            return self._name(start, end, column, line)
        column[line], is_number = number(self.at, start, end)
        return is_number

    def _name(self, start: Places, end: Places, column: NDArray[np.int32], line: NDArray[np.intp]) -> Mask:
        first, second, is_short = text(self.at, start, end)
        index = self.known.indices(first, second)
        column[line] = index
        return is_short & (index >= 0)

    def _state(self, start: Places, end: Places, line: NDArray[np.intp]) -> Mask:
        letter, length = self.chars[start], end - start
        is_plus: Mask = (length == 2) & (self.chars[start + 1] == ord("+"))
        self.events.arg[line] = np.where((letter == ord("R")) & is_plus, TaskState.PREEMPTED, _STATES[letter])
        is_usual: Mask = is_plus | (length == 1)
        return is_usual
