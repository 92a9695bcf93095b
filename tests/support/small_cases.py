"""Random fleets and jobs small enough to enumerate: every feature that a bound or a search could get wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np

from strata.fleet.fleet import BandwidthCurve, Domain, Fleet, Link
from strata.simulate.report import StepReport
from strata.training.plan.exact.chain import Chain
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.rows import chains
from strata.training.plan.exact.shards import ShardSpace
from strata.workload.job import SEARCHED, Recompute, Schedule, TrainingJob
from strata.workload.layers import LayerTable
from strata.workload.plan import TrainingPlan
from strata.workload.profile import LayerProfile, LayerTimes
from tests.support.builders import GBPS, card, domain, fleet, job, layers, tied


def small_case(seed: int, *, most_domains: int = 3, **more: Any) -> tuple[Fleet, TrainingJob]:
    """A random fleet and job; `more` overrides fields of the job."""
    rng = np.random.default_rng(seed)
    fleet = small_fleet(rng, int(rng.integers(1, most_domains + 1)))
    return fleet, small_job(rng, fleet, **more)


def crowded_case(seed: int) -> tuple[Fleet, TrainingJob]:
    """Domains that share few microbatches, with room for the activations of some but not of all in flight."""
    rng = np.random.default_rng(seed)
    memory = float(rng.choice([6.0, 8.0, 10.0, 12.0]))
    domains = [
        domain(
            f"d{k}", int(rng.choice([2, 3, 4])), per_node=int(rng.choice([1, 2])),
            accelerator=card(f"card{k}", tflops=float(rng.choice([50.0, 100.0])), gib=memory),
            region="here" if rng.random() < 0.3 else "",
        )
        for k in range(int(rng.integers(2, 4)))
    ]  # fmt: skip
    asked = job(
        layers(int(rng.integers(3, 7)), hidden_mib=float(rng.choice([32.0, 64.0, 128.0]))),
        batch=int(rng.choice([2, 3, 4, 6])), recompute=(Recompute.NONE, Recompute.FULL),
        zero_stages=[(0,), (0, 1), (1, 2), (3,)][int(rng.integers(4))],
        schedules=[
            (Schedule.ONE_F_ONE_B,), (Schedule.GPIPE,), (Schedule.LATENCY_AWARE, Schedule.ONE_F_ONE_B),
        ][int(rng.integers(3))],
    )  # fmt: skip
    return fleet(*domains, gbps=float(rng.choice([5.0, 1000.0])), ms=float(rng.choice([0.0, 50.0]))), asked


def small_fleet(rng: np.random.Generator, count: int) -> Fleet:
    alike = rng.random() < 0.4
    memory = float(rng.choice([6.0, 12.0, 40.0]))
    cards = [card(f"card{k}", tflops=float(rng.choice([50.0, 100.0, 300.0])), gib=memory) for k in range(2)]
    node = int(rng.choice([1, 2, 4]))
    domains = []
    for k in range(count):
        per_node = node if alike else int(rng.choice([1, 2, 3, 4]))
        extra = {"region": "here"} if rng.random() < 0.4 else {}
        one = domain(
            f"d{k}",
            int(rng.integers(1, 6)),
            per_node=per_node,
            price=float(rng.choice([0.5, 2.0, 8.0])),
            accelerator=cards[0 if alike else int(rng.integers(2))],
            **extra,
        )
        domains.append(_wired(rng, one))
    links = {}
    for a, b in combinations(domains, 2):
        if rng.random() < 0.12:
            continue
        for source, dest in ((a.name, b.name), (b.name, a.name)):
            links[source, dest] = _link(rng, source, dest)
    if rng.random() < 0.3:
        domains = [replace(one, uplink_bytes_per_s=float(rng.choice([0.5, 5.0, 200.0])) * GBPS) for one in domains]
    return Fleet("small", tuple(domains), links)


def _wired(rng: np.random.Generator, one: Domain) -> Domain:
    return replace(
        one,
        network_bandwidth_bytes_per_s=float(rng.choice([1e9, 50e9, 800e9])),
        intra_latency_s=float(rng.choice([0.0, 5e-6])),
        network_latency_s=float(rng.choice([0.0, 1e-5])),
    )


def _link(rng: np.random.Generator, source: str, dest: str) -> Link:
    gbps = float(rng.choice([0.5, 5.0, 100.0, 1000.0]))
    curve = BandwidthCurve((-0.001 * gbps, 0.02 * gbps, 0.1 * gbps)) if rng.random() < 0.2 else None
    return Link(
        source, dest, gbps * GBPS, float(rng.choice([0.0, 0.01, 0.1])),
        float(rng.choice([0.0, 2e-11, 1e-10])), curve,
    )  # fmt: skip


def small_job(rng: np.random.Generator, fleet: Fleet, **more: Any) -> TrainingJob:
    table = small_layers(rng)
    given: dict[str, Any] = {
        "name": "small",
        "layers": table,
        "sequence_length": 1024,
        "num_heads": 8,
        "global_batch": int(rng.choice([1, 2, 3, 4, 6, 16])),
        "recompute": tuple(Recompute)[: int(rng.integers(1, 3))],
        "zero_stages": [(0,), (0, 1), (1, 2), (3,)][int(rng.integers(4))],
        "schedules": some_schedules(rng),
        "local_steps": [(), (), (8,), (8, 64)][int(rng.integers(4))],
        "gradient_compression": [(1.0,), (1.0, 4.0)][int(rng.integers(2))],
        "profile": small_profile(rng, fleet, len(table)) if rng.random() < 0.3 else None,
    }
    # Drawn apart, as one schedule is.
    ends = rng.spawn(1)[0]
    if len(table) > 1 and ends.random() < 0.3:
        given["layers"] = tied(table, float(ends.choice([3e7, 3e8])))
    return TrainingJob(**(given | more))


def some_schedules(rng: np.random.Generator) -> tuple[Schedule, ...]:
    """Some schedules, in any order; DualPipeV, which must be asked for, last."""
    every = list(SEARCHED)
    picked = [every[k] for k in rng.permutation(len(every))[: int(rng.integers(1, 1 + len(every)))]]
    # Drawn apart: what else a seed draws stays what it was before there was one.
    folded = (Schedule.DUAL_PIPE_V,) if rng.spawn(1)[0].random() < 0.4 else ()
    return (*picked, *folded)


def small_layers(rng: np.random.Generator) -> LayerTable:
    """Like layers between an embedding and a head, or layers that all differ."""
    count = int(rng.integers(1, 9))
    if rng.random() < 0.4:
        scale = rng.uniform(0.2, 3.0, (5, count))
    else:
        scale = np.ones((5, count))
        scale[:, 0], scale[:, -1] = rng.choice([0.0, 0.5, 1.0, 3.0], 2)
        scale = np.maximum(scale, 0.01)
    return LayerTable(
        ("embedding", *["dense"] * (count - 2), "head")[:count],
        scale[0] * 4e12,
        scale[1] * 1e8,
        scale[2] * 300e6,
        scale[3] * 30e6,
        scale[4] * 30e6,
    )


def small_profile(rng: np.random.Generator, fleet: Fleet, count: int) -> LayerProfile:
    """Measured times whose shares of the layers differ from card to card; some conditions are missing."""
    times = {}
    for name in sorted({d.accelerator.name for d in fleet.domains}):
        for size in (1, 2, 4):
            for ranks in (1, 2):
                if rng.random() < 0.8:
                    row = rng.uniform(0.005, 0.05, (2, count)) * size / ranks
                    times[name, size, ranks] = LayerTimes(row[0], 2 * row[1], rng.uniform(0, 1e-3, count))
    return LayerProfile(times)


def every_plan(problem: Problem, *, all_splits: bool = True) -> list[tuple[TrainingPlan, StepReport]]:
    """All plans of a problem with their exact reports, without a bound (`all_splits`: and splits)."""
    plans = []
    for setting in problem.configs:
        for size in range(1, len(problem.fleet.domains) + 1):
            for order in permutations(range(len(problem.fleet.domains)), size):
                if has_room_and_links(problem, setting, order):
                    for chain in chains(problem, setting, order):
                        if isinstance(chain, Chain):
                            others = chain.within(lambda: np.inf) if all_splits else ()
                            plans += [*chain.plans, *(plan for _, plan in others)]
    shards = ShardSpace(problem, tuple(range(len(problem.fleet.domains))))
    for way in range(len(shards.ways)):
        for group in range(len(shards.groups)):
            plan = shards.build(shards.sharing(way, group))
            if plan is not None:
                plans.append(plan)
    return list(zip(plans, problem.model.reports(plans), strict=True)) if plans else []


def has_room_and_links(problem: Problem, setting: Any, order: tuple[int, ...]) -> bool:
    domains = [problem.fleet.domains[i] for i in order]
    linked = all(
        (a.name, b.name) in problem.fleet.links and (b.name, a.name) in problem.fleet.links
        for a, b in pairwise(domains)
    )
    return linked and all(problem.stages(domain, setting) for domain in domains)
