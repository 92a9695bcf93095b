"""PyTorch's profiler beside the scheduler: how much of the accelerator's idle time is a wait for a CPU."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.errors import UsageError
from strata.host.analysis.accelerator import activity_of
from strata.host.analysis.findings import gpu_idle
from strata.host.analysis.kineto import kineto_trace
from strata.host.analysis.view import TraceView
from tests.host.traces import IDLE, Text

T, HOG = ("python3", 11), ("hog", 12)


def scheduler() -> Text:
    """The launching thread runs 2 ms, waits 4 ms for a hog and sleeps 4 ms, ten times; it launches as it runs."""
    text = Text()
    for step in range(10):
        now = 10.0 * step
        text.switch(now, 0, IDLE if step == 0 else HOG, T, "R").switch(now + 2, 0, T, HOG)
        text.wake(now + 6, 0, T, by=HOG)
    return text.switch(100, 0, HOG, T, "R").switch(101, 0, T, IDLE)


def profile(folder: Path, *, base_ns: int = 0, tid: Any = 11, pid: int = 7, **more: Any) -> Path:
    events = [{"ph": "M", "name": "process_name", "pid": 7}]
    for step in range(10):
        at = 10_000.0 * step
        events += [
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at,
                "dur": 1,
                "pid": pid,
                "tid": tid,
            },
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at, "dur": 2000, "pid": 0, "tid": 7},
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 10_000},
        ]
    file = folder / "kineto.json"
    file.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": base_ns, **more}))
    return file


def read_kineto(paths, trace, *, offset_ns=0):
    return activity_of([kineto_trace(path, offset_ns=offset_ns) for path in paths], trace)


def view(folder: Path, kineto: Path) -> TraceView:
    trace = scheduler().trace(folder)
    return TraceView(trace, accelerator=read_kineto([kineto], trace))


def test_idle_time_of_the_accelerator_is_split_by_what_its_launcher_did(tmp_path):
    found = gpu_idle.idleness(view(tmp_path, profile(tmp_path)))
    assert found is not None
    assert (found.num_steps, found.step_ms) == (10, 10)
    assert found.to_dict() == pytest.approx(
        {
            "wall_ms": 92,
            "idle_ms": 72,
            "launcher_waited_ms": 36,
            "launcher_ran_ms": 0,
            "launcher_slept_ms": 36,
            "steps": 10,
            "step_ms_mean": 10,
            "launches_while_running": 1,
        }
    )


def test_kernels_that_end_before_the_next_is_launched_are_a_remark_about_the_host(tmp_path):
    # The thread runs all the time, and is 8 of 10 ms busy between two kernels of 2 ms.
    trace = Text().switch(0, 0, IDLE, T).switch(101, 0, T, IDLE).trace(tmp_path)
    of = TraceView(trace, accelerator=read_kineto([profile(tmp_path)], trace))
    (finding,) = gpu_idle.find(of)
    assert (finding.token, str(finding.severity), finding.culprit) == ("gpu-idle-launching", "info", "")
    assert "100% of the accelerator's idle time its launching thread ran" in str(finding.reason)
    assert finding.cost_ms == pytest.approx(72)


def test_who_launches_is_critical_whatever_its_name_and_the_steps_it_cost_are_told(tmp_path):
    of = view(tmp_path, profile(tmp_path))
    assert [of.name(task) for task in of.critical_tasks] == ["python3"]
    (finding,) = gpu_idle.find(of)
    assert (finding.token, finding.culprit) == ("gpu-idle-cpu-wait", "hog")
    assert "50% of the accelerator's idle time" in str(finding.reason)
    assert "about 3.6 steps of 10.0 ms lost" in finding.evidence


def test_a_launcher_named_by_its_address_is_found_by_its_process(tmp_path):
    (finding,) = gpu_idle.find(view(tmp_path, profile(tmp_path, tid=140_000_000_000_000, pid=11)))
    assert finding.tid == 11


def test_a_trace_of_another_clock_is_refused(tmp_path):
    with pytest.raises(UsageError, match="another clock"):
        view(tmp_path, profile(tmp_path, base_ns=10**18))


def test_clocks_that_differ_by_a_known_offset_are_joined(tmp_path):
    trace = scheduler().trace(tmp_path)
    kineto = profile(tmp_path, base_ns=1_790_857_026 * 10**9)
    accelerator = read_kineto([kineto], trace, offset_ns=1_790_857_026 * 10**9)
    found = gpu_idle.idleness(TraceView(trace, accelerator=accelerator))
    assert found is not None
    assert found.waited_ms == pytest.approx(36)
    arguments = ["host", "report", str(tmp_path / "trace.txt"), "--kineto", str(kineto)]
    assert run(arguments) == 2
    assert run([*arguments, "--kineto-offset", "1790857026"]) == 0


def test_launches_of_a_thread_that_did_not_run_then_make_it_less_sure(tmp_path):
    trace = scheduler().trace(tmp_path)
    shifted = TraceView(trace, accelerator=read_kineto([profile(tmp_path)], trace, offset_ns=-3_000_000))
    (finding,) = gpu_idle.find(shifted)
    assert finding.confidence < 0.2


@pytest.mark.parametrize(
    "text", ["[]", '{"traceEvents": []}', '{"traceEvents": [1, {"ph": "X"}, {"cat": "kernel"}]}']
)
def test_what_is_no_kineto_trace_is_refused(tmp_path, text):
    other = tmp_path / "other.json"
    other.write_text(text)
    with pytest.raises(UsageError, match=r"other\.json"):
        view(tmp_path, other)


def test_the_command_joins_both(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(scheduler().raw())
    arguments = ["host", "report", str(trace), "--kineto", str(profile(tmp_path)), "-o", "json"]
    data = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert data["gpu"]["launcher_waited_ms"] == pytest.approx(36)
    assert "gpu-idle-cpu-wait" in {one["token"] for one in data["findings"]}
    assert run([*arguments[:4], str(tmp_path / "none.json")]) == 2


# --- several launching threads, devices, streams and ranks, beside a count of every microsecond ----------------


def span(cat, start_us, end_us, **more):
    return {"ph": "X", "cat": cat, "name": cat, "ts": float(start_us), "dur": end_us - start_us, **more}


def counted(seed: int, folder: Path) -> tuple[Text, list[Path], dict[str, float]]:
    """Return a trace of two launching threads and a hog on one CPU, profiles of two ranks, and the truth."""
    rng, now = random.Random(seed), 0
    ids, doing = (11, 21), {11: [], 21: []}  # what a thread does, a microsecond an entry
    text, on = Text().switch(0, 0, IDLE, HOG), None
    wants = set()
    for _ in range(120):
        length = rng.randint(1, 40)
        for tid in ids:
            doing[tid] += ["ran" if tid == on else "waited" if tid in wants else "slept"] * length
        now += length
        if asleep := [tid for tid in ids if tid not in wants]:
            wants.add(tid := rng.choice(asleep))
            text.wake(now / 1000, 0, (f"w{tid}", tid), by=(f"w{on}", on) if on else HOG)
        after = rng.choice([None, *wants])
        if after != on:
            leaves = "R" if rng.random() < 0.5 else "S"
            before, to = ((f"w{one}", one) if one else HOG for one in (on, after))
            text.switch(now / 1000, 0, before, to, "R" if on is None else leaves)
            if leaves == "S":
                wants.discard(on)
            on = after
    text.switch(now / 1000 + 0.001, 0, (f"w{on}", on) if on else HOG, IDLE, "S")
    truth = dict.fromkeys(("idle", "waited", "ran"), 0)
    files = []
    for rank in (0, 1):
        events, correlation = [], 100 * rank
        for device in range(1 + rank):
            kernels = []
            for begin in rng.sample(range(now - 50), rng.randint(2, 25)):
                correlation += 1
                kernels.append((begin, begin + rng.randint(1, 45), by := rng.choice(ids)))
                args = {"correlation": correlation, "device": device, "stream": rng.randint(7, 9)}
                events.append(span("kernel", begin, kernels[-1][1], pid=device, tid=args["stream"], args=args))
                launch = {"pid": 7, "tid": by, "args": {"correlation": correlation}}
                events.append(span("cuda_runtime", max(begin - 3, 0), begin, **launch))
            kernels.sort(key=lambda one: one[0])
            for at in range(kernels[0][0], max(end for _, end, _ in kernels)):
                if not any(begin <= at < end for begin, end, _ in kernels):
                    owner = next(by for begin, _, by in kernels if begin > at)
                    truth["idle"] += 1
                    if (does := doing[owner][at]) != "slept":
                        truth[does] += 1
        rng.shuffle(events)
        files.append(folder / f"rank{rank}.json.gz")
        base = {"baseTimeNanoseconds": 1_790_857_026 * 10**9, "displayTimeUnit": "ms"}
        files[-1].write_bytes(gzip.compress(json.dumps({**base, "traceEvents": events}).encode()))
    return text, files, {name: us / 1000 for name, us in truth.items()}


@pytest.mark.parametrize("seed", range(12))
def test_each_gap_is_laid_to_who_launched_the_kernel_after_it(tmp_path, seed):
    text, files, truth = counted(seed, tmp_path)
    trace = text.trace(tmp_path)
    gpu = read_kineto(files, trace, offset_ns=1_790_857_026 * 10**9)
    found = gpu_idle.idleness(TraceView(trace, accelerator=gpu))
    assert found is not None
    assert (found.idle_ms, found.waited_ms, found.ran_ms) == pytest.approx(
        (truth["idle"], truth["waited"], truth["ran"]), abs=1e-9
    )


def test_a_rank_s_share_is_of_its_own_accelerator_s_idle_time(tmp_path):
    trace, files = scheduler().switch(100, 1, IDLE, ("python3", 31)).trace(tmp_path), []
    for rank, tid in enumerate((11, 31)):
        (tmp_path / str(rank)).mkdir()
        files.append(profile(tmp_path / str(rank), tid=tid))
    (finding,) = gpu_idle.find(TraceView(trace, accelerator=read_kineto(files, trace)))
    assert finding.tid == 11
    assert "50% of the accelerator's idle time" in str(finding.reason)


def test_launchers_that_the_scheduler_never_saw_are_told(tmp_path):
    (finding,) = gpu_idle.find(view(tmp_path, profile(tmp_path, tid=999, pid=998)))
    assert finding.token == "launcher-unknown"
    assert "999" in str(finding.reason)


def test_a_broken_profile_is_refused(tmp_path):
    file = tmp_path / "k.json.gz"
    file.write_bytes(gzip.compress(profile(tmp_path).read_bytes())[:-20])
    with pytest.raises(UsageError, match=r"k\.json\.gz: not JSON, or damaged"):
        view(tmp_path, file)
    with pytest.raises(UsageError, match="No such file"):
        view(tmp_path, tmp_path / "none.json.gz")


def test_a_clock_that_is_centuries_away_is_a_usage_error(tmp_path):
    file = profile(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "baseTimeNanoseconds": 10**30}))
    with pytest.raises(UsageError, match="its clock is"):
        read_kineto([file], scheduler().trace(tmp_path))
