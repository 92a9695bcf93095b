"""Whatever a tool writes, its parser reads it right or refuses it with one clear error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.fleet.discovery import cnmon, hy_smi, mthreads_gmi, npu_smi, nvidia_smi
from strata.fleet.discovery.observation import BadOutput, Found
from tests.fleet.discovery.tool_outputs import sample

Parser = Callable[[str], Any]

TABLES: list[tuple[Parser, str, str]] = [
    (npu_smi.parse_info, "npu_smi_24.1.rc1.txt", "npu-smi info"),
    (npu_smi.parse_info, "npu_smi_24.1.rc3_910c.txt", "npu-smi info"),
    (npu_smi.parse_info, "npu_smi_26.0.rc1.txt", "npu-smi info"),
    (npu_smi.parse_info, "npu_smi_old_310.txt", "npu-smi info"),
    (npu_smi.parse_info, "npu_smi_old_logic_id.txt", "npu-smi info"),
    (cnmon.parse, "cnmon_4.20.11.txt", "cnmon"),
    (cnmon.parse, "cnmon_5.10.13.txt", "cnmon"),
    (hy_smi.parse, "hy_smi.txt", "hy-smi"),
    (hy_smi.parse, "hy_smi_hcu.txt", "hy-smi"),
    (mthreads_gmi.parse, "mthreads_gmi_1.14.0.txt", "mthreads-gmi"),
    (mthreads_gmi.parse, "mthreads_gmi_2.0.0.txt", "mthreads-gmi"),
    (mthreads_gmi.parse, "mthreads_gmi_2.4.1.txt", "mthreads-gmi"),
    (nvidia_smi.parse_query, "nvidia_smi_query.csv", "nvidia-smi --query-gpu"),
]
MATRICES: list[tuple[Parser, str, str]] = [
    (npu_smi.parse_topology, "npu_smi_topo.txt", "npu-smi info -t topo"),
    (npu_smi.parse_topology, "npu_smi_topo_910c.txt", "npu-smi info -t topo"),
    (nvidia_smi.parse_topology, "nvidia_smi_topo_nvswitch.txt", "nvidia-smi topo -m"),
    (nvidia_smi.parse_topology, "nvidia_smi_topo_old.txt", "nvidia-smi topo -m"),
]
EVERY = [*TABLES, *MATRICES]


@pytest.mark.parametrize(("parse", "name", "tool"), EVERY)
@pytest.mark.parametrize(
    "text", ["", "\n\n", "Segmentation fault\n", "没有找到设备\n", "| | |\n+--+\n", "\x00\xff"]
)
def test_what_is_no_table_is_refused_with_the_tools_name(parse: Parser, name: str, tool: str, text: str) -> None:
    with pytest.raises(BadOutput) as caught:
        parse(text)
    assert str(caught.value).startswith(f"{tool}: ")
    assert "expected " in str(caught.value)


@pytest.mark.parametrize(("parse", "name", "tool"), TABLES)
def test_a_table_cut_anywhere_is_refused_or_loses_whole_devices_only(parse: Parser, name: str, tool: str) -> None:
    text = sample(name)
    whole: Found = parse(text)
    for end in range(len(text)):
        try:
            cut: Found = parse(text[:end])
        except BadOutput:
            continue
        kept = len(cut.devices)
        # Only a board whose second die is cut off may change: it is no board then.
        assert [(one.index, one.memory_used_bytes) for one in cut.devices] == [
            (one.index, one.memory_used_bytes) for one in whole.devices[:kept]
        ]


@pytest.mark.parametrize(("parse", "name", "tool"), MATRICES)
def test_a_matrix_cut_anywhere_is_refused_or_whole(parse: Parser, name: str, tool: str) -> None:
    text = sample(name)
    whole = parse(text)
    for end in range(len(text)):
        try:
            cut = parse(text[:end])
        except BadOutput:
            continue
        assert cut == whole


@pytest.mark.parametrize(("parse", "name", "tool"), EVERY)
def test_noise_around_a_table_and_dos_line_ends_change_nothing(parse: Parser, name: str, tool: str) -> None:
    text = sample(name)
    assert parse(text.replace("\n", "\r\n")) == parse(text)
    if parse is not nvidia_smi.parse_query:
        assert parse(f"警告: 驱动版本过旧\nWARNING: locale not set\n\n{text}\n完成\n") == parse(text)


@pytest.mark.parametrize(("parse", "name", "tool"), EVERY)
@given(data=st.data())
def test_scrambled_output_never_crashes_a_parser(parse: Parser, name: str, tool: str, data: st.DataObject) -> None:
    lines = sample(name).split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    line = lines[at]
    column = data.draw(st.integers(0, len(line)))
    junk = data.draw(st.text(alphabet="0/ |-+=:%XNAé\t\x1b", max_size=6))
    lines[at] = line[:column] + junk + line[data.draw(st.integers(column, len(line))) :]
    with contextlib.suppress(BadOutput):
        parse("\n".join(lines))
