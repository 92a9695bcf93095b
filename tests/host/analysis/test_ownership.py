"""Whose threads they are: the job that was recorded, and culprits told apart although all are `python`."""

from __future__ import annotations

import json

import pytest

from strata.host.analysis.culprit import Culprit
from strata.host.analysis.findings import crowds
from strata.host.analysis.report import findings_of, report_of, verdict
from strata.host.analysis.view import TraceView
from strata.host.record import snapshot
from strata.host.record.census import CensusTaker, census_of
from strata.host.threads.processes import Census, Process, is_contained, job_of
from tests.cli.test_host_report import report
from tests.host.builders import training_host, write_proc
from tests.host.traces import IDLE, Text

JOB, LOOP, OTHER = ("python", 100), ("python", 200), ("python", 300)
FOREIGN = ("gloo_tcp_loop", 900)
POD = (
    "/kubepods.slice/kubepods-pod3f1c2b4a_0d7e_4c8a_9a51_1f0e6a2b7c3d.slice/cri-containerd-" + "ab" * 32 + ".scope"
)
CENSUS = Census(
    {
        100: Process(100, 50, "python", "python train.py", "/job", 1000),
        200: Process(200, 1, "python", "python loop.py --forever", POD, 1001),
        300: Process(300, 1, "python", "python other.py", "/b", 1002),
        900: Process(900, 1, "gloo", "gloo", "/tenant", 7),
    },
    {100: 100, 200: 200, 300: 300, 901: 900, 900: 900},
    dict.fromkeys((100, 200, 300, 900, 901), 0),
)


def beside_loops() -> Text:
    """A trainer `python` that waits 6 ms a round: 4 behind one loop, 2 behind another; and somebody's gloo."""
    text, on = Text(), IDLE
    for step in range(50):
        now = 10.0 * step
        text.wake(now + 1, 0, JOB, by=LOOP)
        text.switch(now + 1, 0, on, LOOP, "S" if on == IDLE else "R")
        text.switch(now + 5, 0, LOOP, OTHER, "R").switch(now + 7, 0, OTHER, JOB, "R").switch(now + 9, 0, JOB, LOOP)
        text.wake(now + 9.5, 1, FOREIGN, by=IDLE).switch(now + 9.9, 1, IDLE, FOREIGN).switch(
            now + 9.95, 1, FOREIGN, IDLE
        )
        on = LOOP
    return text


def seen(folder, **more) -> TraceView:
    return TraceView(beside_loops().trace(folder), census=CENSUS, **more)


def test_the_job_that_was_recorded_is_critical_and_not_what_others_are_called(tmp_path):
    # `gloo_tcp_loop` of another tenant took the report, the trainer was nowhere.
    view = seen(tmp_path, job=100)
    assert [int(view.tasks.tid[task]) for task in view.critical_tasks] == [100]
    assert not view.is_guessed
    assert [int(view.tasks.tid[task]) for task in seen(tmp_path).critical_tasks] == [900]


def test_culprits_of_one_name_are_told_apart_by_their_process(tmp_path):
    view = seen(tmp_path, job=100)
    held = view.culprits_of(view.critical_tasks[0])
    assert {(name.pid, round(ms)) for name, ms in held.items()} == {(200, 200), (300, 100)}
    finding = next(one for one in findings_of(view) if one.token == "cpu-wait")
    assert finding.culprit == Culprit("python", 200)
    data = finding.to_dict()
    assert data["culprit"] == "python"
    process = data["culprit_process"]
    assert (process["pid"], process["command"], process["cgroup"]) == (200, "python loop.py --forever", POD)
    assert process["job"] == "pod 3f1c2b4a-0d7e-4c8a-9a51-1f0e6a2b7c3d"
    assert "67%" in verdict(report_of(view))
    assert "process 200 of user 1001: python loop.py --forever, in pod 3f1c2b4a" in verdict(report_of(view))


def test_shares_by_process_still_sum_to_the_waits(tmp_path):
    for thread in report_of(seen(tmp_path, job=100)).to_dict()["threads"]:
        assert sum(one["ms"] for one in thread["culprits"]) == pytest.approx(thread["wait_ms_total"])
        for one in thread["culprits"]:
            assert sum(of["ms"] for of in one.get("processes", [])) <= one["ms"] + 1e-6


def test_unrelated_processes_of_one_name_are_no_pool(tmp_path):
    text = Text()
    loops = [("python", 200 + n) for n in range(4)]
    for step in range(50):
        now = 10.0 * step
        for loop in loops:
            text.wake(now, 0, loop)
        text.wake(now, 0, ("trainer_main", 11))
        before = IDLE
        for n, loop in enumerate([*loops, ("trainer_main", 11)]):
            text.switch(now + 2 * n, 0, before, loop, "S")
            before = loop
        text.switch(now + 9.9, 0, before, IDLE)
    trace = text.trace(tmp_path)
    assert [one.token for one in crowds.oversubscribed(TraceView(trace))] == ["oversubscription"]
    tids = [tid for _, tid in loops]
    apart = Census({}, {tid: tid for tid in tids}, dict.fromkeys(tids, 0))
    assert list(crowds.oversubscribed(TraceView(trace, census=apart))) == []
    together = Census(
        {}, dict.fromkeys((tid for _, tid in loops), 200), dict.fromkeys((tid for _, tid in loops), 0)
    )
    assert [one.culprit for one in crowds.oversubscribed(TraceView(trace, census=together))] == [
        Culprit("python", 200)
    ]


