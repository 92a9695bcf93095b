"""Threads: who is who on a training host, from what they hold, are called and do."""

from __future__ import annotations

import json
import os
import threading
import unicodedata
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import strata.host
import strata.host.threads.observe
from strata.cli import host_threads
from strata.cli.main import cli
from strata.cli.output import show
from strata.errors import UsageError
from strata.host.apply.machine import KernelFiles
from strata.host.record.census import CensusTaker
from strata.host.threads.classify import changes, classify
from strata.host.threads.observe import observe
from strata.host.threads.pools import LAYERS, POOLS, stem
from strata.host.threads.snapshot import Gpu, Snapshot
from strata.tables import Line, rows
from tests.host.builders import DCGM, ENVOY, LOADER, TRAINER, of, thread, training_host, write_proc


def pools(snapshot):
    return {one.thread.tid: (one.pool, one.layer) for one in classify(snapshot)}


def test_every_thread_of_a_training_host_is_in_its_pool_and_layer():
    found = pools(training_host())
    assert found[TRAINER] == ("kernel-launch", "critical")
    assert found[4001] == ("kernel-launch", "critical")
    assert found[4002] == ("accelerator-monitor", "critical")
    assert found[4003] == found[4004] == ("comms-monitor", "critical")
    assert {found[4010 + number] for number in range(8)} == {("openmp", "pipeline")}
    assert found[4030] == found[LOADER] == found[4102] == ("loading", "pipeline")
    assert found[4101] == ("transforms", "pipeline")
    assert found[4031] == ("checkpoint", "support")
    assert found[4032] == ("rpc", "support")
    assert found[DCGM] == found[701] == ("accelerator-monitor", "critical")
    assert found[ENVOY] == found[911] == ("routing", "support")
    assert found[5000] == (None, "rest")


def test_a_process_that_ends_while_it_is_looked_at_is_passed_over(tmp_path, monkeypatch):
    write_proc(tmp_path, training_host())

    def ending(listed):
        def ends_first(path):
            if str(path).endswith(f"/{ENVOY}/task"):
                raise ProcessLookupError(3, "No such process")
            return listed(path)

        return ends_first

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, ending(getattr(os, name)))
    found = observe(tmp_path, gpus=()).threads
    assert {one.pid for one in found} == {one.pid for one in training_host().threads} - {ENVOY}
    assert {one.path for one in KernelFiles(tmp_path).born(since_ticks=0)} == {
        f"/proc/{one.pid}/task/{one.tid}" for one in found
    }
    census = CensusTaker(tmp_path)
    census.look()
    assert len(census.looks[0]["threads"]) == len(found)


def test_unnamed_threads_that_only_wait_for_messages_are_no_parallel_region_and_never_critical():
    leader = thread(10, "python")
    proxies = tuple(
        of(leader, 20 + n, "python", run_s=4.0, num_runs=100_000, num_wakeups=95_000) for n in range(3)
    )
    found = pools(Snapshot((leader, *proxies), {10: ("/dev/nvidia0",)}))
    assert {found[20 + number] for number in range(3)} == {(None, "pipeline")}


def test_idle_threads_of_a_parallel_region_belong_to_it_too():
    leader = thread(10, "python")
    crew = (of(leader, 20, "python"), of(leader, 21, "python"), of(leader, 22, "python", run_s=0.0, num_runs=1))
    found = pools(Snapshot((leader, *crew), {10: ("/dev/nvidia0",)}))
    assert found[20] == found[22] == ("openmp", "pipeline")


def test_a_thread_without_a_sign_is_neither_starved_nor_confined_while_its_job_computes():
    assert pools(training_host())[4033] == (None, "pipeline")


def test_each_answer_has_its_evidence_and_how_sure_it_is():
    by_tid = {one.thread.tid: one for one in classify(training_host())}
    trainer = by_tid[TRAINER]
    assert trainer.evidence == ("the driver lists its process on GPU 0, and it is the first thread",)
    assert (trainer.gpus, trainer.node) == ((0,), 0)
    assert by_tid[4010].evidence[0] == "one of 8 unnamed threads that keep 2.4 CPUs busy, 1000 us at a time"
    assert by_tid[4003].confidence > by_tid[4010].confidence > 0.3
    assert by_tid[5000].confidence == 0.0


def test_open_files_speak_where_no_driver_names_processes():
    host = training_host()
    mute = replace(host, gpus=tuple(replace(gpu, pids=frozenset()) for gpu in host.gpus))
    (trainer,) = (one for one in classify(mute) if one.thread.tid == TRAINER)
    assert trainer.pool == "kernel-launch"
    assert trainer.evidence == ("its process holds /dev/nvidia0, and it is the first thread",)
    assert trainer.node == 0


