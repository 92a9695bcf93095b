"""What the agent saw, in Prometheus' words. Names and labels are promises: alert rules and pages refer to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import Metric

from strata import __version__
from strata.host.agent.readings import MachineReading
from strata.host.agent.watch import ThreadWatch
from strata.net.metrics import Counter, Registry, Values, read_counter, read_gauge

_Row = tuple[str, str, tuple[str, ...], Callable[[], Values]]
"""What a metric is called, what it says, its labels, and where its values are read."""


class LookRegistry(Registry):
    """A page shows one whole look: `lock` is held while a page is read, and by whoever takes a look."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, of the same look."""
        with self.lock:
            yield from super().collect()


class HostAgentMetrics:
    """The registry; `reading`, `looked_s` and what stands below it are set after each look."""

    def __init__(self, watch: ThreadWatch) -> None:
        self.registry = LookRegistry()
        self.reading = MachineReading()
        self.looked_s = 0.0
        self.misses: int | None = None
        self.throttled: dict[str, float] = {}
        self.steps: dict[tuple[str, str], int] = {}
        self.busiest: Values = {}
        self.waits: Values = {}
        self.reports = Counter(
            "strata_host_reports_total",
            "Traces that the trigger recorded, by what became of them.",
            ("result",),
            registry=self.registry,
        )
        for name, text, labels, read in (*self._of_threads(watch), *self._of_jobs(), *self._of_machine()):
            add = read_counter if name.endswith("_total") else read_gauge
            add(self.registry, f"strata_host_{name}", text, labels, read)

    # fmt: off
    def _of_threads(self, watch: ThreadWatch) -> Iterator[_Row]:
        of = ("job_name", "rank", "pool")
        yield ("run_queue_delay_seconds_total",
               "How long threads were runnable without a CPU, by job, rank and pool (schedstat).", of,
               lambda: {key: each.waited_s for key, each in watch.times.items() if watch.has_schedstat})
        yield ("cpu_seconds_total", "How long threads ran, by job, rank and pool (schedstat).", of,
               lambda: {key: each.ran_s for key, each in watch.times.items() if watch.has_schedstat})
        yield ("threads", "Threads there are, by job, rank and pool.", of,
               lambda: {key: float(each.threads) for key, each in watch.times.items()})
        yield ("looked_seconds", "When threads were last looked at, by this machine's monotonic clock.", (),
               lambda: {(): self.looked_s})
        yield ("threads_unwatched", "Threads beyond the most that are watched.", (),
               lambda: {(): float(watch.num_unwatched)})
        yield ("has_schedstat", "Whether this kernel counts run-queue delays.", (),
               lambda: {(): float(watch.has_schedstat)})
        yield ("agent_cpu_seconds_total", "CPU time of the agent itself.", (), lambda: {(): time.process_time()})
        yield ("agent_threads_watched", "Threads that are watched.", (), lambda: {(): float(watch.num_threads)})
        yield ("agent_info", "1 for the agent's version.", ("version",), lambda: {(__version__,): 1.0})

    def _of_jobs(self) -> Iterator[_Row]:
        yield ("step", "The last step that a rank reported (STRATA_PROGRESS).", ("job_name", "rank"),
               lambda: {key: float(step) for key, step in self.steps.items()})
        yield ("throttled_seconds_total", "How long a job's cgroups were held back by their CPU limits.",
               ("job_name",), lambda: {(job,): seconds for job, seconds in self.throttled.items()})
        yield ("busiest_cpus", "The processes that had most CPUs in the last look.",
               ("job_name", "pid", "process"), lambda: self.busiest)
        yield ("longest_wait_ratio",
               "The thread of each rank that waited most for a CPU lately, and the share of time that it did.",
               ("job_name", "rank", "tid", "thread"), lambda: self.waits)

    def _of_machine(self) -> Iterator[_Row]:
        yield ("pressure_seconds_total", "Time in which some or all tasks stood still for want of it (PSI).",
               ("resource", "kind"), lambda: self.reading.pressure_s)
        yield ("lost_seconds_total", "CPU time that interrupts (irq, softirq) and a hypervisor (steal) took.",
               ("kind",), lambda: self.reading.seconds)
        yield ("numa_pages_total", "Pages from the wrong NUMA node.", ("node", "kind"),
               lambda: self.reading.numa_pages)
        yield ("memory_traffic_bytes_total", "Memory traffic by domain of resctrl, all of it or to local memory.",
               ("domain", "kind"), lambda: self.reading.memory_bytes)
        yield ("llc_misses_total", "Misses of the last-level caches, where there is a PMU.", (),
               lambda: {(): float(self.misses)} if self.misses is not None else {})
        yield ("sched_ext", "1 for the scheduler of sched_ext that runs; none under the kernel's own.", ("ops",),
               lambda: {(self.reading.scheduler,): 1.0} if self.reading.scheduler else {})
    # fmt: on
