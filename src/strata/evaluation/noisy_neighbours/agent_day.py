"""Whether the host agent's memory is bounded: a virtual day of jobs and threads that come and go.

Only births matter to what is kept, so that a look stands for a minute: each minute a job starts and one ends.
"""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
import tempfile
import tracemalloc
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from strata.host.agent.agent import HostAgent
from strata.host.agent.metrics import HostAgentMetrics
from strata.host.agent.pmu import CacheMisses
from strata.host.agent.trigger import Trigger
from strata.host.agent.watch import ThreadWatch
from strata.net.metrics import render

MINUTES: Final = 1440
JOBS_A_MINUTE: Final = 1
THREADS: Final = 8
LIVES_MINUTES: Final = 10
SCRAPED_MINUTES: Final = 15
_NAMES: Final = (
    "python3",
    "pt_autograd_0",
    "pt_data_worker",
    "cuda-EvtHandlr",
    "ZMQbg/IO/0",
    "worker",
    "nccl",
    "io",
)


@dataclass(frozen=True, slots=True)
class AgentDay:
    """jobs, threads: that came and went. Memory of Python's objects [bytes] after a quarter of it, and at its end.

    series: of job, rank and pool at the end. is_last_named: whether the last job has metrics of its own name.
    """

    jobs: int
    threads: int
    quarter_bytes: int
    end_bytes: int
    series: int
    is_last_named: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return asdict(self)


def live_a_day(*, minutes: int = MINUTES) -> AgentDay:
    """Let the agent look once a virtual minute, with its metrics and its trigger, and measure what it keeps."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as name:
        root = Path(name)
        (root / "proc").mkdir()
        watch = ThreadWatch(root)
        metrics = HostAgentMetrics(watch)
        agent = HostAgent(
            watch, metrics, CacheMisses([]), trigger=Trigger(), record=lambda job, pid: True, root=root
        )
        held: dict[int, int] = {}
        living: deque[Path] = deque()
        tracemalloc.start()
        try:
            for minute in range(minutes):
                living.extend(_start(root, minute * JOBS_A_MINUTE + job) for job in range(JOBS_A_MINUTE))
                agent.tick(now_s=60.0 * minute)
                if minute % SCRAPED_MINUTES == 0:
                    render(metrics.registry)
                for folder in living:
                    _run(folder, minute)
                while len(living) > JOBS_A_MINUTE * LIVES_MINUTES:
                    shutil.rmtree(living.popleft())
                if minute in (minutes // 4, minutes - 1):
                    held[minute] = _held_bytes()
        finally:
            tracemalloc.stop()
        jobs = minutes * JOBS_A_MINUTE
        last = {job for job, _, _ in watch.times}
        return AgentDay(
            jobs,
            jobs * THREADS,
            held[minutes // 4],
            held[minutes - 1],
            len(watch.times),
            _job(jobs - 1) in last,
        )


def _held_bytes() -> int:
    gc.collect()
    # Paths intern their parts, and the table of these grows and shrinks by itself: it is not the agent's.
    traced = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, pathlib.__file__)])
    return sum(statistic.size for statistic in traced.statistics("filename"))


def _job(number: int) -> str:
    return f"job-{number}"


def _start(root: Path, number: int) -> Path:
    pid = 1000 + THREADS * number
    folder = root / f"proc/{pid}"
    for thread, name in zip(range(THREADS), _NAMES, strict=True):
        task = folder / f"task/{pid + thread}"
        task.mkdir(parents=True)
        (task / "comm").write_text(f"{name}\n")
    (folder / "statm").write_text("100 10 1 1 0 10 0\n")
    (folder / "comm").write_text("python3\n")
    (folder / "cgroup").write_text(f"0::/jobs/{number}\n")
    (folder / "environ").write_bytes(f"STRATA_JOB={_job(number)}\0RANK={number % 8}\0".encode())
    _run(folder, 0)
    return folder


def _run(folder: Path, minute: int) -> None:
    """Let its threads run and wait: half of what they want."""
    for task in (folder / "task").iterdir():
        (task / "schedstat").write_text(f"{minute * 10**9} {minute * 10**9} {minute}\n")