def test_numbers_of_another_pid_namespace_do_not_unseat_a_trainer():
    host = training_host()
    foreign = replace(host, gpus=tuple(replace(gpu, pids=frozenset({77_777})) for gpu in host.gpus))
    assert pools(foreign)[TRAINER] == ("kernel-launch", "critical")


def test_whoever_the_driver_does_not_list_only_watches():
    other = thread(8000, "exporter")
    host = training_host()
    with_other = Snapshot((*host.threads, other), {**host.devices, 8000: ("/dev/nvidia0",)}, host.gpus)
    assert pools(with_other)[8000] == ("accelerator-monitor", "critical")


def test_a_forked_loader_that_inherits_its_parents_files_loads_data():
    host = training_host()
    child = thread(4200, "python", ppid=TRAINER)
    gpus = tuple(replace(gpu, pids=frozenset()) for gpu in host.gpus)
    forked = Snapshot((*host.threads, child), {**host.devices, 4200: host.devices[TRAINER]}, gpus)
    assert pools(forked)[4200] == ("loading", "pipeline")


@pytest.mark.parametrize("file", ["/dev/davinci0", "/dev/kfd", "/dev/cambricon_dev0", "/dev/accel/accel0"])
def test_other_makers_accelerators_count_as_well(file):
    host = Snapshot((thread(10, "python"),), {10: (file,)})
    assert pools(host)[10] == ("kernel-launch", "critical")


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("pt_autograd_7", "kernel-launch"),
        ("acl_thread", "kernel-launch"),
        ("pt_nccl_heartbt", "comms-monitor"),
        ("pt_gloo_runloop", "comms-monitor"),
        ("hccl_watchdog_t", "comms-monitor"),
        ("dcgm-exporter", "accelerator-monitor"),
        ("npu-smi", "accelerator-monitor"),
        ("OpenBLAS-3", "openmp"),
        ("dali_worker", "transforms"),
        ("tf_data_iter", "loading"),
        ("QueueFeederThre", "loading"),
        ("orbax_save", "checkpoint"),
        ("ray::IDLE", "rpc"),
        ("pt_tcpstore_uv", "rpc"),
        ("haproxy", "routing"),
        ("late_loader", "loading"),
        ("my-ckpt-2", "checkpoint"),
        ("gloo_tcp_loop", "comms-monitor"),
        ("lifeguard", "rpc"),
    ],
)
def test_names_of_the_field_speak_for_their_pools(name, pool):
    assert pools(Snapshot((thread(10, name),)))[10] == (pool, POOLS[pool].layer)


@pytest.mark.parametrize(
    "name", ["bash", "sshd", "computer", "compose", "omphalos", "kworker", "systemd", "vim", "downloader"]
)
def test_names_that_only_look_alike_speak_for_none(name):
    assert pools(Snapshot((thread(10, name),)))[10] == (None, "rest")


def test_a_process_on_gpus_of_two_nodes_has_no_home_on_either():
    gpus = tuple(Gpu(n, f"0000:0{n}:00.0", f"/dev/nvidia{n}", n, (), frozenset({10})) for n in range(2))
    (one,) = classify(Snapshot((thread(10, "python"),), {}, gpus))
    assert (one.gpus, one.node) == ((0, 1), None)


def test_a_pool_of_a_thousand_sleepers_is_one_of_remote_calls():
    leader = thread(10, "server")
    many = tuple(of(leader, 100 + n, f"srv-{n}", run_s=0.01, num_runs=5) for n in range(1000))
    assert pools(Snapshot((leader, *many)))[500] == ("rpc", "support")


def test_a_label_beats_every_other_sign():
    host = training_host()
    labelled = tuple(replace(one, name="st-load") if one.tid == 4003 else one for one in host.threads)
    (found,) = (one for one in classify(replace(host, threads=labelled)) if one.thread.tid == 4003)
    assert (found.pool, found.confidence) == ("loading", 1.0)


def test_every_pool_has_a_layer_and_labels_of_its_own():
    assert len(POOLS) == 9
    assert {facts.layer for facts in POOLS.values()} | {"rest"} == set(LAYERS)
    labels = [label for facts in POOLS.values() for label in facts.labels]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize(
    ("name", "stem_"),
    [("pt_autograd_0", "pt_autograd"), ("wrk:worker_11", "wrk:worker"), ("42", "42"), ("a", "a")],
)
def test_threads_of_a_pool_share_a_stem(name, stem_):
    assert stem(name) == stem_


