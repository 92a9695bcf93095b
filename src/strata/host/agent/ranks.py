"""Which rank makes its job wait: run-queue delays of all hosts' agents, joined by job, rank and step. Pure.

In synchronous training each step ends when its last rank does. A rank whose critical threads waited longer for a
CPU than those of the median rank held up all others for the difference, at most: what it waits may also be hidden
behind its accelerator's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from strata.host.agent.trigger import CRITICAL

Labels = tuple[tuple[str, str], ...]
_DELAY: Final = "strata_host_run_queue_delay_seconds_total"
_STEP: Final = "strata_host_step"
_BUSIEST: Final = "strata_host_busiest_cpus"
_LONGEST: Final = "strata_host_longest_wait_ratio"
_LOOKED: Final = ("strata_host_looked_seconds", ())
_NEEDED: Final = (_DELAY,)
_CRITICAL: Final[frozenset[str]] = frozenset(CRITICAL)
_LAUNCH: Final = "kernel-launch"


@dataclass(frozen=True, slots=True)
class AgentPage:
    """What one agent told at one time [s]: values by metric and labels, also of metrics that are not known."""

    host: str
    at_s: float
    values: Mapping[tuple[str, Labels], float]

    @classmethod
    def of(cls, host: str, text: str, *, at_s: float) -> AgentPage:
        """Read the text of /metrics. Raises ValueError for what is none."""
        values = {
            (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return cls(host, at_s, values)

    def named(self, metric: str) -> Iterable[tuple[Mapping[str, str], float]]:
        """Return the labels and values of a metric."""
        return ((dict(labels), value) for (name, labels), value in self.values.items() if name == metric)


@dataclass(frozen=True, slots=True)
class RankDelay:
    """What a rank's critical threads waited between two pages [s]; pool: which of them most; steps: meanwhile.

    Where nothing of a rank launches kernels, as without an accelerator, its threads of no pool count too. thread:
    the one that waits most now, "" where the agent names none.
    """

    job: str
    rank: str
    host: str
    waited_s: float
    pool: str
    step: int | None = None
    steps: int | None = None
    thread: str = ""


@dataclass(frozen=True, slots=True)
class JobDelay:
    """The rank that waited most beyond the median of its job's, and what that cost at most.

    culprit: the busiest process on its host that is not of the job, with its CPUs; "" where the agent tells none.
    """

    worst: RankDelay
    num_ranks: int
    beyond_s: float
    seconds: float
    culprit: str = ""

    @property
    def device_s(self) -> float:
        """Return the device-seconds that all ranks, of one device each, lost at most."""
        return self.beyond_s * self.num_ranks

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        worst = {name: getattr(self.worst, name) for name in self.worst.__slots__}
        return {
            **worst,
            "waited_s": round(self.worst.waited_s, 6),
            "num_ranks": self.num_ranks,
            "beyond_median_s": round(self.beyond_s, 6),
            "device_s": round(self.device_s, 6),
            "share": round(self.beyond_s / self.seconds, 6),
            "culprit": self.culprit,
        }


def without_delays(pages: Iterable[AgentPage]) -> tuple[str, ...]:
    """Return the hosts whose agent tells no run-queue delays: of another version, or without schedstat."""
    return tuple(page.host for page in pages if not any(name in _NEEDED for name, _ in page.values))


def rank_delays(before: AgentPage, after: AgentPage) -> tuple[RankDelay, ...]:
    """Return what the ranks on a host waited between two pages; an agent that began anew counts from there.

    Agents look every two seconds, so that the looks of two pages lie nearer or farther apart than these: what was
    waited from look to look is brought to the time between the pages, as on all other hosts.
    """
    waited: dict[tuple[str, str], dict[str, float]] = {}
    old = before.values
    looked_s = after.values.get(_LOOKED, 0.0) - old.get(_LOOKED, after.values.get(_LOOKED, 0.0))
    scale = (after.at_s - before.at_s) / looked_s if looked_s > 0 else 1.0
    for labels, value in after.named(_DELAY):
        job, rank, pool = labels.get("job_name", ""), labels.get("rank", ""), labels.get("pool", "")
        if not job:
            continue
        was = old.get((_DELAY, tuple(sorted(labels.items()))), 0.0)
        waited.setdefault((job, rank), {})[pool] = value - was if value >= was else value
    ranks = []
    for (job, rank), pools in sorted(waited.items()):
        counted = _CRITICAL if _LAUNCH in pools else _CRITICAL | {"none"}
        critical = {name: seconds for name, seconds in pools.items() if name in counted} or pools
        step, was_step = _step(after, job, rank), _step(before, job, rank)
        steps = step - was_step if step is not None and was_step is not None and step >= was_step else None
        most = max(critical, key=critical.__getitem__)
        waited_s, thread = scale * sum(critical.values()), _thread(after, job, rank)
        ranks.append(RankDelay(job, rank, after.host, waited_s, most, step, steps, thread))
    return tuple(ranks)


def job_delays(before: Iterable[AgentPage], after: Iterable[AgentPage]) -> tuple[JobDelay, ...]:
    """Return for each job the rank that waited most, the costliest job first."""
    old = {page.host: page for page in before}
    pages = {page.host: page for page in after if page.host in old}
    by_job: dict[str, list[RankDelay]] = {}
    for host, page in sorted(pages.items()):
        for delay in rank_delays(old[host], page):
            by_job.setdefault(delay.job, []).append(delay)
    delays = []
    for job, ranks in by_job.items():
        worst = max(ranks, key=lambda delay: (delay.waited_s, delay.host, delay.rank))
        typical = median(delay.waited_s for delay in ranks) if len(ranks) > 2 else min(d.waited_s for d in ranks)
        seconds = max(pages[worst.host].at_s - old[worst.host].at_s, 1e-9)
        beyond_s = min(worst.waited_s - typical, seconds)
        delays.append(JobDelay(worst, len(ranks), beyond_s, seconds, _culprit(pages[worst.host], job)))
    return tuple(sorted(delays, key=lambda delay: -delay.device_s))


def _step(page: AgentPage, job: str, rank: str) -> int | None:
    value = page.values.get((_STEP, (("job_name", job), ("rank", rank))))
    return int(value) if value is not None else None


def _thread(page: AgentPage, job: str, rank: str) -> str:
    longest = (
        labels for labels, _ in page.named(_LONGEST) if (labels.get("job_name"), labels.get("rank")) == (job, rank)
    )
    labels = next(longest, {})
    return f"{labels.get('thread', '?')} ({labels.get('tid', '?')})" if labels else ""


def _culprit(page: AgentPage, job: str) -> str:
    others = [(value, labels) for labels, value in page.named(_BUSIEST) if labels.get("job_name") != job]
    if not others:
        return ""
    cpus, labels = max(others, key=lambda item: item[0])
    of = f" of {labels['job_name']}" if labels.get("job_name") else ""
    return f"{labels.get('process', '?')}, process {labels.get('pid', '?')}{of}, on {cpus:.1f} CPUs"
