"""The search against every plan of small cases: nothing here is taken from what lists the search's branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.simulate.analytic import StepModel
from strata.training.plan.legality import misfits, shortfalls
from strata.training.plan.planner import plan_training
from strata.workload.experts import Experts
from strata.workload.job import ContextExchange, Recompute, Schedule, TrainingJob
from strata.workload.layer_table import layer_table
from strata.workload.linear_attention import GatedDelta
from strata.workload.model import ModelSpec
from strata.workload.pins import Pins
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import card, domain, fleet, job, layers
from tests.support.laws import examples

TOLERANCE = 1.01e-4
NONE, SELECTIVE, FULL = Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL
MIXTURE = ModelSpec(
    "small", "mixture", hidden_size=512, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=128, vocab_size=2000,
    intermediate_size=1024, embedding_size=512, experts=Experts(4, 2, 1024),
)  # fmt: skip
DENSE = replace(MIXTURE, experts=None)
HYBRID = replace(MIXTURE, linear=GatedDelta(2, 4, 128, 128, 4, layers=frozenset({0})))


def case(seed, *, sites=1):
    """Cards too small for some layouts, nodes that some pieces of a sequence span, and few sequences a step."""
    rng = np.random.default_rng(seed)
    small = card("small", tflops=20.0, gib=float(rng.choice([2.15, 2.4, 8.0])))
    domains = [
        replace(
            domain(name, int(rng.choice([4, 8])) // sites, per_node=int(rng.choice([2, 4])), accelerator=small),
            network_bandwidth_bytes_per_s=float(rng.choice([1e9, 50e9])),
        )
        for name in "ab"[:sites]
    ]
    kind = rng.random()
    spec = DENSE if kind >= 0.6 else HYBRID if 0.2 < kind < 0.4 else MIXTURE
    asked = TrainingJob(
        "small", layer_table(spec, 4096), 4096, 4, int(rng.choice([1, 2, 3])), spec=spec,
        recompute=[(NONE,), (NONE, FULL), (NONE, SELECTIVE, FULL)][int(rng.integers(3))],
        zero_stages=[(0, 1), (1,), (3,)][int(rng.integers(3))],
        schedules=(Schedule.ONE_F_ONE_B, Schedule.GPIPE),
        flops_efficiency=0.5 if rng.random() < 0.5 else None,
    )  # fmt: skip
    place = fleet(*domains, gbps=float(rng.choice([1.0, 400.0])), ms=0.1)
    if rng.random() < 0.5:
        tied = replace(spec, tied_embeddings=True)
        asked = replace(asked, layers=layer_table(tied, 4096), spec=tied)
    return place, asked


def pieces(place, asked) -> list[int]:
    """The degrees of context parallelism that docs/planning.md says are tried."""
    devices = sum(site.num_devices for site in place.domains)
    kept, free = asked.layers.activation_bytes.sum(), 1 - asked.limits.memory_headroom
    fit = any(
        kept <= min(8, d.devices_per_node) * (d.accelerator.memory_bytes * free - 2e9) for d in place.domains
    )
    if devices <= 2 * asked.global_batch and fit:
        return [1]
    return [c for c in (1, 2, 4) if c <= max(site.num_devices for site in place.domains)]


def width(site, tensor) -> int:
    """The tensor ranks of a stage: no more than the largest power of two that a node holds."""
    return max(ranks for ranks in (1, 2, 4) if ranks <= min(tensor, site.devices_per_node))


def room(site, tensor, context) -> int:
    """Stages that fit: tensor ranks in a node, pieces of a sequence in a node or on whole ones."""
    tensor = width(site, tensor)
    inside, nodes = site.devices_per_node // tensor, site.num_devices // site.devices_per_node
    if inside >= context:
        return nodes * (inside // context) if inside % context == 0 else 0
    return nodes // (context // inside) if context % inside == 0 else 0


def cuts(count, depth) -> Iterator[tuple[int, ...]]:
    for ends in combinations(range(1, count), depth - 1):
        yield tuple(np.diff([0, *ends, count]).tolist())


def recomputed(asked, shape, split) -> Iterator[tuple[int | None, ...]]:
    """Layers that each stage recomputes: any number of them where the job allows none and all."""
    if shape.recompute is FULL and NONE in asked.recompute:
        return product(*(range(layers + 1) for layers in split))
    return iter([(None,) * len(split)])


def layouts(place, asked) -> Iterator[TrainingPlan]:
    """Yield every shape of one pipeline: degrees, copies, depth, microbatch, order of domains; one split each.

    Where the job fixes the stages of domains: of all these domains.
    """
    fixed = dict(asked.pins.stages or ())
    batch, count = asked.global_batch, len(asked.layers)
    experts = [1, 2, 4] if asked.spec.experts else [1]
    orders = [order for k in range(1, len(place.domains) + 1) for order in permutations(place.domains, k)]
    shapes = product(orders, (1, 2, 4), pieces(place, asked), ContextExchange, experts, asked.recompute)
    for order, tensor, context, exchange, expert, recompute in shapes:
        widest = max(site.devices_per_node for site in place.domains)
        if tensor > widest or (context == 1 and exchange != "ring"):
            continue
        every = [room(site, tensor, context) // fixed.get(site.name, 1) for site in place.domains]
        if fixed and {site.name for site in order} != set(fixed):
            continue
        most = min(max(every), batch)
        used_up = {each // parts for each in every for parts in (1, 2, 3, 4, 6, 8)}
        for copies in (r for r in range(1, most + 1) if r & (r - 1) == 0 or r in used_up):
            deepest = max(every) // copies
            fullest = -(-(count - 2) // max(deepest, 1))  # of the blocks
            caps = {min(cap, deepest) for cap in (1, 2, 4, 8, count, deepest, -(-(count - 2) // fullest))}
            share = -(-batch // copies)
            sizes = [s for s in range(1, share + 1) if s & (s - 1) == 0 or share % s == 0]
            for cap, size, is_least in product(caps, sizes, (False, True)):
                used = -(-batch // (size * -(-share // size))) if is_least else copies
                depths = [min(room(site, tensor, context) // used, fixed.get(site.name, cap)) for site in order]
                if fixed and depths != [fixed[site.name] for site in order]:
                    continue
                if 0 in depths or sum(depths) > count:
                    continue
                where = [site for site, depth in zip(order, depths, strict=True) for _ in range(depth)]
                stages = tuple(Stage(site.name, 0, 0, width(site, tensor), 0, context) for site in where)
                yield TrainingPlan(
                        (Pipeline(stages, used, -(-batch // (size * used))),), size, recompute=recompute,
                        context_exchange=exchange, expert_parallel=expert,
                    )  # fmt: skip


def every_plan(place, asked, *, schedules) -> list[TrainingPlan]:
    """All legal plans of one pipeline: every split, schedule and ZeRO stage of every layout."""
    model, plans = StepModel(place, asked), []
    for shape in layouts(place, asked):
        [pipeline] = shape.pipelines
        depth, count = len(pipeline.stages), pipeline.microbatches
        alone = pipeline.replicas * pipeline.stages[0].context_parallel == 1
        zeros = asked.zero_stages[:1] if alone else asked.zero_stages
        # Inside one domain the search leaves GPipe out.
        crosses = len(pipeline.domains) > 1
        orders = [each for each in schedules if crosses or each is not Schedule.GPIPE]
        ways = product(cuts(len(asked.layers), depth), orders, zeros)
        for split, schedule, zero, again in ((*way, k) for way in ways for k in recomputed(asked, shape, way[0])):
            ahead = [count - 1] * depth if schedule is Schedule.GPIPE else range(depth - 1, -1, -1)
            firsts = np.cumsum([0, *split]).tolist()
            stages = tuple(
                replace(
                    stage, first_layer=first, num_layers=layers, warmup=min(warm, count - 1), recompute_layers=k
                )
                for stage, first, layers, warm, k in zip(
                    pipeline.stages, firsts, split, ahead, again, strict=False
                )
            )
            plan = replace(
                shape, pipelines=(replace(pipeline, stages=stages),), schedule=schedule, zero_stage=zero
            )
            if schedule is Schedule.DUAL_PIPE_V:
                plan = replace(plan, virtual_stages=2)
            plan = plan.with_samples(asked.global_batch)
            if not misfits(model, plan) and not shortfalls(model, plan):
                plans.append(plan)
    return plans


def least_s(place, asked, plans) -> float:
    return min((report.step_time_s for report in StepModel(place, asked).reports(plans)), default=np.inf)


def planned(place, asked):
    return plan_training(place, asked, clock=lambda: 0.0)


@pytest.mark.long("every plan of small fleets, of the whole space")
@examples(25)
@given(st.integers(0, 10**6))
def test_in_one_domain_the_search_finds_the_best_of_all_plans(seed):
    place, asked = case(seed)
    plans = every_plan(place, asked, schedules=asked.schedules)
    least, answer = least_s(place, asked, plans), planned(place, asked)
    assert (answer.best is None) == (not plans)
    if answer.best is not None:
        assert least * (1 - 1e-9) <= answer.best.score <= least * (1 + TOLERANCE)
        assert answer.search.bound <= least * (1 + 1e-9)


@pytest.mark.long("every plan of small fleets, of the whole space")
@examples(12)
@given(st.integers(0, 10**6))
def test_over_two_domains_no_pipeline_beats_the_plan_or_its_bound(seed):
    """The plan may be better: it may share the batch."""
    place, asked = case(seed, sites=2)
    plans = every_plan(place, asked, schedules=asked.schedules)
    least, answer = least_s(place, asked, plans), planned(place, asked)
    assert answer.best is not None or not plans
    if answer.best is not None:
        assert answer.best.score <= least * (1 + TOLERANCE)
        assert answer.search.bound <= least * (1 + 1e-9)


@pytest.mark.long("every plan of small fleets, of the whole space")
@examples(12)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]))
def test_with_the_stages_of_each_domain_fixed_no_pipeline_beats_the_plan_or_its_bound(seed, first, second):
    place, asked = case(seed, sites=2)
    asked = replace(asked, pins=Pins(stages=(("a", first), ("b", second))))
    plans = every_plan(place, asked, schedules=asked.schedules)
    least, answer = least_s(place, asked, plans), planned(place, asked)
    assert answer.best is not None or not plans
    if answer.best is not None:
        assert answer.best.plan.keeps(asked.pins)
        assert answer.best.score <= least * (1 + TOLERANCE)
        assert answer.search.bound <= least * (1 + 1e-9)


@pytest.mark.long("every plan of small fleets, of the whole space")
@examples(12)
@given(st.integers(0, 10**6))
def test_no_plan_of_another_order_of_work_beats_the_bound(seed):
    """Splits of weight gradients apart are not all built: the bound holds for all."""
    place, asked = case(seed)
    asked = replace(asked, schedules=(Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE))
    plans = every_plan(place, asked, schedules=asked.schedules)
    assert planned(place, asked).search.bound <= least_s(place, asked, plans) * (1 + 1e-9)


@examples(12)
@given(st.integers(0, 10**6))
def test_no_split_of_a_folded_pipeline_beats_the_bound(seed):
    """One split of each is built: the bound holds for all."""
    place, asked = case(seed)
    few = (Schedule.DUAL_PIPE_V, *asked.schedules[: seed % 2])
    asked = replace(asked, global_batch=4 + seed % 5, schedules=few, recompute=(NONE,))
    plans = [plan for plan in every_plan(place, asked, schedules=few) if plan.microbatch_size < 3]
    least, answer = least_s(place, asked, plans), planned(place, asked)
    assert answer.best is None or answer.search.bound <= least * (1 + 1e-9)
    if seed % 2 and answer.best is not None:  # 1F1B is there in every split
        plain = [plan for plan in plans if plan.schedule is not Schedule.DUAL_PIPE_V]
        assert answer.best.score <= least_s(place, asked, plain) * (1 + TOLERANCE)


@cache
def one_case():
    place = fleet(domain("a", 8, per_node=4, accelerator=card("small", tflops=20.0, gib=8.0)))
    _, asked = case(1)
    asked = replace(asked, spec=MIXTURE, layers=layer_table(MIXTURE, 4096), global_batch=3)
    return place, asked, every_plan(place, asked, schedules=asked.schedules)


@pytest.mark.long("every plan of small fleets, of the whole space")
@pytest.mark.parametrize(
    "pins",
    [Pins(context=4), Pins(context=2, tensor=2), Pins(expert=4), Pins(context=2, expert=2), Pins(expert=1),
     Pins(context=1, pipeline=2), Pins(context=2, microbatch=2), Pins(tensor=1, data=2, context=4, expert=4)],
    ids=str,
)  # fmt: skip
def test_what_a_job_fixes_is_the_best_of_the_plans_that_have_it(pins):
    place, asked, every = one_case()
    plans = [plan for plan in every if plan.keeps(pins)]
    answer = planned(place, replace(asked, pins=pins))
    assert answer.best is not None
    assert answer.best.plan.keeps(pins)
    assert answer.best.score <= least_s(place, asked, plans) * (1 + TOLERANCE)


@pytest.mark.long("every plan of small fleets, of the whole space")
@examples(8)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]))
@example(3849, 2)
def test_more_devices_of_a_domain_never_make_a_step_of_so_many_stages_slower(seed, depth):
    """Sums between copies of a domain are free: with more copies they may take longer than the copies save."""
    rng = np.random.default_rng(seed)
    small = card("small", tflops=100.0, gib=float(rng.choice([12.0, 40.0])))
    per_node, nodes = int(rng.choice([1, 2, 4])), int(rng.integers(1, 8))
    one = replace(
        domain("a", nodes * per_node, per_node=per_node, accelerator=small),
        intra_bandwidth_bytes_per_s=1e30, intra_latency_s=0.0,
        network_bandwidth_bytes_per_s=1e30, network_latency_s=0.0,
    )  # fmt: skip
    others = [replace(one, name="b")] if rng.random() < 0.5 else []
    asked = job(
        layers(int(rng.integers(4, 14)), mparams=float(rng.choice([50.0, 200.0]))),
        batch=int(rng.choice([8, 24, 64, 100])), recompute=(NONE, FULL), pins=Pins(pipeline=depth),
    )  # fmt: skip
    links = {"gbps": float(rng.choice([10.0, 400.0])), "ms": 1.0}
    steps = []
    for more in range(3):
        wider = replace(one, num_devices=one.num_devices + more * per_node)
        best = planned(fleet(wider, *others, **links), asked).best
        steps.append(best.score if best is not None else np.inf)
    assert steps[1] <= steps[0] * (1 + TOLERANCE)
    assert steps[2] <= steps[1] * (1 + TOLERANCE)


@pytest.mark.long("every plan of small fleets, of the whole space")
def test_stages_that_would_only_wait_are_left_out():
    """More stages without a layer less in the fullest take longer than fewer."""
    small = card("small", tflops=100.0, gib=12.0)
    one = replace(domain("a", 40, accelerator=small), network_bandwidth_bytes_per_s=5e9)
    asked = job(layers(11, mparams=200.0), batch=100, recompute=(NONE, FULL))
    steps = []
    for devices in range(40, 72, 8):
        wider = replace(one, num_devices=devices)
        best = planned(fleet(wider, replace(one, name="b"), gbps=10, ms=1.0), asked).best
        assert best is not None
        steps.append(best.score)
    assert all(later <= earlier * (1 + TOLERANCE) for earlier, later in pairwise(steps))
