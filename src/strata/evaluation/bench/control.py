"""How fast the scheduler's loop decides, what it keeps in memory, and a week of many jobs in virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from strata.control.candidates import MOST_PLANS, Candidates
from strata.control.core import Scheduler
from strata.control.policies import PolicyName, choose_by
from strata.control.replay import run
from strata.control.simulated import SimulatedSites
from strata.control.state import JobSpec, LinkSeen, Observation, Snapshot, Start, Stop, Submitted
from strata.evaluation.bench.control_daemon import memory, submit_to_start
from strata.fleet.catalogue import accelerator
from strata.fleet.fleet import Fleet
from strata.fleet.synthetic import random_fleet
from strata.progress import Progress, silent
from strata.tables import Shown, rows
from strata.workload.job import TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job

SIZES: Final = ((10, 100), (100, 1000))
SHARING: Final = (10, 16)
"""Domains, and jobs that share links."""

OBSERVATIONS: Final = 1_000_000
STARTS: Final = 100
WEEK_S: Final = 7 * 86400.0


def measure(
    *, sizes: Sequence[tuple[int, int]] = SIZES, observations: int = OBSERVATIONS, starts: int = STARTS,
    week: tuple[int, int] = (32, 200), progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """Return decisions a second and latency by size, memory, submit to start, and the time of a week."""
    decided = []
    with progress("decisions", total=len(sizes)) as advance:
        for done, (domains, jobs) in enumerate(sizes):
            decided.append(_decisions(domains, jobs))
            advance(done + 1)
        decided.append(_decisions(*SHARING, is_shared=True))
    fleet, training, scheduler = _world(10)
    document = {
        "apiVersion": "strata/v1alpha1", "kind": "TrainingJob", "model": "opt-350m",
        "train": {"global_batch": training.global_batch, "sequence": training.sequence_length},
        "run": {"command": ["true"], "steps": 10**9, "max_devices": 16},
    }  # fmt: skip
    return {
        "decisions": decided,
        "memory": memory(fleet, scheduler, observations),
        "start": submit_to_start(fleet, scheduler, {"document": document, "texts": {}}, starts),
        "week": _week(*week),
    }


def show(data: dict[str, Any]) -> Shown:
    """Yield what `measure` returned for people."""
    yield rows(
        ("plans over", "domains", "jobs", "decisions/s", "step p50", "step p99", "of CPU"),
        [
            ("two domains" if row["is_shared"] else "one domain", str(row["domains"]), str(row["jobs"]),
             f"{row['decisions_per_s']:,.0f}",
             *(f"{row[key] * 1e3:,.1f} ms" for key in ("p50_s", "p99_s", "cpu_p99_s")))
            for row in data["decisions"]
        ],
        right=range(1, 7),
    )  # fmt: skip
    kept, start, week = data["memory"], data["start"], data["week"]
    yield (
        f"{kept['observations']:,} measurements of links in a daemon: {kept['grown_bytes'] / 1e6:.1f} MB more "
        f"than after the first tenth of them; its store has {kept['store_bytes'] / 1e6:.1f} MB, "
        f"{kept['store_grown_bytes'] / 1e6:.1f} MB more"
    )
    yield (
        f"from submit, to disk, to a driver's start: {start['p50_s'] * 1e3:.0f} ms, p99 "
        f"{start['p99_s'] * 1e3:.0f} ms ({start['jobs']} jobs one after another)"
    )
    yield (
        f"a week of {week['domains']} domains and {week['jobs']} jobs: {week['elapsed_s']:.1f} s, "
        f"{week['cpu_s']:.1f} s of CPU, {week['done']} jobs done, {week['decisions']:,} decisions"
    )


def _decisions(domains: int, jobs: int, *, is_shared: bool = False) -> dict[str, Any]:
    """Time steps in which every running job decides anew, one domain's links being measured before each.

    is_shared: jobs over two domains each, under hi-ppo, and every link comes to another level before each step.
    """
    fleet, training, scheduler = _shared_world(domains) if is_shared else _world(domains)
    sites, snapshot = SimulatedSites(fleet), Snapshot(fleet)
    inbox: list[Observation] = [Submitted(spec) for spec in _specs(jobs, training, steps=10**9)]
    times, cpu, made = [], [], 0
    low, high = (0.15, 1.0) if is_shared else (0.7, 1.3)
    rng = np.random.default_rng(0)
    for tick in range(24):
        source = fleet.domains[tick % domains].name
        pairs = [pair for pair in fleet.links if is_shared or pair[0] == source]
        now_s = tick * scheduler.interval_s
        sites.advance(now_s)
        inbox += [
            LinkSeen(*pair, now_s, fleet.links[pair].bandwidth_bytes_per_s * rng.uniform(low, high))
            for pair in pairs
        ]
        began, began_cpu = time.perf_counter(), time.process_time()
        outcome = scheduler.step(replace(snapshot, inbox=(*inbox, *sites.observe())), now_s)
        if tick >= 4:  # the first ones start jobs and time plans
            times.append(time.perf_counter() - began)
            cpu.append(time.process_time() - began_cpu)
            made += len(outcome.decisions)
        snapshot, inbox = outcome.snapshot, []
        for action in outcome.actions:
            if isinstance(action, Start):
                sites.start(action, scheduler.planner(fleet, training))
            elif isinstance(action, Stop):
                sites.stop(action.attempt, action.domain)
    return {
        "domains": domains, "jobs": jobs, "is_shared": is_shared, "running": len(snapshot.live),
        "decisions_per_s": made / sum(times), "p50_s": float(np.percentile(times, 50)),
        "p99_s": float(np.percentile(times, 99)), "cpu_p99_s": float(np.percentile(cpu, 99)),
    }  # fmt: skip


def _week(domains: int, jobs: int) -> dict[str, Any]:
    """Play a week: jobs of log-normal length arrive over its first five days."""
    fleet, training, scheduler = _world(domains)
    specs = _specs(jobs, training, steps=2_000)
    began, began_cpu = time.perf_counter(), time.process_time()
    result = run(fleet, specs, scheduler, trace=None, end_s=WEEK_S)
    return {
        "domains": domains, "jobs": jobs, "elapsed_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - began_cpu, "done": len(result.ends_s), "decisions": result.decisions,
    }  # fmt: skip


def _world(domains: int) -> tuple[Fleet, TrainingJob, Scheduler]:
    """Return a random fleet, a job whose plans stay in one domain, and the scheduler under the exact rule."""
    fleet = random_fleet(domains, (accelerator("A100-SXM4-80GB"),), np.random.default_rng(0), devices=64)
    training = load_job("opt-350m")
    layers = len(training.layers)
    plans = [
        TrainingPlan((Pipeline((Stage(domain.name, 0, layers, 1),), count, training.global_batch // count),), 1)
        for domain in fleet.domains
        for count in (8, 16, 32)
        if count <= domain.num_devices
    ]
    candidates = Candidates(fleet, training, plans)
    return fleet, training, Scheduler(choose_by(PolicyName.EXACT), lambda _fleet, _job: candidates)


def _shared_world(domains: int) -> tuple[Fleet, TrainingJob, Scheduler]:
    """Return the same fleet and job, its plans over two domains, and the scheduler under hi-ppo."""
    fleet, training, _ = _world(domains)
    layers, each = len(training.layers), training.global_batch // 16
    plans = [
        TrainingPlan(tuple(Pipeline((Stage(name, 0, layers, 1),), 8, each) for name in pair), 1)
        for pair in combinations([domain.name for domain in fleet.domains], 2)
    ]
    candidates = Candidates(fleet, training, plans[:MOST_PLANS])
    return fleet, training, Scheduler(choose_by(PolicyName.HI_PPO), lambda _fleet, _job: candidates)


def _specs(jobs: int, training: TrainingJob, *, steps: int) -> list[JobSpec]:
    rng = np.random.default_rng(1)
    lengths = np.maximum(1, rng.lognormal(0.0, 1.0, jobs) * steps).astype(int).tolist()
    starts = np.sort(rng.uniform(0, WEEK_S * 5 / 7, jobs)).tolist()
    return [
        JobSpec(f"job{i}", training, length, submitted_s=start_s, owner=f"team{i % 4}", max_devices=16)
        for i, (length, start_s) in enumerate(zip(lengths, starts, strict=True))
    ]
