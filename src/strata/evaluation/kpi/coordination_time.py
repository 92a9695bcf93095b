"""Row `coordination_time_s`: wall time of the step of the control loop that answers an event, both levels in it.

Events: the interval is over, a link in use falls to a third, devices are lost, one is slow, a domain is drained.
The snapshot is that of running jobs whose plans are made; what an event makes new is worked out in the step, for
every job that it is news to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from strata.control.candidates import plan_links
from strata.control.core import Scheduler
from strata.control.plans import planner
from strata.control.replay import ENDLESS
from strata.control.simulated import SimulatedSites
from strata.control.state import DomainSeen, Drained, JobSpec, LinkSeen, Observation, Snapshot, Start, Submitted
from strata.decision import Trust
from strata.evaluation.kpi.instances import COORDINATION, PlanningCase
from strata.evaluation.kpi.kpi import Kpi, ends
from strata.evaluation.kpi.study import Study
from strata.evaluation.kpi.ways import OURS, ways
from strata.stats import quantile_interval
from strata.workload.plan import TrainingPlan

TARGET_S: Final = 2.0
JOBS: Final = (1, 4)
"""Jobs that run at once; of several each may have its part of all devices."""

MOST_LOOKS: Final = 8
"""Measurements until a fallen link must have been answered."""


@dataclass(slots=True)
class _Times:
    """What steps took, by event, and of them those that asked the agent between domains."""

    wall_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    between: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))


def measure(study: Study) -> Kpi:
    """Return the row; its value is the 99th percentile over all events."""
    taken: dict[tuple[str, int], _Times] = defaultdict(_Times)
    cases = [(instance, jobs) for instance in COORDINATION.draw(quick=study.quick) for jobs in JOBS]
    for done, (instance, jobs) in enumerate(cases, 1):
        plans = planner()
        for name, way in ways(study.policy).items():
            scheduler = Scheduler(way.choose, plans, inside=way.inside)
            snapshot = running(scheduler, instance, jobs=jobs)
            for event, looks in events(snapshot).items():
                _answer(study, scheduler, snapshot, looks, taken[name, jobs], event)
        study.advance(done / len(cases))
    by_rule = {name: _all_of([taken[name, jobs] for jobs in JOBS]) for name in ways(study.policy)}
    ours = [s for values in by_rule[OURS].wall_s.values() for s in values]
    return Kpi(
        name="coordination_time_s",
        definition="99th percentile of the wall time of the loop's step from an event (interval over, link "
        "to a third, devices lost or slow, domain drained) to the decisions of both levels, "
        f"{' and '.join(map(str, JOBS))} jobs on fleets of 4 to 10 domains",
        baseline="none: a bound; the same loop under other rules stands beside",
        value=float(np.quantile(ours, 0.99)) if ours else None,
        target=TARGET_S,
        sense="at most",
        ci95=ends(quantile_interval(ours, 0.99)) if ours else (None, None),
        instances=len(ours),
        guards={
            "by_event": _by_event(by_rule[OURS]),
            "by_jobs": {str(jobs): _whole(taken[OURS, jobs]) for jobs in JOBS if taken[OURS, jobs].wall_s},
            "by_rule": {name: _whole(times) for name, times in by_rule.items()},
        },
        trust=Trust.MEASURED,
        beside={name: _whole(times)["p99_s"] for name, times in by_rule.items() if name != OURS and times.wall_s},
    )


def running(scheduler: Scheduler, instance: PlanningCase, *, jobs: int) -> Snapshot:
    """Return a snapshot of so many of the instance's job as they run, every device told."""
    sites = SimulatedSites(instance.fleet)
    part = instance.fleet.num_devices // jobs if jobs > 1 else None
    specs = [JobSpec(f"job-{at}", instance.job, ENDLESS, max_devices=part) for at in range(jobs)]
    inbox: tuple[Observation, ...] = tuple(Submitted(spec) for spec in specs)
    snapshot = Snapshot(instance.fleet)
    for _ in range(3):
        outcome = scheduler.step(replace(snapshot, inbox=(*inbox, *_reported(sites))), 0.0)
        snapshot, inbox = outcome.snapshot, ()
        for action in outcome.actions:
            if isinstance(action, Start):
                sites.start(action, scheduler.planner(instance.fleet, instance.job))
    return replace(snapshot, inbox=_reported(sites))


