"""The text of a policy, read as strictly as serde_json reads it, and where in it each value stands."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from strata.errors import BadFile, Fault
from strata.files import read_text

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BOM: Final = b"\xef\xbb\xbf"
MAX_BYTES: Final = 2**20
"""All conditions there can be, 16 layers x 32 blocks x 26, are half of that where names are usual."""
DEEPEST: Final = 127
"""Lists and objects in each other; serde_json stops at more."""
LONGEST_INT: Final = 40
"""Digits past which a number fits no integer of Rust; it is read as a real, as serde_json does."""


class Object(dict[str, Any]):
    """A JSON object that remembers keys given twice, which serde refuses and Python's reader forgets."""

    doubled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """JSON data, and where its values stand: line and column from 1, by paths as `[0].kind.Open.weight`."""

    data: Any
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def place(self, path: str) -> tuple[int, int]:
        """Return where a path stands, or the nearest thing around it; (0, 0) where nothing is known."""
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places.get(path, (0, 0))


def load(path: str) -> Text:
    """Read a file. Raises UsageError (no such file) or BadFile (nothing that serde_json takes)."""
    text = read_text(path, max_bytes=MAX_BYTES)
    with Path(path).open("rb") as stream:
        if stream.read(len(_BOM)) == _BOM:
            raise BadFile([Fault(path, "begins with a byte order mark, at which scx_layered stops", 1, 1)])
    try:
        data = json.loads(
            text, object_pairs_hook=_object, parse_constant=_real, parse_float=_real, parse_int=_whole
        )
    except json.JSONDecodeError as error:
        raise BadFile([Fault(path, f"not JSON: {error.msg}", error.lineno, error.colno)]) from None
    except RecursionError:
        raise BadFile([Fault(path, "not usable JSON: nested too deeply")]) from None
    except _OddError as error:
        place = next(
            (_place(_lines(text), token.start()) for token in _TOKEN.finditer(text) if token[0] == error.number),
            (),
        )
        raise BadFile([Fault(path, f"not JSON: {error}", *place)]) from None
    lines = _lines(text)
    places: dict[str, tuple[int, int]] = {}
    for where, offset in _offsets(path, text, lines):
        places.setdefault(where, _place(lines, offset))
    return Text(data, places)


class _OddError(ValueError):
    """A number that Python takes and serde_json does not."""

    def __init__(self, number: str, why: str) -> None:
        super().__init__(f"{number[:LONGEST_INT]} {why}")
        self.number = number


def _real(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise _OddError(number, "is not a number of JSON" if number[-1].isalpha() else "is out of range")
    return value


def _whole(number: str) -> int | float:
    if number == "-0":
        return -0.0  # serde_json reads a real there, which fits no integer
    return int(number) if len(number) <= LONGEST_INT else _real(number)


def _object(pairs: list[tuple[str, Any]]) -> Object:
    members = Object(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        members.doubled = tuple(dict.fromkeys(key for key in keys if keys.count(key) > 1))
    return members


def _offsets(path: str, text: str, lines: list[int]) -> list[tuple[str, int]]:
    """Return each value's path and offset in a text that is JSON. Raises BadFile for text that is none."""
    places: list[tuple[str, int]] = []
    around: list[tuple[str, list[int] | None]] = []  # paths of what is open; the count of items in lists
    here, is_key = "", False
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark[0] == '"' and "\\u" in mark and _SURROGATE.search(json.loads(mark)):
            raise BadFile([Fault(path, "a lone surrogate is not valid text", *_place(lines, token.start()))])
        if mark in ("]", "}"):
            around.pop()
            is_key = False
        elif mark == ",":
            outer, count = around[-1]
            is_key = count is None
            if count is not None:
                count[0] += 1
                here = f"{outer}[{count[0]}]"
        elif is_key and mark != ":":
            here, is_key = f"{around[-1][0]}.{json.loads(mark)}", False
            places.append((here, token.start()))
        elif mark != ":":
            places.append((here, token.start()))
            is_key = mark == "{"
            if mark in ("[", "{"):
                if len(around) == DEEPEST:
                    place = _place(lines, token.start())
                    raise BadFile([Fault(path, f"nested more than {DEEPEST} deep", *place)])
                around.append((here, [0] if mark == "[" else None))
                here = f"{here}[0]"
    return places


def _lines(text: str) -> list[int]:
    return [0, *(newline.end() for newline in re.finditer("\n", text))]


def _place(lines: list[int], offset: int) -> tuple[int, int]:
    line = bisect_right(lines, offset)
    return line, offset - lines[line - 1] + 1
