"""What the agent saw, in Prometheus' words. Names and labels are promises: alert rules and pages refer to them."""

from __future__ import annotations

import time
from functools import partial

from strata import __version__
from strata.host.agent.readings import MachineReading
from strata.host.agent.watch import ThreadWatch
from strata.net.metrics import Counter, Registry, Values, read_counter, read_gauge

_OF_THREADS = ("job_name", "rank", "pool")


class HostAgentMetrics:
    """The registry; `reading`, `misses`, `throttled`, `steps`, `busiest` and `waits` are set after each look."""

    def __init__(self, watch: ThreadWatch) -> None:
        self.registry = Registry()
        self.reading = MachineReading()
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
        self._of_threads(watch)
        self._of_jobs()
        self._of_machine()
        self._of_itself(watch)

    def _of_threads(self, watch: ThreadWatch) -> None:
        read_counter(
            self.registry,
            "strata_host_run_queue_delay_seconds_total",
            "How long threads were runnable without a CPU, by job, rank and pool (schedstat).",
            _OF_THREADS,
            lambda: {key: each.waited_s for key, each in watch.times.items() if watch.has_schedstat},
        )
        read_counter(
            self.registry,
            "strata_host_cpu_seconds_total",
            "How long threads ran, by job, rank and pool (schedstat).",
            _OF_THREADS,
            lambda: {key: each.ran_s for key, each in watch.times.items() if watch.has_schedstat},
        )
        read_gauge(
            self.registry,
            "strata_host_threads",
            "Threads there are, by job, rank and pool.",
            _OF_THREADS,
            lambda: {key: float(each.threads) for key, each in watch.times.items()},
        )
        read_gauge(
            self.registry,
            "strata_host_threads_unwatched",
            "Threads beyond the most that are watched.",
            (),
            lambda: {(): float(watch.num_unwatched)},
        )
        read_gauge(
            self.registry,
            "strata_host_has_schedstat",
            "Whether this kernel counts run-queue delays.",
            (),
            lambda: {(): float(watch.has_schedstat)},
        )

    def _of_jobs(self) -> None:
        read_gauge(
            self.registry,
            "strata_host_step",
            "The last step that a rank reported (STRATA_PROGRESS).",
            ("job_name", "rank"),
            lambda: {key: float(step) for key, step in self.steps.items()},
        )
        read_counter(
            self.registry,
            "strata_host_throttled_seconds_total",
            "How long a job's cgroups were held back by their CPU limits.",
            ("job_name",),
            lambda: {(job,): seconds for job, seconds in self.throttled.items()},
        )

        read_gauge(
            self.registry,
            "strata_host_busiest_cpus",
            "The processes that had most CPUs in the last look.",
            ("job_name", "pid", "process"),
            lambda: self.busiest,
        )
        read_gauge(
            self.registry,
            "strata_host_longest_wait_ratio",
            "The thread of each rank that waited most for a CPU lately, and the share of time that it did.",
            ("job_name", "rank", "tid", "thread"),
            lambda: self.waits,
        )

    def _of_machine(self) -> None:
        readings: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
            (
                "strata_host_pressure_seconds_total",
                "Time in which some or all tasks stood still for want of it (PSI).",
                ("resource", "kind"),
                "pressure_s",
            ),
            (
                "strata_host_lost_seconds_total",
                "CPU time that interrupts (irq, softirq) and a hypervisor (steal) took.",
                ("kind",),
                "seconds",
            ),
            ("strata_host_numa_pages_total", "Pages from the wrong NUMA node.", ("node", "kind"), "numa_pages"),
            (
                "strata_host_memory_traffic_bytes_total",
                "Memory traffic by domain of resctrl, all of it or to local memory.",
                ("domain", "kind"),
                "memory_bytes",
            ),
        )
        for name, text, labels, field in readings:
            read_counter(self.registry, name, text, labels, partial(self._read, field))
        read_counter(
            self.registry,
            "strata_host_llc_misses_total",
            "Misses of the last-level caches, where there is a PMU.",
            (),
            lambda: {(): float(self.misses)} if self.misses is not None else {},
        )
        read_gauge(
            self.registry,
            "strata_host_sched_ext",
            "1 for the scheduler of sched_ext that runs; none under the kernel's own.",
            ("ops",),
            lambda: {(self.reading.scheduler,): 1.0} if self.reading.scheduler else {},
        )

    def _read(self, field: str) -> Values:
        values: Values = getattr(self.reading, field)
        return values

    def _of_itself(self, watch: ThreadWatch) -> None:
        def cpu() -> Values:
            return {(): time.process_time()}

        read_counter(
            self.registry, "strata_host_agent_cpu_seconds_total", "CPU time of the agent itself.", (), cpu
        )
        read_gauge(
            self.registry,
            "strata_host_agent_threads_watched",
            "Threads that are watched.",
            (),
            lambda: {(): float(watch.num_threads)},
        )
        read_gauge(
            self.registry,
            "strata_host_agent_info",
            "1 for the agent's version.",
            ("version",),
            lambda: {(__version__,): 1.0},
        )
