from __future__ import annotations

import gzip
import json
import os
import threading
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from strata import files
from strata.errors import BadFile, UsageError
from strata.files import Bandwidth, Bytes, FileModel, Seconds, read_document, read_json, write_json, write_text


class Card(FileModel):
    name: str
    memory: Bytes


class Wire(FileModel):
    form: Literal["wire"]
    bandwidth: Bandwidth


class Radio(FileModel):
    form: Literal["radio"]
    power: Annotated[float, Field(gt=0)]


class Site(FileModel):
    api_version: str = Field(alias="apiVersion")
    cards: list[Card] = Field(default=[])
    spare: dict[str, Card] = Field(default={})
    uplink: Annotated[Wire | Radio, Field(discriminator="form")] | None = None
    backup: Wire | None = None
    delay: Seconds = 0.0
    share: float = 0.0
    names: Annotated[tuple[str, ...], Field(min_length=1)] = ("a",)


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "site.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def faults(written):
    def check(text: str | bytes) -> list[str]:
        path = written(text)
        with pytest.raises(BadFile) as caught:
            read_document(path).check(Site)
        return [str(fault).removeprefix(f"{path}:") for fault in caught.value.faults]

    return check


def test_a_file_is_read_into_si(written):
    text = "\ufeffapiVersion: v1\ncards:\n  - {name: a, memory: 16Gi}\ndelay: 30ms\n"
    site = read_document(written(text)).check(Site)
    assert (site.api_version, site.cards[0].memory, site.delay) == ("v1", 16 * 2**30, 0.03)


def test_json_is_read_the_same_way_tabs_included(written):
    site = read_document(written('{\n\t"apiVersion": "v1",\n\t"cards": [{"name": "a", "memory": "1GB"}]\n}\n'))
    assert site.check(Site).cards[0].memory == 1e9


def test_all_faults_are_told_at_once_each_with_its_place(faults):
    assert faults("cards:\n  - {name: a, memry: 1GB}\n  - {name: b, memory: 5}\ndelay: soon\n") == [
        "1:1: apiVersion: required key is missing",
        "2:5: cards.0.memory: required key is missing",
        "2:15: cards.0.memry: unknown key (did you mean 'memory'?)",
        "3:15: cards.1.memory: 5 has no unit; write 16Gi, 80GB or 512MiB",
        "4:1: delay: cannot read 'soon'; write 30ms, 500ns or 1h30m",
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        pytest.param("spare: {name: {nme: a, memory: 1GB}}",
                     "2:16: spare.name.nme: unknown key (did you mean 'name'?)",
                     id="a-key-named-like-a-field"),
        pytest.param("uplink: {form: radio, pwr: 3}", "2:23: uplink.pwr: unknown key (did you mean 'power'?)",
                     id="in-a-union"),
        pytest.param("uplink: {form: wire, bandwidth: 5}",
                     "2:22: uplink.bandwidth: 5 has no unit; write 400Gbps (bits) or 50GB/s (bytes)",
                     id="value-in-a-union"),
        pytest.param("backup: {frm: wire}", "2:10: backup.frm: unknown key (did you mean 'form'?)", id="optional"),
        pytest.param("cards: {}", "2:1: cards: should be a list (`- item`)", id="not-a-list"),
        pytest.param("cards: [a]", "2:9: cards.0: should be a mapping (`key: value`)", id="not-a-mapping"),
        pytest.param("cards: [{name: no, memory: 1GB}]",
                     "2:10: cards.0.name: should be text; put it in quotes if it is",
                     id="norway"),
        pytest.param("names: []", "2:1: names: holds 0 items, and needs 1", id="too-short"),
        pytest.param("names: a", "2:1: names: should be a list (`- item`)", id="no-tuple"),
        pytest.param("share: .nan", "2:1: share: should be a finite number", id="nan"),
        pytest.param("delay: .inf", "2:1: delay: inf has no unit; write 30ms, 500ns or 1h30m", id="inf"),
    ],
)  # fmt: skip
def test_a_fault_is_told_where_it_is(faults, line, fault):
    assert fault in faults(f"apiVersion: v1\n{line}\n")


def test_a_list_whose_items_are_wrong_is_not_also_too_short(faults):
    assert faults("apiVersion: v1\nnames: [true]\n") == [
        "2:9: names.0: should be text; put it in quotes if it is",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("a: 1\nb: {c: 1, c: 2}\na: 2\n", ["2:11: b.c: key given twice", "3:1: a: key given twice"],
                     id="duplicate-keys"),
        pytest.param("a:\n\t- b\n", ["2:1: not YAML: found character that cannot start any token"], id="tab"),
        pytest.param(b"a: b\nc: \xff\n", ["2:4: not UTF-8 text"], id="not-utf-8"),
        pytest.param(b"ab: \xc3\xbc\xc3\xbc\xff\n", ["1:7: not UTF-8 text"], id="column-in-characters"),
        pytest.param("a: b\nc: \x01\n", ["2:4: character U+0001 is not allowed in YAML"], id="control-character"),
        pytest.param("", ["1:1: the file is empty"], id="empty"),
        pytest.param("# nothing\n", ["1:1: the file is empty"], id="comment-only"),
        pytest.param("a: 1\n---\na: 2\n", ["2:1: a second document starts here; one file holds one"],
                     id="two-documents"),
        pytest.param("- a\n", ["1:1: should be a mapping (`key: value`)"], id="a-list"),
        pytest.param("? [a, b]\n: c\n", ["1:3: a key must be plain text"], id="list-as-key"),
        pytest.param("a: !!python/object/apply:os.system [x]\n",
                     ["1:4: a: tags (tag:yaml.org,2002:python/object/apply:os.system) are not read; "
                      "write plain YAML"],
                     id="tag"),
        pytest.param("a: &x 1\nb: *x\n", [
            "1:4: a: anchors and aliases (&, *) are not read; write the value out",
            "2:4: b: anchors and aliases (&, *) are not read; write the value out"], id="alias"),
        pytest.param("a: " + "[" * 100_000, ["1:68: nested more than 64 deep"], id="open-brackets"),
    ],
)  # fmt: skip
def test_what_is_no_plain_yaml_is_refused_with_its_place(faults, text, fault):
    assert faults(text) == fault


