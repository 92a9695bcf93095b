"""Text tables made for people: cells between bars, columns under headers, matrices of devices."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from strata.fleet.discovery.observation import BadOutput

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SLASH: Final = re.compile(r"(?<=[0-9A-Za-z])\s*/\s*(?=[0-9])")
_UNIT: Final = re.compile(r"(?<=\d)\s+(?=(?:W|MiB|MB|C|%)(?:\b|/|$))")
_NOT_KNOWN: Final = frozenset(
    {"", "-", "NA", "N/A", "[N/A]", "[NOT SUPPORTED]", "NOT SUPPORTED", "[UNKNOWN ERROR]"}
)


def lines_of(text: str) -> list[tuple[int, str]]:
    """Return the lines with their numbers from 1, without colours (`nvidia-smi topo` underlines even in pipes)."""
    return list(enumerate(_ESCAPE.sub("", text).replace("\r", "").split("\n"), start=1))


def cells(line: str) -> list[str]:
    """Return what stands between the bars of a row: `| a | b |` gives `a`, `b`."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def columns(header: str) -> list[str]:
    """Return the names in one header cell: apart by two spaces, or after a bracket (`NPU Util(%) Memory(MB)`)."""
    return [name for name in re.split(r"\s{2,}|(?<=\))\s+", header.strip()) if name]


def names(header: str) -> set[str]:
    """Return all names in a header row."""
    return {name for cell in cells(header) for name in columns(cell)}


def values(text: str) -> list[str]:
    """Return the values in one cell: `106 W/ 250 W  59356/ 65536` gives `106W/250W`, `59356/65536`."""
    return _SLASH.sub("/", _UNIT.sub("", text)).split()


def row(header: str, line: str, *, tool: str, number: int) -> dict[str, str]:
    """Return a row's values by the names of its header; a column the header does not name cannot be there.

    A first cell with a word too many has a name with a space in it; its last header takes the rest.
    """
    named: dict[str, str] = {}
    heads, bodies = cells(header), cells(line)
    if len(heads) != len(bodies):
        raise BadOutput(tool, number, f"{len(heads)} cells as in the header", line)
    for position, (head, body) in enumerate(zip(heads, bodies, strict=True)):
        keys, parts = columns(head), values(body)
        if position == 0 and len(parts) > len(keys) >= 2:
            parts = [*parts[: len(keys) - 1], " ".join(parts[len(keys) - 1 :])]
        if len(keys) != len(parts):
            raise BadOutput(tool, number, f"values for {', '.join(keys) or 'nothing'}", body or line)
        named.update(zip(keys, parts, strict=True))
    return named


def card_rows(
    text: str, *, tool: str, headers: Collection[str], under: str, ends: str
) -> Iterator[tuple[dict[str, str], int, dict[str, str], int]]:
    """Yield the two rows of each card by the names in their headers, each with the number of its line.

    headers: names in the first header row. under: what the second one has, a pattern. ends: what no line of the
    table has, but the one that begins the next table. Raises BadOutput, also where the table ends too early.
    """
    header = second = ""
    upper: dict[str, str] = {}
    upper_at, last, is_closed = 0, 0, True
    for number, line in lines_of(text):
        if ends in line:
            break
        if not line.strip().startswith("|"):
            is_closed = is_closed or line.strip().startswith("+")
            continue
        if not header:
            header = line if names(line).issuperset(headers) else ""
        elif not second:
            if not re.search(under, line):
                raise BadOutput(tool, number, f"the second header row with {under}", line)
            second = line
        elif set(line.strip()) <= set("|=+-"):
            continue
        elif not upper:
            upper, upper_at, is_closed = row(header, line, tool=tool, number=number), number, False
        else:
            yield upper, upper_at, row(second, line, tool=tool, number=number), number
            upper, is_closed = {}, False
        last = number
    if not second:
        raise BadOutput(tool, 0, f"a table whose header has {', '.join(headers)}", text[:80])
    if upper or not is_closed:
        raise BadOutput(tool, last, "the rest of the table; the output ends too early")


def is_known(text: str) -> bool:
    """Whether a tool says anything here: not `-`, `N/A` and the like."""
    return text.strip().upper() not in _NOT_KNOWN


def quantity(text: str, *, tool: str, number: int, what: str, unit: str = "") -> float | None:
    """Read a number of 0 or more with an optional unit (`106W`, `32C`, `0%`); None for `N/A`, `-`."""
    if not is_known(text):
        return None
    match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*(?:{unit})?" if unit else r"(\d+(?:\.\d+)?)", text.strip())
    if match is None:
        raise BadOutput(tool, number, f"{what} as a number{f' with {unit}' if unit else ''}", text)
    return float(match[1])


