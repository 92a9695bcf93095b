"""Exports of Nsight Systems: the same verdict as Kineto's of the same time; what is none is refused."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.errors import UsageError
from strata.host.analysis.accelerator import activity_of
from strata.host.analysis.findings import gpu_idle
from strata.host.analysis.kineto import kineto_trace
from strata.host.analysis.nsys import nsys_trace
from strata.host.analysis.view import TraceView
from tests.host.analysis.test_kineto import counted, profile, scheduler

COLUMNS = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
        "nameId INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, "
        "correlationId INTEGER, globalPid INTEGER, shortName INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, correlationId INTEGER, "
        "globalPid INTEGER, bytes INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL, "
        "graphExecId INTEGER NOT NULL"
    ),
    "TARGET_INFO_CUDA_DEVICE": (
        "gpuId INTEGER NOT NULL, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT, "
        "numMultiprocessors INTEGER NOT NULL"
    ),
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
}
"""What NVIDIA's "SQLite Schema Reference" says of each table, as far as it is read."""
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH, DEVICES = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "TARGET_INFO_CUDA_DEVICE"
LAZY = (GRAPH, DEVICES)
"""Tables that are there where they have rows."""


def thread_of(tid, pid=7):
    """A serialized thread: machine and process above it."""
    return (1 << 48 | pid << 24) + tid


def export(path: Path, *, began_ns: int = 0, without: str = "", **rows: list[tuple]) -> Path:
    with closing(sqlite3.connect(path)) as database:
        for table, columns in COLUMNS.items():
            if table != without and (table not in LAZY or rows.get(table)):
                database.execute(f"CREATE TABLE {table} ({columns})")
        rows.setdefault("TARGET_INFO_SESSION_START_TIME", [(began_ns, "", "")])
        for table, values in rows.items():
            if table != without and values:
                database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
        database.commit()
    return path


def as_export(kineto: Path, path: Path, *, began_ns: int = 0, pid: int = 7) -> Path:
    """Write what Kineto says as Nsight Systems would."""
    raw = kineto.read_bytes()
    events = json.loads(gzip.decompress(raw) if kineto.suffix == ".gz" else raw)["traceEvents"]
    rows = {RUNTIME: [], KERNEL: []}
    for number, event in enumerate(events):
        if event.get("cat") not in ("cuda_runtime", "kernel"):
            continue
        start, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
        correlation = event.get("args", {}).get("correlation", int(event["ts"]))
        device = event.get("args", {}).get("device", 0)
        if event["cat"] == "kernel":
            rows[KERNEL].append((start, end, device, 7, correlation, thread_of(0, pid), number))
        else:
            rows[RUNTIME].append((start, end, thread_of(event["tid"], pid), correlation, number))
    return export(path, began_ns=began_ns, **rows)


@pytest.mark.parametrize("seed", range(4))
def test_it_says_what_kineto_says_of_the_same_time(tmp_path, seed):
    text, files, truth = counted(seed, tmp_path)
    trace = text.trace(tmp_path)
    began_ns = 1_790_857_026 * 10**9
    ranks = [
        nsys_trace(
            as_export(file, tmp_path / f"{rank}.sqlite", began_ns=began_ns, pid=70 + rank), offset_ns=began_ns
        )
        for rank, file in enumerate(files)
    ]
    found = gpu_idle.idleness(TraceView(trace, accelerator=activity_of(ranks, trace)))
    assert (found.idle_ms, found.waited_ms, found.ran_ms) == pytest.approx(
        (truth["idle"], truth["waited"], truth["ran"]), abs=1e-9
    )
    mixed = [kineto_trace(files[0], offset_ns=began_ns), ranks[1]]
    assert gpu_idle.idleness(TraceView(trace, accelerator=activity_of(mixed, trace))) == found


def test_numbers_of_two_processes_in_one_report_are_told_apart(tmp_path):
    # Both number their device 0 and their launches 1 and 2.
    rows = {
        RUNTIME: [(0, 1, thread_of(11, 7), 1, 1), (5, 6, thread_of(21, 8), 1, 1), (9, 10, thread_of(22, 8), 2, 1)],
        KERNEL: [(10, 20, 0, 7, 1, thread_of(0, 7), 1), (30, 40, 0, 7, 2, thread_of(0, 8), 1)],
    }
    got = nsys_trace(export(tmp_path / "r.sqlite", **rows))
    assert got.busy_tid.tolist() == [11, 22]
    assert len(set(got.busy_device.tolist())) == 2
    assert got.launch_tid.tolist() == [11, 22]  # what ended in no kernel launched nothing


def test_copies_are_busy_times_too_and_what_has_no_time_is_left_out(tmp_path):
    rows = {
        RUNTIME: [(0, 1, thread_of(11), 1, 1)],
        KERNEL: [(10, 20, 0, 7, 1, thread_of(0), 1), (0, 0, 0, 7, 1, thread_of(0), 1)],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(30, 50, 0, 9, thread_of(0), 64)],
    }
    got = nsys_trace(export(tmp_path / "r.sqlite", **rows))
    assert got.busy_end_ns.tolist() == [20, 50]
    assert got.busy_tid.tolist() == [11, 11]  # of nobody: the thread that launches most


def test_a_graph_that_was_traced_as_a_whole_is_busy_and_its_launcher_known(tmp_path):
    # The default of nsys: no kernel of a graph is a row, and without others there is no table of kernels.
    rows = {RUNTIME: [(0, 1, thread_of(11), 5, 1)], GRAPH: [(10, 90, 0, 1, 7, 5, thread_of(0), 3, 4)]}
    got = nsys_trace(export(tmp_path / "r.sqlite", without=KERNEL, **rows))
    assert (got.busy_start_ns.tolist(), got.busy_end_ns.tolist(), got.busy_tid.tolist()) == ([10], [90], [11])
    both = nsys_trace(export(tmp_path / "s.sqlite", **rows, **{KERNEL: [(95, 99, 0, 7, 5, thread_of(0), 1)]}))
    assert sorted(both.busy_end_ns.tolist()) == [90, 99]


