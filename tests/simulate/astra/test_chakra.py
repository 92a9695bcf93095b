"""Chakra traces: our few lines of protobuf against themselves, against protobuf, and against bad bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile
from strata.simulate.astra.chakra import VERSION, Node, NodeType, encode
from tests.simulate.astra.chakra_decoder import decode

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.booleans(), INT64, st.floats(allow_nan=False), st.text(max_size=20), st.lists(st.booleans()).map(tuple)
)
IDS = st.integers(0, 2**64 - 1)
NODES = st.builds(
    Node,
    id=IDS,
    type=st.sampled_from(NodeType),
    name=st.text(max_size=30),
    data_deps=st.lists(IDS, max_size=5).map(tuple),
    ctrl_deps=st.lists(IDS, max_size=5).map(tuple),
    duration_us=st.integers(0, 2**64 - 1),
    attrs=st.dictionaries(st.text(max_size=10), VALUES, max_size=5),
)
SEND = Node(3, NodeType.COMM_SEND, "F0 out", (2,), attrs={"comm_dst": 1, "comm_size": 2**33, "comm_tag": 0})


def typed(nodes):
    return [(node, {key: type(value) for key, value in node.attrs.items()}) for node in nodes]


@given(st.lists(NODES, max_size=5))
def test_what_was_written_is_read_back(nodes):
    assert typed(decode(encode(nodes))) == typed(nodes)


def messages():
    """Chakra's schema as far as ASTRA-sim reads it (et_def.proto of mlcommons/chakra 1.0.0), built at run time."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field, file = descriptor_pb2.FieldDescriptorProto, descriptor_pb2.FileDescriptorProto()
    file.name, file.package, file.syntax = "et_def.proto", "chakra", "proto3"

    def message(name, *fields, oneof=()):
        made = file.message_type.add(name=name)
        if oneof:
            made.oneof_decl.add(name="value")
        for number, key, kind, repeated in (*fields, *oneof):
            item = made.field.add(name=key, number=number)
            item.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind[0].isupper():
                item.type, item.type_name = field.TYPE_MESSAGE, f".chakra.{kind}"
            else:
                item.type = getattr(field, f"TYPE_{kind.upper()}")
            if (number, key, kind, repeated) in oneof:
                item.oneof_index = 0

    message("BoolList", (1, "values", "bool", True))
    message(
        "AttributeProto",
        (1, "name", "string", False),
        (2, "doc_string", "string", False),
        oneof=[
            (3, "double_val", "double", False),
            (7, "int32_val", "int32", False),
            (9, "int64_val", "int64", False),
            (11, "uint32_val", "uint32", False),
            (13, "uint64_val", "uint64", False),
            (17, "sint64_val", "sint64", False),
            (27, "bool_val", "bool", False),
            (28, "bool_list", "BoolList", False),
            (29, "string_val", "string", False),
        ],
    )
    message("GlobalMetadata", (1, "version", "string", False), (2, "attr", "AttributeProto", True))
    message(
        "Node",
        (1, "id", "uint64", False),
        (2, "name", "string", False),
        (3, "type", "int32", False),
        (4, "ctrl_deps", "uint64", True),
        (5, "data_deps", "uint64", True),
        (6, "start_time_micros", "uint64", False),
        (7, "duration_micros", "uint64", False),
        (10, "attr", "AttributeProto", True),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}"))
        for name in ("GlobalMetadata", "Node", "BoolList")
    }


def framed(*bodies):
    from google.protobuf.internal import encoder

    return b"".join(encoder._VarintBytes(len(body)) + body for body in bodies)


def with_protobuf(nodes, kinds):
    bodies = [kinds["GlobalMetadata"](version=VERSION).SerializeToString()]
    for node in nodes:
        made = kinds["Node"](
            id=node.id, name=node.name, type=int(node.type), ctrl_deps=node.ctrl_deps, data_deps=node.data_deps,
            duration_micros=node.duration_us,
        )  # fmt: skip
        for key, value in node.attrs.items():
            name = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}.get(type(value))
            made.attr.add(name=key, **({name: value} if name else {"bool_list": kinds["BoolList"](values=value)}))
        bodies.append(made.SerializeToString())
    return framed(*bodies)


@given(st.lists(NODES, max_size=3))
def test_the_bytes_are_those_protobuf_writes(nodes):
    assert encode(nodes) == with_protobuf(nodes, messages())


def test_integers_of_every_kind_are_read_from_foreign_traces():
    kinds = messages()
    node = kinds["Node"](id=7, type=4, start_time_micros=9)
    for name in ("int32_val", "int64_val", "sint64_val"):
        node.attr.add(name=name, **{name: -5})
    for name in ("uint32_val", "uint64_val"):
        node.attr.add(name=name, **{name: 5})
    data = framed(kinds["GlobalMetadata"](version="x").SerializeToString(), node.SerializeToString())
    (found,) = decode(data)
    assert found.attrs == {"int32_val": -5, "int64_val": -5, "sint64_val": -5, "uint32_val": 5, "uint64_val": 5}


def test_repeated_numbers_may_stand_one_by_one():
    body = bytes([1 << 3, 9, 3 << 3, 4, 5 << 3, 1, 5 << 3, 2])
    (node,) = decode(encode([]) + bytes([len(body)]) + body)
    assert (node.id, node.data_deps) == (9, (1, 2))


@pytest.mark.parametrize("kept", range(1, len(encode([SEND]))))
def test_a_truncated_trace_is_no_shorter_one(kept):
    data = encode([SEND])[:kept]
    if data == encode([]):
        assert decode(data) == ()
    else:
        with pytest.raises(BadFile, match=r"^trace\.3\.et: not a Chakra trace: byte \d+"):
            decode(data, "trace.3.et")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(BadFile):
        assert all(isinstance(node, Node) for node in decode(data))


def test_an_empty_file_is_no_trace():
    with pytest.raises(BadFile, match="empty"):
        decode(b"")
