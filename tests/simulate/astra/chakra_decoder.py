"""The reader of Chakra traces that the writer is held against: `decode(encode(nodes)) == nodes`."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from strata.errors import BadFile, Fault
from strata.simulate.astra.chakra import Node, NodeType, Value


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