def test_threads_born_late_changed_and_gone_are_told():
    before = training_host()
    late = thread(6000, "pt_data_worker")
    named = tuple(
        replace(one, name="ckpt") if one.tid == 4033 else one for one in before.threads if one.tid != 5000
    )
    told = changes(classify(before), classify(replace(before, threads=(*named, late))))
    assert [(what, (after or was).thread.tid) for what, was, after in told] == [
        ("changed", 4033),
        ("born", 6000),
        ("gone", 5000),
    ]


def test_a_number_used_again_is_another_thread():
    one, other = thread(10, "a", start_ticks=1), thread(10, "a", start_ticks=2)
    told = changes(classify(Snapshot((one,))), classify(Snapshot((other,))))
    assert [what for what, _, _ in told] == ["born", "gone"]


NAMES = st.text(min_size=1, max_size=15)


@given(st.lists(st.tuples(NAMES, st.floats(0, 1e6), st.integers(0, 10**9)), max_size=5), st.booleans())
def test_anything_is_classified_and_is_as_sure_as_a_share(some, has_gpu):
    leader = thread(1, "python")
    threads = tuple(of(leader, 2 + n, name, run_s=s, num_runs=runs) for n, (name, s, runs) in enumerate(some))
    host = Snapshot((leader, *threads), {1: ("/dev/nvidia0",)} if has_gpu else {})
    for one in classify(host):
        assert 0.0 <= one.confidence <= 1.0
        assert one.evidence
        assert (one.pool is None) == (one.confidence == 0.0)
        assert one.layer == (POOLS[one.pool].layer if one.pool else one.layer)


def test_proc_is_read_as_it_is_written(tmp_path):
    host = training_host()
    write_proc(tmp_path, host)
    seen = observe(tmp_path, gpus=host.gpus)
    assert pools(seen) == pools(host)
    assert seen.devices == host.devices
    assert {one.tid: one.run_s for one in seen.threads} == {one.tid: one.run_s for one in host.threads}
    assert seen.threads[0].cpus == tuple(range(16))


@pytest.mark.parametrize("name", ["a b", "==> (x) S 1", ") R 1 (", "memfd:sealed-9\udc91", "日本"])
def test_odd_names_do_not_shift_the_fields(tmp_path, name):
    write_proc(tmp_path, Snapshot((thread(10, name, start_ticks=4200, nice=-5),)))
    (seen,) = observe(tmp_path).threads
    assert (seen.start_ticks, seen.nice, seen.pid) == (4200, -5, 10)
    assert seen.name == name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def test_threads_that_end_while_they_are_read_are_left_out(tmp_path):
    write_proc(tmp_path, training_host())
    (tmp_path / "proc/4000/task/4001/stat").unlink()
    (tmp_path / "proc/700/status").unlink()
    seen = {one.tid for one in observe(tmp_path).threads}
    assert {4000, 4002} <= seen
    assert not {4001, 700, 701} & seen


def test_a_kernel_that_counts_no_times_still_shows_names(tmp_path):
    write_proc(tmp_path, Snapshot((thread(10, "pt_data_worker", run_s=None, wait_s=None),)))
    (one,) = classify(observe(tmp_path))
    assert (one.pool, one.thread.run_length_s) == ("loading", None)


def test_a_kernel_without_schedstat_still_says_who_is_busy(tmp_path):
    write_proc(tmp_path, Snapshot((thread(10, "loop", run_s=None, wait_s=None, start_ticks=0),)))
    stat = tmp_path / "proc/10/task/10/stat"
    fields = stat.read_text().split()
    fields[13:15] = "70000", "20000"  # utime and stime, of the 1000 s it has lived
    stat.write_text(" ".join(fields))
    (seen,) = observe(tmp_path).threads
    assert (seen.busy, seen.wait_s) == (0.9, None)


def test_files_of_others_are_counted_as_hidden(tmp_path, monkeypatch):
    write_proc(tmp_path, training_host())
    real = os.readlink

    def refuse(path):
        if "/4000/" in str(path):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "readlink", refuse)
    assert observe(tmp_path).num_hidden == 1


def test_a_labelled_thread_of_this_very_process_is_found():
    done, labelled = threading.Event(), threading.Event()
    answers = []

    def train():
        answers.append(strata.host.label("train"))
        labelled.set()
        done.wait()

    worker = threading.Thread(target=train)
    worker.start()
    try:
        assert labelled.wait(120)
        seen = observe(gpus=())
    finally:
        done.set()
        worker.join()
    (found,) = (one for one in classify(seen) if one.thread.tid == answers[0].tid)
    assert (answers[0].name, found.thread.name) == ("st-train", "st-train")
    assert (found.pool, found.layer, found.confidence) == ("kernel-launch", "critical", 1.0)
    assert (found.thread.pid, found.thread.user) == (os.getpid(), os.geteuid())