def needed(text: str | None, *, tool: str, number: int, what: str, unit: str = "") -> float:
    """Read a number that has to be there."""
    value = quantity(text or "", tool=tool, number=number, what=what, unit=unit)
    if value is None:
        raise BadOutput(tool, number, f"{what} as a number", text or "")
    return value


LINKS: Final[Mapping[str, str]] = {
    "SYS": "sys",
    "NODE": "node",
    "PHB": "phb",
    "PXB": "pxb",
    "PIX": "pix",
    "HCCS": "hccs",
    "HCCS_SW": "hccs",
    "SIO": "sio",
    "XGMI": "xgmi",
}
"""Words of the topology matrices; `NV4` and the like are NVLink, `NA` is nothing known."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A topology: links between devices i < j, and for each device its CPUs and NUMA node where shown."""

    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    cpus: Mapping[int, str] = field(default_factory=dict)
    numa_nodes: Mapping[int, int] = field(default_factory=dict)


def matrix(text: str, *, tool: str, prefixes: Sequence[str]) -> Matrix:
    """Read a matrix whose rows and columns are devices (`GPU0`, `NPU0`, `Phy-ID0`), other columns ignored.

    Raises BadOutput where a row is short, a word is unknown, a device has no row, or the two halves disagree.
    """
    device = re.compile(rf"(?:{'|'.join(map(re.escape, prefixes))})\s?(\d+)")
    header: list[int | None] = []
    seen: dict[tuple[int, int], str | None] = {}
    cpus: dict[int, str] = {}
    numa: dict[int, int] = {}
    rows: list[int] = []
    extra: list[str] = []
    last = 0
    lines = lines_of(text)
    for number, line in lines:
        words = line.split()
        if not words:
            continue
        if not header:
            if device.fullmatch(words[0]) and not _is_cell(words[1:2]):
                named, _, rest = line.partition("CPU Affinity")
                header = [int(m[1]) if (m := device.fullmatch(word)) else None for word in named.split()]
                extra = re.split(r"\s{2,}|\t+", f"CPU Affinity{rest}".strip()) if "CPU Affinity" in line else []
            continue
        own = device.fullmatch(words[0])
        if own is None:
            if rows and words[0].rstrip(":").lower() == "legend":
                break
            continue
        i, last = int(own[1]), number
        if len(words) < 1 + len(header):
            raise BadOutput(tool, number, f"{len(header)} links of {words[0]}", line)
        if number == len(lines):
            raise BadOutput(tool, number, "the end of the row; the output ends too early", line)
        rows.append(i)
        for j, word in zip(header, words[1:], strict=False):
            if j is not None:
                seen[i, j] = _link(word, i == j, tool=tool, number=number)
        after = dict(zip(extra, words[1 + len(header) :], strict=False))
        if is_known(after.get("CPU Affinity", "")):
            cpus[i] = after["CPU Affinity"]
        if after.get("NUMA Affinity", "").isdecimal():
            numa[i] = int(after["NUMA Affinity"])
    if not header:
        raise BadOutput(tool, 0, f"a matrix that begins with {prefixes[0]}0", text[:80])
    links: dict[tuple[int, int], str] = {}
    for j in (index for index in header if index is not None):
        if j not in rows:
            raise BadOutput(tool, last, f"a row of {prefixes[0]}{j}; the output ends too early")
    for (i, j), link in seen.items():
        if seen.get((j, i)) != link:
            raise BadOutput(tool, last, f"the same link from {i} to {j} as back")
        if i < j and link is not None:
            links[i, j] = link
    return Matrix(links, cpus, numa)


def _is_cell(words: Sequence[str]) -> bool:
    return bool(words) and (words[0] in ("X", "NA") or words[0] in LINKS or bool(re.fullmatch(r"NV\d+", words[0])))


def _link(word: str, is_self: bool, *, tool: str, number: int) -> str | None:
    if is_self != (word == "X"):
        raise BadOutput(tool, number, "X between a device and itself, and only there", word)
    if is_self or not is_known(word):
        return None
    if re.fullmatch(r"NV\d+", word):
        return "nvlink"
    if word not in LINKS:
        raise BadOutput(tool, number, f"a link such as {', '.join(LINKS)} or NV4", word)
    return LINKS[word]