def test_what_the_job_starts_while_it_is_recorded_belongs_to_it(tmp_path):
    shell, trainer = ("sh", 100), ("python", 101)
    text = Text().switch(0, 0, IDLE, shell).fork(0.1, 0, shell, trainer).switch(0.2, 0, shell, ("hog", 7))
    text.wake(0.2, 0, trainer)
    for step in range(30):
        text.switch(10 * step + 5, 0, ("hog", 7), trainer, "R").switch(10 * step + 10, 0, trainer, ("hog", 7), "R")
    view = TraceView(text.trace(tmp_path), census=CENSUS, job=100)
    assert [int(view.tasks.tid[task]) for task in view.critical_tasks] == [101]


def test_a_number_that_was_used_again_is_another_process(tmp_path):
    text = Text().switch(0, 0, IDLE, LOOP).exit(1, 0, LOOP).switch(1, 0, LOOP, ("sh", 5), "X")
    text.fork(2, 0, ("sh", 5), ("cc1", 200)).switch(3, 0, ("sh", 5), ("cc1", 200)).switch(9, 0, ("cc1", 200), IDLE)
    early = Census(CENSUS.processes, {200: 200}, {200: 500_000})
    view = TraceView(text.trace(tmp_path), census=early)
    assert [str(view.culprit(task)) for task in range(len(view.tasks)) if view.tasks.tid[task] == 200] == [
        "python (200)",
        "cc1",
    ]


def written(folder, *, pid=100):
    trace = folder / "trace.txt"
    trace.write_bytes(beside_loops().raw())
    looks = [
        {
            "taken_ns": 0,
            "processes": [one.to_dict() for one in CENSUS.processes.values()],
            "threads": {str(tid): pid for tid, pid in CENSUS.pids.items()},
        }
    ]
    data = {**snapshot.take(folder, pid=None), "cpus": [], "critical": [900], "pid": pid, "census": looks}
    snapshot.beside(trace).write_text(json.dumps(data))
    return trace


def test_the_command_reports_the_recorded_job_or_the_one_that_is_named(tmp_path):
    trace = written(tmp_path)
    told = report(trace, "--fail-on", "warning")
    assert told.exit_code == 4 or told.exception is not None
    assert "python (100) was runnable but not running" in told.stdout
    assert "python loop.py" in told.stdout.replace("\n", " ")
    for option, value, tid in (("--pid", 300, 300), ("--tid", 200, 200)):
        threads = json.loads(report(trace, option, value, "-o", "json").stdout)["threads"]
        assert [one["tid"] for one in threads if one["is_critical"]] == [tid]
    assert "no thread of process 77" in str(report(trace, "--pid", "77").exception)


def test_an_answer_has_no_more_threads_than_asked_for(tmp_path):
    text = Text()
    for n in range(300):
        text.wake(n, 0, (f"t{n}", 1000 + n)).switch(n + 0.5, 0, IDLE, (f"t{n}", 1000 + n))
        text.switch(n + 0.9, 0, (f"t{n}", 1000 + n), IDLE)
    trace = tmp_path / "trace.txt"
    trace.write_bytes(text.raw())
    data = json.loads(report(trace, "--top", "10", "-o", "json").stdout)
    assert (len(data["threads"]), data["num_threads"]) == (10, 300)
    assert len(json.loads(report(trace, "--top", "0", "-o", "json").stdout)["threads"]) == 300


def test_a_census_reads_processes_and_comes_back(tmp_path):
    write_proc(tmp_path, training_host())
    (tmp_path / "proc/4000/cmdline").write_bytes(b"python\0train.py\0" + b"x" * 500)
    taker = CensusTaker(tmp_path)
    taker.look()
    taker.look()
    assert taker.looks[1]["processes"] == []
    census = census_of(json.loads(json.dumps(taker.looks)))
    assert census.pids[4001] == 4000
    assert census.processes[4000].command.startswith("python train.py xxx")
    assert len(census.processes[4000].command) == 200
    assert census.tree(4000) == {4000, 4100}


@pytest.mark.parametrize(
    ("cgroup", "job"),
    [
        (POD, "pod 3f1c2b4a-0d7e-4c8a-9a51-1f0e6a2b7c3d"),
        ("/docker/" + "12" * 32, "container 121212121212"),
        ("/system.slice/slurmstepd.scope/job_77/step_0/user/task_0", "Slurm job 77"),
        ("/system.slice/ssh.service", "/system.slice/ssh.service"),
        ("/", ""),
    ],
)
def test_a_cgroup_stands_for_a_job(cgroup, job):
    assert job_of(cgroup) == job
    assert is_contained(cgroup) == (not job.startswith("/") and bool(job))