@pytest.mark.parametrize("what", ["", "a" * 13, "Train", "a b", "é", "-a"])
def test_a_label_that_no_name_can_hold_is_refused(what):
    with pytest.raises(UsageError, match="label"):
        strata.host.label(what)


def test_a_nice_value_that_is_none_is_refused():
    with pytest.raises(UsageError, match="from -20 to 19"):
        strata.host.label("train", nice=20)


def run(monkeypatch, snapshots, *arguments):
    left = iter(snapshots)

    def look(pid):
        snapshot = next(left, None)
        if snapshot is None:
            raise KeyboardInterrupt
        wanted = snapshot.tree(pid) if pid is not None else snapshot.processes
        return snapshot, tuple(one for one in classify(snapshot) if one.thread.pid in wanted)

    monkeypatch.setattr(host_threads, "_look", look)
    monkeypatch.setattr(host_threads, "WATCH_S", 0.0)
    return CliRunner().invoke(cli, ["host", "threads", *arguments])


def test_the_command_answers_in_json(monkeypatch):
    data = json.loads(run(monkeypatch, [training_host()], "-o", "json", "--pid", str(TRAINER)).stdout)
    assert list(data) == ["threads", "pools", "layers", "gpus", "processes_hidden"]
    assert data["pools"]["openmp"] == 8
    assert {one["pid"] for one in data["threads"]} == {TRAINER, LOADER}
    assert data["gpus"][0]["numa_node"] == 0


def test_the_command_shows_threads_that_are_alike_in_one_line(monkeypatch):
    shown = run(monkeypatch, [training_host()]).stdout
    assert "openmp" in shown
    assert "1 of 27 threads belong to no pool and no job on an accelerator." in shown
    assert "GPU 1 0000:af:00.0: NUMA node 1, no processes" in shown


def test_a_process_of_this_machine_is_a_job_when_it_is_asked_for():
    result = CliRunner().invoke(cli, ["host", "threads", "--pid", str(os.getpid()), "-o", "json"])
    leader = next(one for one in json.loads(result.stdout)["threads"] if one["tid"] == os.getpid())
    assert (leader["pool"], leader["layer"]) == ("kernel-launch", "critical")


def test_watch_tells_all_threads_and_then_what_changes(monkeypatch):
    before = training_host()
    after = replace(before, threads=(*before.threads, thread(6000, "pt_data_worker")))
    lines = run(monkeypatch, [before, after], "--watch", "-o", "json").stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert len(told) == len(before.threads) + 1
    assert (told[-1]["change"], told[-1]["thread"]["pool"]) == ("born", "loading")


def test_a_process_that_is_not_there_is_a_usage_error(monkeypatch):
    result = run(monkeypatch, [training_host()], "--pid", "123456")
    assert result.exception.exit_code == 2


def test_a_row_says_how_sure_it_is_and_why_within_80_columns(monkeypatch):
    monkeypatch.setattr("strata.host.threads.observe.observe", training_host)
    shown = CliRunner().invoke(cli, ["host", "threads"], env={"COLUMNS": "80"}).stdout
    assert "accelerator-monitor" in shown
    assert "95%: its name " in shown


CRAFTED = "\x1b]0;pwned\x07\x9b2J\u202e"


def test_names_that_hold_escape_sequences_do_nothing_to_a_terminal(monkeypatch):
    host = training_host()
    host = replace(host, threads=(*host.threads, of(host.threads[0], 4900, f"pt_nccl{CRAFTED}")))
    monkeypatch.setattr(strata.host.threads.observe, "observe", lambda: host)
    for arguments in (["threads"], ["threads", "-o", "json"], ["threads", "-o", "yaml"], ["layers", "--plain"]):
        shown = CliRunner().invoke(cli, ["host", *arguments], env={"COLUMNS": "300"}).stdout
        assert "pwned" in shown
        assert not {one for one in shown if unicodedata.category(one) == "Cc"} - {"\n"}


def test_all_that_tables_show_is_printable(capsys):
    show([CRAFTED, Line(CRAFTED), Line(CRAFTED, indent=" "), rows(("a", "b"), [(CRAFTED, "x")])])
    assert not {one for one in capsys.readouterr().out if not one.isprintable()} - {"\n"}