def test_nodes_of_a_graph_are_launched_by_who_launched_it(tmp_path):
    rows = {
        RUNTIME: [(0, 1, thread_of(11), 5, 1), (2, 3, thread_of(12), 6, 1), (3, 4, thread_of(12), 7, 1)],
        KERNEL: [(10 * i, 10 * i + 5, 0, 7, 5, thread_of(0), 1) for i in (1, 2)]
        + [(30, 40, 0, 7, 6, thread_of(0), 1), (50, 60, 0, 7, 7, thread_of(0), 1)],
    }
    assert nsys_trace(export(tmp_path / "r.sqlite", **rows)).busy_tid.tolist() == [11, 11, 12, 12]


def test_a_gpu_that_two_processes_share_is_one(tmp_path):
    """Both call theirs device 0: GPU 3 is of 7 and 8, as under MPS, and 9 has one alone; of 10 nothing is said."""
    pids = (7, 8, 9, 10)
    rows = {
        RUNTIME: [(0, 1, thread_of(11, pid), 1, 1) for pid in pids],
        KERNEL: [(10, 20, 0, 7, 1, thread_of(0, pid), 1) for pid in pids],
        DEVICES: [(3, 0, 7, "", 132), (3, 0, 8, "", 132), (4, 0, 9, "", 132), (5, 1, 10, "", 132)],
    }
    device = nsys_trace(export(tmp_path / "r.sqlite", **rows)).busy_device.tolist()
    assert device[0] == device[1]
    assert len(set(device)) == 3


def test_times_of_the_epoch_are_read_as_such(tmp_path):
    """`nsys export --ts-normalize true` has added what the session began at."""
    began_ns = 1_790_857_026 * 10**9
    shifted = {
        RUNTIME: [(began_ns, began_ns + 1, thread_of(11), 1, 1)],
        KERNEL: [(began_ns + 10, began_ns + 20, 0, 7, 1, thread_of(0), 1)],
    }
    got = nsys_trace(export(tmp_path / "r.sqlite", began_ns=began_ns, **shifted), offset_ns=began_ns)
    assert (got.busy_end_ns.tolist(), got.launch_ns.tolist()) == ([20], [0])


def test_the_command_reads_an_export(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(scheduler().raw())
    exported = as_export(profile(tmp_path), tmp_path / "r.sqlite")
    before = sorted({*tmp_path.iterdir(), tmp_path / "state"})
    data = json.loads(
        CliRunner().invoke(cli, ["host", "report", str(trace), "--nsys", str(exported), "-o", "json"]).stdout
    )
    assert data["gpu"]["launcher_waited_ms"] == pytest.approx(36)
    assert "gpu-idle-cpu-wait" in {finding["token"] for finding in data["findings"]}
    assert sorted(tmp_path.iterdir()) == before  # nothing is written beside it; the history is elsewhere
    assert run(["host", "report", str(trace), "--nsys", str(tmp_path / "none.sqlite")]) == 2


SOME = {RUNTIME: [(0, 1, thread_of(11), 1, 1)], KERNEL: [(10, 20, 0, 7, 1, thread_of(0), 1)]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (KERNEL, "no table CUPTI_ACTIVITY_KIND_KERNEL: CUDA was not traced"),
        ("TARGET_INFO_SESSION_START_TIME", "not an export of Nsight Systems, or of an older one"),
    ],
)
def test_an_export_without_a_table_is_refused(tmp_path, table, message):
    with pytest.raises(UsageError, match=message):
        nsys_trace(export(tmp_path / "r.sqlite", without=table, **SOME))


def test_another_form_of_a_table_is_refused(tmp_path):
    path = export(tmp_path / "r.sqlite", **SOME)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"ALTER TABLE {KERNEL} RENAME COLUMN deviceId TO device")
    with pytest.raises(UsageError, match=r"r\.sqlite: damaged, or of another form: no such column: deviceId"):
        nsys_trace(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"ALTER TABLE {KERNEL} RENAME COLUMN device TO deviceId")
    for bad in ("'soon'", "x'00'"):
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"UPDATE {KERNEL} SET start = {bad}")
            database.commit()
        with pytest.raises(UsageError, match=r"r\.sqlite: damaged, or of another form"):
            nsys_trace(path)


@pytest.mark.parametrize("spoil", ["text", "empty", "cut", "no-kernels", "no-times", "folder"])
def test_what_is_no_report_is_refused(tmp_path, spoil):
    path = tmp_path / "r.sqlite"
    if spoil == "folder":
        path.mkdir()
    elif spoil in ("text", "empty"):
        path.write_text("traceEvents" if spoil == "text" else "")
    elif spoil == "cut":
        export(path, **SOME)
        path.write_bytes(path.read_bytes()[:5000])
    else:
        export(path, **{**SOME, KERNEL: [] if spoil == "no-kernels" else [(0, 0, 0, 7, 1, thread_of(0), 1)]})
    with pytest.raises(UsageError, match=r"r\.sqlite: "):
        nsys_trace(path)


def test_a_report_of_another_time_is_refused(tmp_path):
    trace = scheduler().trace(tmp_path)
    with pytest.raises(UsageError, match="another time or another clock"):
        activity_of([nsys_trace(export(tmp_path / "r.sqlite", began_ns=10**18, **SOME))], trace)
    with pytest.raises(UsageError, match="its clock is"):
        nsys_trace(export(tmp_path / "s.sqlite", began_ns=9 * 10**18, **SOME))
