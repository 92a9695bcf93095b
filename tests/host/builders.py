"""Threads of a made-up training host in one line each, and a /proc to read them from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from strata.host.threads.snapshot import Gpu, Snapshot, Thread

TRAINER, LOADER, DCGM, ENVOY = 4000, 4100, 700, 900


def thread(tid: int, name: str, *, pid: int | None = None, process: str | None = None, **more: Any) -> Thread:
    """A thread that ran half of its 100 s, 1 ms at a time, unless said otherwise."""
    told = {
        "ppid": 1,
        "age_s": 100.0,
        "run_s": 50.0,
        "wait_s": 1.0,
        "num_runs": 50_000,
        "num_wakeups": 1000,
        **more,
    }
    return Thread(tid=tid, pid=tid if pid is None else pid, name=name, process=process or name, **told)


def of(leader: Thread, tid: int, name: str, **more: Any) -> Thread:
    """A further thread of a process."""
    inherited = {"ppid": leader.ppid, "cgroup": leader.cgroup}
    return replace(thread(tid, name, pid=leader.pid, process=leader.name), **{**inherited, **more})


def training_host() -> Snapshot:
    """One rank with its pools, its loaders, a telemetry daemon, a proxy and a shell, on two GPUs of two nodes."""
    trainer = thread(TRAINER, "python", ppid=2000, cgroup="/job.slice/run-1")
    loader = thread(LOADER, "pt_data_worker", ppid=TRAINER, cgroup="/job.slice/run-1")
    dcgm, envoy = thread(DCGM, "nv-hostengine", run_s=0.1), thread(ENVOY, "envoy", run_s=5.0)
    threads = (
        trainer,
        of(trainer, 4001, "pt_autograd_0"),
        of(trainer, 4002, "cuda-EvtHandlr", run_s=0.1),
        of(trainer, 4003, "pt_nccl_watchdg", run_s=0.2),
        of(trainer, 4004, "NCCL Service 0"),
        *(of(trainer, 4010 + n, "python", run_s=30.0, num_runs=30_000) for n in range(8)),
        of(trainer, 4030, "pt_data_pin"),
        of(trainer, 4031, "ckpt_writer"),
        of(trainer, 4032, "grpc_global_tim"),
        of(trainer, 4033, "mystery", run_s=0.01, num_runs=10, num_wakeups=9),
        loader,
        of(loader, 4101, "decode-0"),
        of(loader, 4102, "worker-0"),
        dcgm,
        of(dcgm, 701, "nv-hostengine", run_s=0.1),
        envoy,
        *(of(envoy, 910 + n, f"wrk:worker_{n}") for n in range(3)),
        thread(5000, "bash"),
    )
    gpus = (
        Gpu(0, "0000:3b:00.0", "/dev/nvidia0", 0, tuple(range(8)), frozenset({TRAINER})),
        Gpu(1, "0000:af:00.0", "/dev/nvidia1", 1, tuple(range(8, 16))),
    )
    files = {TRAINER: ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"), DCGM: ("/dev/nvidiactl",)}
    return Snapshot(threads, files, gpus)


def write_proc(root: Path, snapshot: Snapshot) -> None:
    """Write what /proc would show of a snapshot."""
    (root / "proc").mkdir()
    (root / "proc/uptime").write_text("1000.00 1.0\n")
    for one in snapshot.threads:
        process = root / f"proc/{one.pid}"
        for folder in (process, process / f"task/{one.tid}") if one.is_leader else (process / f"task/{one.tid}",):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "status").write_bytes(
                b"Name:\t%b\nUmask:\t0022\nTgid:\t%d\nPid:\t%d\nPPid:\t%d\nVmSize:\t 100 kB\n"
                b"Cpus_allowed_list:\t0-15\nvoluntary_ctxt_switches:\t%d\nnonvoluntary_ctxt_switches:\t%d\n"
                % (_raw(one.name), one.pid, one.tid, one.ppid, one.num_wakeups, one.num_preempted)
            )
            # 22 fields behind the name; the 17th is nice, the 20th the start in ticks of 1/100 s.
            rest = ["S", str(one.ppid)] + ["0"] * 14 + [str(one.nice), "1", "0", str(one.start_ticks)]
            (folder / "stat").write_bytes(
                b"%d (%b) " % (one.tid, _raw(one.name)) + " ".join(rest).encode() + b" 0 0\n"
            )
            if one.run_s is not None and one.wait_s is not None:
                (folder / "schedstat").write_text(f"{one.run_s * 1e9:.0f} {one.wait_s * 1e9:.0f} {one.num_runs}\n")
            (folder / "cgroup").write_text(f"0::{one.cgroup or '/'}\n")
        (process / "fd").mkdir(exist_ok=True)
    for pid, files in snapshot.devices.items():
        for number, file in enumerate(("/dev/null", "socket:[17]", *files)):
            (root / f"proc/{pid}/fd/{number}").symlink_to(file)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
