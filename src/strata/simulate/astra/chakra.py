"""Chakra execution traces (`.et`): the two protobuf messages ASTRA-sim reads, written by hand.

A file is GlobalMetadata, then one Node after another, each behind its length as a base-128 varint. The wire
format is a few lines; generated code would tie strata to one version of protobuf, which is what most reports of
a broken ASTRA-sim set-up are about. Field numbers: mlcommons/chakra 1.0.0, `schema/protobuf/et_def.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final

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


class ChakraCollective(IntEnum):
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
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


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