def events(snapshot: Snapshot) -> dict[str, list[tuple[float, tuple[Observation, ...]]]]:
    """Return by name what is seen after each event, and when: (time, observations) until it is answered."""
    if not snapshot.live:
        return {}
    plan, seen = snapshot.live[0].plan, tuple(snapshot.inbox)
    first = next(item for item in seen if isinstance(item, DomainSeen) and item.domain == plan.domains[0])
    half = len(first.devices) // 2
    causes: dict[str, list[tuple[float, tuple[Observation, ...]]]] = {"interval_over": [(300.0, seen)]}
    if len(plan.domains) > 1:
        causes["links_fall"] = [
            (20.0 * look, (*seen, *_links(snapshot, plan, look))) for look in range(1, MOST_LOOKS)
        ]
    for name, devices in (
        ("devices_lost", (*(0.0,) * half, *first.devices[half:])),
        ("one_straggler", (0.5, *first.devices[1:])),
    ):
        causes[name] = [(20.0, tuple(replace(i, devices=devices) if i is first else i for i in seen))]
    causes["domain_drained"] = [(20.0, (*seen, Drained(first.domain)))]
    return causes


def _links(snapshot: Snapshot, plan: TrainingPlan, look: int) -> Iterator[LinkSeen]:
    """Yield a measurement of every link; those in use are at a third from the second on."""
    used = set(plan_links(plan))
    for pair, link in snapshot.fleet.links.items():
        factor = 1 / 3 if look > 1 and pair in used else 1.0
        yield LinkSeen(*pair, 20.0 * look, link.bandwidth_bytes_per_s * factor)


def _reported(sites: SimulatedSites) -> tuple[DomainSeen, ...]:
    return tuple(replace(item, devices=(1.0,) * item.num_devices) for item in sites.observe())


def _answer(
    study: Study, scheduler: Scheduler, snapshot: Snapshot, looks: list[tuple[float, tuple[Observation, ...]]],
    times: _Times, event: str,
) -> None:  # fmt: skip
    """Play an event until it is answered, and keep what the step took that did."""
    for now_s, seen in looks:
        before = replace(snapshot, inbox=seen)
        started, cpu_started = study.clock(), study.cpu_clock()
        outcome = scheduler.step(before, now_s)
        wall_s, cpu_s = study.clock() - started, study.cpu_clock() - cpu_started
        snapshot = outcome.snapshot
        if outcome.decisions:
            times.wall_s[event].append(wall_s)
            times.cpu_s[event].append(cpu_s)
            tokens = {item.decision.reasons[0].token for item in outcome.decisions}
            times.between[event].append(bool(tokens - {"rebound", "kept-binding"}))
            return


def _by_event(times: _Times) -> dict[str, Any]:
    return {
        name: {
            "p50_s": float(np.quantile(values, 0.5)),
            "p99_s": float(np.quantile(values, 0.99)),
            "cpu_p99_s": float(np.quantile(times.cpu_s[name], 0.99)),
            "asked_the_inter_domain_agent": float(np.mean(times.between[name])),
            "events": len(values),
        }
        for name, values in times.wall_s.items()
    }


def _all_of(every: list[_Times]) -> _Times:
    """Return what all steps took."""
    result = _Times()
    for times in every:
        for event in times.wall_s:
            result.wall_s[event] += times.wall_s[event]
            result.cpu_s[event] += times.cpu_s[event]
            result.between[event] += times.between[event]
    return result


def _whole(times: _Times) -> dict[str, float | int]:
    values = [s for some in times.wall_s.values() for s in some]
    return {
        "p50_s": float(np.quantile(values, 0.5)),
        "p99_s": float(np.quantile(values, 0.99)),
        "answered": len(values),
    }
