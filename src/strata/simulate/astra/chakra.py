"""Chakra execution traces (`.et`): the two protobuf messages ASTRA-sim reads, written and read by hand.

A file is GlobalMetadata, then one Node after another, each behind its length as a base-128 varint. The wire
format is a few lines; generated code would tie strata to one version of protobuf, which is what most reports of
a broken ASTRA-sim set-up are about. Field numbers: mlcommons/chakra 1.0.0, `schema/protobuf/et_def.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final

from strata.errors import BadFile, Fault

Value = bool | int | float | str | tuple[bool, ...]

VERSION: Final = "0.0.4"


class NodeType(IntEnum):
    """What a node does."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class Collective(IntEnum):
    """Values of the attribute `comm_type` that ASTRA-sim implements."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of one rank. `id` is also its priority: of the nodes that are ready, the lowest goes first.

    duration_us: whole microseconds of computing. attrs: what ASTRA-sim reads by name (`comm_size`, ...).
    """

    id: int
    type: NodeType
    name: str = ""
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    duration_us: int = 0
    attrs: Mapping[str, Value] = field(default_factory=dict)


def encode(nodes: Iterable[Node]) -> bytes:
    """Return the trace of one rank. The bytes are those protobuf writes for the same messages."""
    messages = [_text(1, VERSION), *map(_node, nodes)]
    return b"".join(part for message in messages for part in (_varint(len(message)), message))


def _node(node: Node) -> bytes:
    parts = [
        _number(1, node.id), _text(2, node.name), _number(3, node.type),
        _packed(4, node.ctrl_deps), _packed(5, node.data_deps), _number(7, node.duration_us),
    ]  # fmt: skip
    parts += [_block(10, _attribute(name, value)) for name, value in node.attrs.items()]
    return b"".join(parts)


def _attribute(name: str, value: Value) -> bytes:
    return _typed(name, value, type(value).__name__)


@lru_cache(maxsize=2**14)
def _typed(name: str, value: Value, _kind: str) -> bytes:
    """Return an attribute. `_kind` keeps True, 1 and 1.0 apart, which are one key of a cache."""
    if isinstance(value, bool):
        body = _key(27, 0) + _varint(int(value))
    elif isinstance(value, int):
        body = _key(9, 0) + _varint(value)
    elif isinstance(value, float):
        body = _key(3, 1) + struct.pack("<d", value)
    elif isinstance(value, str):
        body = _block(29, value.encode())
    else:
        body = _block(28, _packed(1, value))
    return _text(1, name) + body


@lru_cache(maxsize=2**12)
def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative numbers are written as 64-bit two's complement
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value) if value else b""  # proto3 leaves defaults out


def _block(number: int, body: bytes) -> bytes:
    return _key(number, 2) + _varint(len(body)) + body


def _text(number: int, text: str) -> bytes:
    return _block(number, text.encode()) if text else b""


def _packed(number: int, values: Iterable[int]) -> bytes:
    body = b"".join(map(_varint, values))
    return _block(number, body) if body else b""


def decode(data: bytes, path: str = "trace") -> tuple[Node, ...]:
    """Return the nodes of a trace. Fields ASTRA-sim does not read are skipped.

    Raises BadFile naming `path` and the byte where a truncated or foreign file stops making sense.
    """
    reader, nodes = _Reader(data), []
    try:
        if reader.at == len(data):
            raise ValueError("empty; a trace begins with its metadata")
        _metadata(reader.block())
        while reader.at < len(data):
            nodes.append(_read_node(reader.block()))
    except (ValueError, IndexError, struct.error, OverflowError) as error:
        what = str(error) if isinstance(error, ValueError) else "ends in the middle of a node"
        raise BadFile(
            [Fault(path, f"not a Chakra trace: byte {reader.at} of {len(data)}: {what}")],
            hint="write it again with `strata export PLAN --to chakra`",
        ) from None
    return tuple(nodes)


class _Reader:
    """A place in some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number of more than 10 bytes")

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ValueError(f"{count} bytes announced, {len(self.data) - self.at} left")
        self.at += count
        return self.data[self.at - count : self.at]

    def block(self) -> bytes:
        return self.take(self.varint())


def _fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    reader = _Reader(body)
    while reader.at < len(body):
        number, wire = divmod(reader.varint(), 8)
        if wire == 0:
            yield number, reader.varint()
        elif wire in (1, 5):
            yield number, reader.take(8 if wire == 1 else 4)
        elif wire == 2:
            yield number, reader.block()
        else:
            raise ValueError(f"wire type {wire} is none of protobuf's")


def _metadata(body: bytes) -> None:
    for number, value in _fields(body):
        if number == 1 and not (isinstance(value, bytes) and value.isascii()):
            raise ValueError("the first message is not GlobalMetadata")


def _read_node(body: bytes) -> Node:
    numbers, name, attrs = {1: 0, 3: 0, 7: 0}, "", {}
    deps: dict[int, list[int]] = {4: [], 5: []}
    for number, value in _fields(body):
        if number in numbers:
            numbers[number] = _as_int(value)
        elif number == 2:
            name = _as_bytes(value).decode()
        elif number in deps:
            deps[number] += _as_ints(value)
        elif number == 10:
            key, content = _read_attribute(_as_bytes(value))
            if content is not None:
                attrs[key] = content
    return Node(numbers[1], NodeType(numbers[3]), name, tuple(deps[5]), tuple(deps[4]), numbers[7], attrs)


def _read_attribute(body: bytes) -> tuple[str, Value | None]:
    name, found = "", None
    for number, value in _fields(body):
        if number == 1:
            name = _as_bytes(value).decode()
        else:
            found = _value(number, value)
    return name, found


def _value(number: int, value: int | bytes) -> Value | None:
    """Return what an attribute holds; None for kinds ASTRA-sim never asks for."""
    if number in (7, 9):
        signed = _as_int(value)
        return signed - 2**64 if signed >= 2**63 else signed
    if number in (11, 13):
        return _as_int(value)
    if number in (15, 17):  # zigzag
        return (_as_int(value) >> 1) ^ -(_as_int(value) & 1)
    if number == 27:
        return bool(_as_int(value))
    if number == 3:
        return float(struct.unpack("<d", _as_bytes(value))[0])
    if number == 29:
        return _as_bytes(value).decode()
    if number == 28:
        return tuple(bool(one) for _, item in _fields(_as_bytes(value)) for one in _as_ints(item))
    return None


def _as_int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("text where a number belongs")
    return value


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where text belongs")
    return value


def _as_ints(value: int | bytes) -> list[int]:
    """Return repeated numbers, packed in one block or each on its own."""
    if isinstance(value, int):
        return [value]
    reader, found = _Reader(value), []
    while reader.at < len(value):
        found.append(reader.varint())
    return found