@given(st.one_of(st.binary(max_size=40), st.text("abc:-?[]{}&*!|>'\"%@`#,\n\t \x01\x85\ufeff\ufffe", max_size=30)))
def test_any_file_is_read_or_refused_with_a_place(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    faults = ()
    try:
        json.dumps(read_document(path).data)
    except BadFile as error:
        faults = error.faults
    assert all(fault.line > 0 and fault.column > 0 for fault in faults)


def test_nine_lines_of_aliases_do_not_become_gigabytes(faults):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]" for p, c in zip("abcdefgh", "bcdefghi", strict=True)]
    assert len(faults("\n".join(lines))) == 9 + 8 * 9


def test_a_list_that_contains_itself_is_refused(faults):
    assert "aliases" in faults("a: &a [*a]\n")[0]


def test_values_that_look_like_dates_or_huge_numbers_stay_text(written):
    data = read_document(written(f"a: 2024-01-01\nb: {'9' * 5000}\n")).data
    assert data == {"a": "2024-01-01", "b": "9" * 5000}


def test_a_missing_file_is_named_with_its_neighbour(tmp_path, written):
    written("a: 1\n")
    with pytest.raises(UsageError, match=r"sight\.yaml: no such file \(did you mean .*/site\.yaml\?\)"):
        read_document(tmp_path / "sight.yaml")
    with pytest.raises(UsageError, match=r"no such file$"):
        read_document(tmp_path / "no" / "folder")


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(UsageError, match="is a directory"):
        read_document(tmp_path)


def test_a_name_no_file_can_have_is_refused():
    with pytest.raises(UsageError, match="is not a file name"):
        read_document("a\0b")


def test_a_file_of_50_mb_is_refused_unread(tmp_path, monkeypatch):
    big = tmp_path / "big.yaml"
    with big.open("wb") as stream:
        stream.truncate(50 * 2**20)
    monkeypatch.setattr(files.yaml, "parse", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UsageError, match="larger than 16MiB"):
        read_document(big)


def test_a_device_without_end_is_refused():
    with pytest.raises(UsageError, match="larger than 16MiB"):
        read_document("/dev/zero")


def test_a_pipe_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a: 1\n",))
    writer.start()
    assert read_document(pipe).data == {"a": 1}
    writer.join()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1,\n "b": }', ":2:7: not JSON: Expecting value"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "not JSON: Exceeds the limit"),
    ],
)
def test_what_is_no_json_is_refused(written, text, says):
    with pytest.raises(BadFile, match=says):
        read_json(written(text))


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path):
    target = tmp_path / "deep" / "plan.json"
    write_json(target, {"ü": [1]})
    target.chmod(0o600)
    write_json(target, {"b": 2})
    assert json.loads(target.read_text()) == {"b": 2}
    assert target.stat().st_mode & 0o777 == 0o600
    assert os.listdir(target.parent) == ["plan.json"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failure):
    target = tmp_path / "plan.json"
    target.write_text("old")

    def fail(_descriptor):
        raise failure

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises((UsageError, KeyboardInterrupt)):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_path_that_ends_in_gz_is_compressed_the_same_way_each_time(tmp_path):
    write_text(tmp_path / "a.json.gz", "ü" * 1000)
    write_text(tmp_path / "b.json.gz", "ü" * 1000)
    raw = (tmp_path / "a.json.gz").read_bytes()
    assert len(raw) < 100
    assert gzip.decompress(raw).decode() == "ü" * 1000
    assert raw == (tmp_path / "b.json.gz").read_bytes()


def test_text_that_cannot_be_encoded_leaves_nothing_behind(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "plan.json", "\ud800")
    assert os.listdir(tmp_path) == []


def test_not_a_number_is_never_written_as_json(tmp_path):
    with pytest.raises(ValueError, match="nan"):
        write_json(tmp_path / "plan.json", {"a": float("nan")})
    assert os.listdir(tmp_path) == []


def test_a_link_is_followed_and_not_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "new")
    reader.join()
    assert read == ["new"]
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("place", "hint"),
    [("file/x", "a part of this one is a file"), ("n" * 300, "shorter"), ("/proc/x", "check the p")],
)
def test_a_place_that_cannot_be_written_is_named_with_a_way_out(tmp_path, place, hint):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written") as refused:
        write_text(tmp_path / place, "text")
    assert hint in refused.value.hint
