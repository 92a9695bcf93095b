"""The agent: what is added up by job, rank and pool, what is bounded, and when a trace is worth it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import replace

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.evaluation.noisy_neighbours.agent_day import live_a_day
from strata.host.agent import agent as agents
from strata.host.agent import watch as watching
from strata.host.agent.agent import HostAgent, first_process, forget, recorder
from strata.host.agent.jobs import identity_of, step_of
from strata.host.agent.metrics import HostAgentMetrics
from strata.host.agent.pmu import CacheMisses
from strata.host.agent.readings import read_machine, throttled_s
from strata.host.agent.trigger import Trigger, TriggerRules
from strata.host.agent.watch import OTHERS, ThreadWatch, Times
from strata.host.record import tracefs
from strata.net.metrics import render
from tests import ROOT
from tests.host.builders import training_host, write_proc

JOB = b"STRATA_JOB=ads-7\0RANK=3\0STRATA_PROGRESS=/progress.jsonl\0"


@pytest.fixture
def box(tmp_path):
    host = training_host()
    write_proc(
        tmp_path, replace(host, threads=tuple(replace(each, wait_s=1.0, run_s=2.0) for each in host.threads))
    )
    for folder in (tmp_path / "proc").glob("[0-9]*"):
        (folder / "statm").write_text("100 10 1 1 0 10 0\n")
        for task in folder.glob("task/*"):
            name = (task / "status").read_text().partition("\n")[0].removeprefix("Name:\t")
            (task / "comm").write_text(f"{name}\n")
    for pid in (4000, 4100):
        (tmp_path / f"proc/{pid}/environ").write_bytes(JOB)
        (tmp_path / f"proc/{pid}/root").mkdir()
    (tmp_path / "proc/9").mkdir()
    (tmp_path / "proc/9/statm").write_text("0 0 0 0 0 0 0\n")
    return tmp_path


def goes_on(box, tid, *, run_s, wait_s, pid=4000):
    (box / f"proc/{pid}/task/{tid}/schedstat").write_text(f"{run_s * 1e9:.0f} {wait_s * 1e9:.0f} 9\n")


def test_what_happens_between_looks_is_added_up_by_job_rank_and_pool(box):
    watch = ThreadWatch(box)
    watch.look()
    goes_on(box, 4001, run_s=2.5, wait_s=4.0)
    goes_on(box, 4101, run_s=2.1, wait_s=1.2, pid=4100)
    watch.look()
    launch = watch.times["ads-7", "3", "kernel-launch"]
    assert (launch.ran_s, launch.waited_s) == pytest.approx((0.5, 3.0))
    assert watch.times["ads-7", "3", "transforms"].waited_s == pytest.approx(0.2)
    assert watch.times["", "", "routing"].waited_s == 0.0
    assert watch.num_threads == len(training_host().threads)


def test_the_thread_that_its_rank_waits_for_most_is_named(box):
    watch = ThreadWatch(box)
    watch.look()
    goes_on(box, 4001, run_s=2.5, wait_s=2.0)
    goes_on(box, 4101, run_s=2.1, wait_s=9.0, pid=4100)  # decodes: its rank has samples in store
    watch.look()
    ((labels, share),) = watch.longest_waits(seconds=2.0).items()
    assert labels == ("ads-7", "3", "4001", "pt_autograd_0")
    assert share == pytest.approx(0.2 * 1.0 / 2.0)
    watch.look()
    assert watch.longest_waits(seconds=2.0) == {labels: pytest.approx(0.8 * share)}


def test_the_first_thread_of_a_process_on_an_accelerator_launches(box):
    watch = ThreadWatch(box)
    for _ in range(3):
        watch.look()
    before = watch.times["ads-7", "3", "kernel-launch"].waited_s
    goes_on(box, 4000, run_s=2.0, wait_s=6.0)
    watch.look()
    assert watch.times["ads-7", "3", "kernel-launch"].waited_s - before == pytest.approx(5.0)
    assert first_process(watch.processes, "ads-7") == 4000


def test_a_thread_that_ended_and_a_number_that_is_used_again_take_nothing_back(box):
    watch = ThreadWatch(box)
    watch.look()
    goes_on(box, 4001, run_s=0.1, wait_s=0.3)
    watch.look()
    launch = watch.times["ads-7", "3", "kernel-launch"]
    assert (launch.ran_s, launch.waited_s) == pytest.approx((0.1, 0.3))
    (box / "proc/4000/task/4001/schedstat").unlink()
    watch.look()
    goes_on(box, 4001, run_s=0.2, wait_s=0.3)
    watch.look()
    assert launch.ran_s == pytest.approx(0.2)


def test_threads_and_series_are_bounded(box, monkeypatch):
    monkeypatch.setattr(watching, "MOST_THREADS", 10)
    monkeypatch.setattr(watching, "MOST_SERIES", 1)
    watch = ThreadWatch(box)
    watch.look()
    watch.look()
    assert watch.num_threads == 10
    assert watch.num_unwatched == len(training_host().threads) - 10
    assert len(watch.times) == 2
    assert (OTHERS, "", "") in watch.times
    monkeypatch.setattr(watching, "MOST_THREADS", 1000)
    watch.look()
    assert sum(each.waited_s for each in watch.times.values()) == 0  # what was not watched is no news


def test_a_host_without_schedstat_is_said_to_have_none(box):
    for file in (box / "proc").glob("*/task/*/schedstat"):
        file.unlink()
    watch = ThreadWatch(box)
    metrics = HostAgentMetrics(watch)
    HostAgent(watch, metrics, CacheMisses([]), root=box).tick(now_s=0.0)
    page = render(metrics.registry)
    assert "strata_host_has_schedstat 0.0" in page
    assert "strata_host_run_queue_delay_seconds_total{" not in page
    assert 'strata_host_threads{job_name="ads-7",pool="kernel-launch",rank="3"}' in page


def test_steps_are_read_from_where_the_program_reports_them(box):
    (box / "proc/4000/root/progress.jsonl").write_text(
        '{"step": 40}\n{"step": 41, "loss": 1}\n{"checkpoint": "x"}\n{"st'
    )
    watch = ThreadWatch(box)
    watch.look()
    assert watch.steps() == {("ads-7", "3"): 41}


def test_each_look_says_when_it_was_and_reads_the_steps_of_that_moment(box):
    watch = ThreadWatch(box)
    metrics = HostAgentMetrics(watch)
    agent = HostAgent(watch, metrics, CacheMisses([]), root=box)
    for now_s, step in ((3.0, 40), (5.0, 41)):
        (box / "proc/4000/root/progress.jsonl").write_text(f'{{"step": {step}}}\n')
        agent.tick(now_s=now_s)
        page = render(metrics.registry)
        assert f"strata_host_looked_seconds {now_s}\n" in page
        assert f'strata_host_step{{job_name="ads-7",rank="3"}} {step}.0\n' in page


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "missing"])
def test_a_progress_file_that_is_none_is_not_read(tmp_path, kind):
    path = tmp_path / "root/progress"
    path.parent.mkdir()
    (tmp_path / "secret").write_text('{"step": 1}\n')
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "secret")
    elif kind == "folder":
        path.mkdir()
    assert step_of(tmp_path, "/progress") is None
    assert step_of(tmp_path, "progress") is None


POD = "/kubepods/pod3f1c2b4a-0d7e-4c8a-9a51-1f0e6a2b7c3d/abc"


@pytest.mark.parametrize(
    ("told", "cgroup", "job", "rank"),
    [
        ({"STRATA_JOB": "a", "RANK": "1", "SLURM_JOB_ID": "7"}, POD, "a", "1"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "2"}, "/", "7", "2"),
        ({"RANK": "x"}, POD, "pod 3f1c2b4a-0d7e-4c8a-9a51-1f0e6a2b7c3d", ""),
        ({"RANK": "1"}, "/user.slice", "", ""),
        ({"STRATA_JOB": "\x1b[2J" + "a" * 99}, "/", "?[2J" + "a" * 60, ""),
    ],
)
def test_a_process_is_of_the_job_that_it_was_told_or_of_its_pod(told, cgroup, job, rank):
    identity = identity_of(told, cgroup)
    assert (identity.job, identity.rank) == (job, rank)


def test_the_machines_own_counters_are_read_where_there_are_any(tmp_path):
    assert read_machine(tmp_path).pressure_s == {}
    files = {
        "proc/stat": "cpu  1 2 3 4 5 600 700 800 0 0\n",
        "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n",
        "sys/devices/system/node/node1/numastat": "numa_hit 5\nnuma_miss 7\nother_node 8\n",
        "sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes": "4096\n",
        "sys/kernel/sched_ext/state": "enabled\n",
        "sys/kernel/sched_ext/root/ops": "layered\n",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 5\nthrottled_usec 1500000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    reading = read_machine(tmp_path)
    assert reading.pressure_s == {("cpu", "some"): 2.5}
    hz = os.sysconf("SC_CLK_TCK")
    assert reading.seconds == {("irq",): 600 / hz, ("softirq",): 700 / hz, ("steal",): 800 / hz}
    assert reading.numa_pages == {("1", "numa_miss"): 7, ("1", "other_node"): 8}
    assert reading.memory_bytes == {("mon_L3_00", "total"): 4096}
    assert reading.scheduler == "layered"
    assert throttled_s(["/job", "/none"], tmp_path) == {"/job": 1.5}


def looks(*shares, job="a", pool="kernel-launch", pause_s=600.0):
    """Return when each look asked for a trace, of a job that waited so much of what it wanted."""
    trigger, ran, waited, asked = Trigger(TriggerRules(pause_s=pause_s)), 0.0, 0.0, []
    for number, share in enumerate((0.0, *shares)):
        ran, waited = ran + 2 * (1 - share), waited + 2 * share
        times = {(job, "0", pool): Times(ran, waited, 1), ("a", "0", "loading"): Times(0.0, 9.0 * number, 1)}
        if trigger.ask(times, now_s=2.0 * number):
            asked.append(number)
    return asked


def test_a_trace_is_asked_for_after_three_looks_in_a_row_and_then_not_again_for_a_while():
    assert looks(0.1, 0.2, 0.2, 0.1) == []
    assert looks(0.5, 0.5, 0.1, 0.5, 0.5) == []
    assert looks(*[0.5] * 9) == [3]
    assert looks(*[0.5] * 9, pause_s=4.0) == [3, 6, 9]


def test_what_is_of_no_job_asks_for_no_trace():
    assert Trigger().ask({("", "", "kernel-launch"): Times(1.0, 9.0, 1)}, now_s=0.0) is None
    trigger = Trigger(TriggerRules(looks=1))
    trigger.ask({("", "", "none"): Times(0, 0, 1)}, now_s=0.0)
    assert trigger.ask({("", "", "none"): Times(0, 9, 1)}, now_s=2.0) is None


def test_a_triggered_trace_is_of_the_job_that_waited(box):
    asked = []
    watch = ThreadWatch(box)
    agent = HostAgent(
        watch,
        metrics := HostAgentMetrics(watch),
        CacheMisses([]),
        trigger=Trigger(TriggerRules(looks=1)),
        record=lambda job, pid: asked.append((job, pid)) is None,
        root=box,
    )
    agent.tick(now_s=0.0)
    goes_on(box, 4001, run_s=2.1, wait_s=9.0)
    agent.tick(now_s=2.0)
    assert asked == [("ads-7", 4000)]
    assert 'strata_host_reports_total{result="filed"} 1.0' in render(metrics.registry)


def test_a_page_that_is_asked_for_while_threads_are_looked_at_shows_a_whole_look(box, monkeypatch):
    watch, pages = ThreadWatch(box), []
    metrics = HostAgentMetrics(watch)
    agent = HostAgent(watch, metrics, CacheMisses([]), root=box)
    agent.tick(now_s=0.0)
    reader = threading.Thread(target=lambda: pages.append(render(metrics.registry)))

    def steps():
        reader.start()
        reader.join(0.2)
        return {("ads-7", "3"): 7}

    monkeypatch.setattr(watch, "steps", steps)
    agent.tick(now_s=2.0)
    reader.join()
    assert 'strata_host_step{job_name="ads-7",rank="3"} 7.0' in pages[0]
    assert "strata_host_looked_seconds 2.0" in pages[0]


def test_a_recording_that_hangs_is_a_failed_one_and_the_agent_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "RECORD_S", 0)  # times 12: until when it may last
    assert recorder(tmp_path)("ads-7", 0) is False
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_a_failed_one_and_the_agent_goes_on(tmp_path, capsys):
    """A full disk, or a folder that went, ended the agent at the moment that a job waited."""
    record = recorder(tmp_path / "reports")
    (tmp_path / "reports").rmdir()
    (tmp_path / "reports").touch()
    assert record("ads-7", 0) is False
    assert "no report of ads-7: " in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="others are refused before")
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tracefs, "find", lambda: tmp_path)
    (tmp_path / "file").touch()
    asked = ["host", "agent", "--port", "0", "--seconds", "0.1", "--reports", str(tmp_path / "file" / "reports")]
    refused = CliRunner().invoke(cli, asked).exception
    assert (refused.exit_code, "cannot be written to: Not a directory" in str(refused)) == (2, True)


def test_old_reports_are_forgotten_with_their_traces(tmp_path):
    for day in range(5):
        for end in ("txt.gz", "txt.gz.host.json", "json"):
            (tmp_path / f"2026110{day}T000000-7.{end}").touch()
    forget(tmp_path, kept=2)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 6
    assert all(name.startswith(("20261103", "20261104")) for name in left)


def test_the_command_looks_and_ends(tmp_path):
    ran = CliRunner().invoke(cli, ["host", "agent", "--port", "0", "--seconds", "0.3", "--interval", "0.1"])
    assert ran.exit_code == 0, ran.output
    assert "/metrics" in ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="others are refused before")
def test_an_agent_that_could_not_record_says_so_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tracefs, "PLACES", ("nowhere",))
    asked = ["host", "agent", "--port", "0", "--seconds", "0.1", "--reports", str(tmp_path)]
    refused = CliRunner().invoke(cli, asked).exception
    assert (refused.exit_code, "kept out of this container" in str(refused)) == (5, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="others are refused before")
def test_an_agent_on_a_kernel_that_counts_no_waits_says_that_it_files_no_report(tmp_path, monkeypatch):
    monkeypatch.setattr(tracefs, "find", lambda: tmp_path)
    monkeypatch.setattr(watching, "_schedstat", lambda folder: (-1, 0))
    asked = ["host", "agent", "--port", "0", "--seconds", "0.1", "--reports", str(tmp_path)]
    ran = CliRunner().invoke(cli, asked)
    assert (ran.exit_code, "no report will be filed" in ran.stderr) == (0, True)


def metric_names():
    watch = ThreadWatch()
    text = render(HostAgentMetrics(watch).registry)
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def test_alerts_and_the_page_ask_only_for_what_the_agent_tells():
    import re

    folder = ROOT / "deploy/components/host-agent"
    for name in ("alerts.yaml", "dashboard.json"):
        asked = set(re.findall(r"strata_host_[a-z_]+", (folder / name).read_text()))
        assert asked
        assert asked <= metric_names() | {"strata_host_agent"}


def test_the_daemon_set_has_the_rights_it_needs_and_no_more():
    import yaml

    folder = ROOT / "deploy/components/host-agent"
    documents = [each for each in yaml.safe_load_all((folder / "agent.yaml").read_text()) if each]
    (agent,) = (each for each in documents if each["kind"] == "DaemonSet")
    spec = agent["spec"]["template"]["spec"]
    assert spec["hostPID"] is True
    assert spec["automountServiceAccountToken"] is False
    assert "hostNetwork" not in spec
    (container,) = spec["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH", "SYS_PTRACE"]}
    assert rights["readOnlyRootFilesystem"] is True
    assert not rights.get("privileged")
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    help_text = CliRunner().invoke(cli, ["host", "agent", "--help"]).output
    assert {word for word in container["args"] if word.startswith("--")} <= set(help_text.split())
    page = json.loads((folder / "dashboard.json").read_text())
    assert page["panels"]


@pytest.mark.long("an hour of looks at threads that come and go")
def test_a_day_of_jobs_that_come_and_go_takes_no_more_memory_and_the_last_has_its_name(monkeypatch):
    monkeypatch.setattr(watching, "MOST_SERIES", 80)
    monkeypatch.setattr(watching, "ENDED", 5)
    day = live_a_day(minutes=60)
    assert day.is_last_named
    assert day.series <= 81
    # 45 jobs with 360 threads came and went in between: what kept 20 bytes of each would show.
    assert day.end_bytes < day.quarter_bytes + 20 * 360


def test_a_job_that_ended_makes_room_for_a_new_one_and_others_do_not(box, monkeypatch):
    monkeypatch.setattr(watching, "ENDED", 2)
    watch = ThreadWatch(box)
    watch.look()
    monkeypatch.setattr(watching, "MOST_SERIES", len(watch.times))
    shutil.rmtree(box / "proc/4100")
    (box / "proc/4000/environ").write_bytes(b"STRATA_JOB=ads-8\0")
    for _ in range(watching.AGAIN):
        watch.look()
    assert ("ads-7", "3", "transforms") not in watch.times
    assert ("ads-8", "", "kernel-launch") in watch.times
    assert len(watch.times) <= watching.MOST_SERIES + 1


def test_processes_beyond_the_most_threads_are_counted_and_not_kept(box, monkeypatch):
    monkeypatch.setattr(watching, "MOST_THREADS", 1)
    watch = ThreadWatch(box)
    watch.look()
    assert watch.num_threads == 1
    assert len(watch.processes) == 1
    assert watch.num_unwatched == len(training_host().threads) - 1


def test_a_path_that_no_kernel_opens_is_not_kept():
    assert identity_of({"STRATA_JOB": "a", "STRATA_PROGRESS": "/" * 100_000}, "").progress == ""
