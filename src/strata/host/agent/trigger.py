"""When a trace is worth its cost: the threads that feed accelerators waited for long, look after look. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from strata.host.agent.watch import OTHERS, Key, Times
from strata.host.threads.pools import POOLS

CRITICAL: Final = frozenset(pool for pool, facts in POOLS.items() if facts.layer == "critical")


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """share: waited of what was wanted (run or waited) from which a look counts. looks: so many in a row.

    pause_s: at least so long between two traces of this host.
    """

    share: float = 0.25
    looks: int = 3
    pause_s: float = 600.0


@dataclass(slots=True)
class Trigger:
    """`ask` after each look; it remembers the sums of the look before, and how often in a row a job waited."""

    rules: TriggerRules = field(default_factory=TriggerRules)
    _before: dict[str, tuple[float, float]] = field(default_factory=dict)
    _streak: dict[str, int] = field(default_factory=dict)
    _latest_s: float | None = None

    def ask(self, times: Mapping[Key, Times], *, now_s: float) -> str | None:
        """Return the job that waits most and for long enough; None for none, or too soon after the last."""
        sums = critical_times(times)
        worst, worst_share = None, 0.0
        for job, (ran_s, waited_s) in sums.items():
            ran_before_s, waited_before_s = self._before.get(job, (ran_s, waited_s))
            waited = waited_s - waited_before_s
            wanted = waited + ran_s - ran_before_s
            share = waited / wanted if wanted > 0 else 0.0
            self._streak[job] = self._streak.get(job, 0) + 1 if share >= self.rules.share else 0
            if self._streak[job] >= self.rules.looks and share > worst_share:
                worst, worst_share = job, share
        self._before = sums
        self._streak = {job: count for job, count in self._streak.items() if job in sums}
        if worst is None or (self._latest_s is not None and now_s - self._latest_s < self.rules.pause_s):
            return None
        self._latest_s = now_s
        self._streak.clear()
        return worst


def critical_times(times: Mapping[Key, Times]) -> dict[str, tuple[float, float]]:
    """Return what each job's critical threads ran and waited [s]; where none is known, all its threads."""
    jobs = {job for job, _, _ in times} - {"", OTHERS}
    known = {job for job, _, pool in times if pool in CRITICAL}
    sums = dict.fromkeys(jobs, (0.0, 0.0))
    for (job, _, pool), each in times.items():
        if job in sums and (pool in CRITICAL or job not in known):
            ran_s, waited_s = sums[job]
            sums[job] = ran_s + each.ran_s, waited_s + each.waited_s
    return sums
