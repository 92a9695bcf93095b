from __future__ import annotations

from dataclasses import replace
from itertools import combinations, islice, pairwise, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.fleet.fleet import Link
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.memory_fit import fitting, without_recomputation
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Search
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.unit import Units
from strata.training.plan.objective import Scales, money
from strata.workload.job import Objective, Recompute, Schedule
from tests.support.builders import GBPS, card, domain, fleet, job, layers, link
from tests.support.laws import examples
from tests.support.small_cases import crowded_case, small_case

EPS = 1e-9
BOTH = (Recompute.NONE, Recompute.FULL)


def sharings(problem: Problem):
    """Every sharing that can be built: its space, the position of its bound, the plan and the report."""
    space = ShardSpace(problem, tuple(range(len(problem.fleet.domains))))
    for way in range(len(space.ways)):
        for group in range(len(space.groups)):
            plan = space.build(space.sharing(way, group))
            if plan is not None:
                yield space, (way, group), plan, problem.model.reports([plan])[0]


@pytest.mark.long("every sharing of small fleets")
@examples(60)
@given(st.integers(0, 10**6))
def test_no_sharing_beats_its_bounds(seed):
    problem = Problem.of(*small_case(seed))
    for space, (way, group), plan, report in sharings(problem):
        assert space.bounds()[way, group] <= report.step_time_s * (1 + EPS)
        assert space.free_bound_s() <= report.step_time_s * (1 + EPS)
        common = space.ways[way].common
        floor_s, floor_usd = space.floors()[common]
        assert max(floor_s, space.least_s(common)) <= report.step_time_s * (1 + EPS)
        least_usd = space.least_usd(range(len(space.ways)), space.bounds())[way, group]
        assert floor_usd * (1 - EPS) <= least_usd <= money(report) * (1 + EPS)
        most_use = space.most_utilization(range(len(space.ways)), space.bounds())[way, group]
        assert most_use >= report.utilization * (1 - EPS)
        assert problem.model.bounds([plan])[0].step_time_s <= report.step_time_s * (1 + EPS)
        assert problem.model.fits(plan)


@examples(24)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(Schedule.ONE_F_ONE_B,), (Schedule.GPIPE, Schedule.LATENCY_AWARE), tuple(Schedule)]),
)
def test_no_sharing_of_stages_that_wait_for_each_other_beats_its_own_bound(seed, schedules):
    """Over the network of a domain all that is in flight makes its round trip, unless that is the whole batch."""
    place, asked = crowded_case(seed)
    rng = np.random.default_rng(seed + 1)
    slow = float(rng.choice([1e8, 1e9, 1e10]))
    domains = (replace(each, network_bandwidth_bytes_per_s=slow, devices_per_node=1) for each in place.domains)
    asked = replace(asked, schedules=schedules, global_batch=int(rng.integers(4, 13)))
    problem = Problem.of(replace(place, domains=tuple(domains)), asked)
    for space, at, _, report in islice(sharings(problem), 8):
        own_s = space.own_bound_s(*at, limit_s=2 * report.step_time_s)
        assert own_s <= report.step_time_s * (1 + EPS)


@examples(30)
@example(58254)  # split for the whole batch, two stages are slower than in the split for its few microbatches
@given(st.integers(0, 10**6))
def test_no_sharing_beats_the_bounds_from_before_it_was_built(seed):
    problem = Problem.of(*small_case(seed))
    space = ShardSpace(problem, everything(problem))
    bounds = space.bounds()
    ways_and_groups = np.argwhere(np.isfinite(bounds)).tolist()
    plans = {(way, group): space.build(space.sharing(way, group)) for way, group in ways_and_groups}
    built = {at: plan for at, plan in plans.items() if plan is not None}
    for at, report in zip(built, problem.model.reports(list(built.values())) if built else (), strict=True):
        assert bounds[tuple(at)] <= report.step_time_s * (1 + EPS)


@examples(60)
@given(st.integers(0, 10**6))
def test_shapes_of_a_unit_fit_where_pipelines_over_its_domains_do(seed):
    problem = Problem.of(*small_case(seed))
    space = ShardSpace(problem, everything(problem))
    for unit, common in product(space.units, space.commons):
        shapes = Units(problem).shapes
        chain = ChainSpace(problem, tuple(sorted(unit)))
        whole, fitting = shapes._fitting(unit, common)
        each = [whole.config(row, common) for row in range(len(whole.configs))]
        fits = [
            config.data_parallel * config.microbatch_size <= problem.job.global_batch
            and chain.may_fit(config, whole.total[row : row + 1])[0]
            and all(problem.layers(one, config) is not None for one in chain.domains)
            for row, config in enumerate(each)
        ]
        assert fitting.tolist() == np.flatnonzero(fits).tolist()


@pytest.mark.long("every sharing of small fleets")
@example(2453)  # the fastest shapes have more copies than the batch has samples
@examples(30)
@given(st.integers(0, 10**6))
def test_few_shapes_are_enough_for_a_plan_wherever_there_is_one(seed):
    problem = Problem.of(*small_case(seed, objective=Objective.TIME))
    space = ShardSpace(problem, everything(problem))
    for way in range(len(space.ways)):
        for group in range(len(space.groups)):
            some = space.build_within(way, group, limit_s=np.inf, is_thorough=False)
            assert (some is None) == (space.build(space.sharing(way, group)) is None)


@examples(30)
@given(st.integers(0, 10**6))
def test_shapes_built_for_a_closer_bound_of_all_sharings_leave_it_one(seed):
    problem = Problem.of(*small_case(seed, objective=Objective.TIME))
    best_s = min((report.step_time_s for *_, report in sharings(problem)), default=np.inf)
    space = ShardSpace(problem, everything(problem))
    loose_s = space.free_bound_s()
    assert loose_s <= space.free_bound_s(enough_s=best_s) * (1 + EPS)
    assert space.free_bound_s(enough_s=np.inf) <= best_s * (1 + EPS)


@examples(24)
@example(7)
@example(1668)  # all layers recomputed under ZeRO 0, none under ZeRO 1
@given(st.integers(0, 10**6))
def test_no_share_of_the_batch_beats_the_bound_of_shapes_that_recompute_less_for_it(seed):
    """Every share, not only that which is picked: a unit of fewer microbatches than stages has fewer in flight."""
    problem = Problem.of(*crowded_case(seed))
    space, batch = ShardSpace(problem, everything(problem)), problem.job.global_batch
    bounds = space.bounds()
    for way, (group, units) in product(range(len(space.ways)), enumerate(space.groups)):
        sharing = space.sharing(way, group)
        ways = [space._units.inners(unit, sharing.way.common)[:4] for unit in units]
        for inners in product(*ways):
            most = [min(inner.room, -(-batch // inner.samples)) for inner in inners]
            counts = product(*(range(1, each + 1) for each in most))
            picks = [list(zip(inners, each, strict=True)) for each in counts]
            plans = [
                space.plans.plan(sharing, picked)
                for picked in picks
                if 0 <= sum(inner.samples * count for inner, count in picked) - batch < inners[0].samples
            ]
            plans = [plan for plan in plans if plan.num_samples == batch]
            for report in problem.model.reports(plans) if plans else ():
                assert bounds[way, group] <= report.step_time_s * (1 + EPS)


def test_a_share_of_few_microbatches_has_the_split_that_recomputes_least_for_it():
    """Of one microbatch 3 and 4 layers recompute less than 4 and 3: 5 % faster than plan and bound were."""
    problem = Problem.of(*crowded_case(3))
    space, at, best, report = min(sharings(problem), key=lambda item: item[3].step_time_s)
    pipelines = []
    for each in best.pipelines:
        first, last = each.stages
        stages = (replace(first, num_layers=3), replace(last, first_layer=3, num_layers=4))
        pipelines.append(replace(each, stages=stages))
    [other] = fitting(problem, replace(best, pipelines=tuple(pipelines)), (best.zero_stage,))
    other_s = problem.model.reports([other])[0].step_time_s
    assert space.bounds()[at] <= other_s * (1 + EPS)
    assert report.step_time_s <= other_s * (1 + EPS)


def test_a_domain_of_few_microbatches_is_bounded_as_if_it_recomputed_nothing():
    """Three stages have room for the activations of one microbatch in flight, not of three: it was 15 % off."""
    places = [domain(name, 6, per_node=1, accelerator=card(gib=9.0)) for name in "ab"]
    asked = job(layers(6, hidden_mib=128.0), batch=2, recompute=BOTH)
    found = list(sharings(Problem.of(fleet(*places, gbps=1000, ms=0), asked)))
    assert found
    for space, (way, group), _, report in found:
        assert space.bounds()[way, group] <= report.step_time_s * (1 + EPS)


def test_sharings_of_microbatches_that_take_long_have_floors_of_one():
    """A batch of 1,024 over two domains of 64 devices: a microbatch of 16 samples takes as long as all."""
    problem = Problem.of(fleet(domain("a", 64), domain("b", 64)), job(layers(8), batch=1024))
    floors, work = ShardSpace(problem, (0, 1)).floors(), problem.compute_cost(problem.configs[0]).work_s
    longest = max(floors, key=lambda common: common.microbatch_size)
    first_s = min(
        float(problem.compute_cost(config).work_s.max()) for config in problem.configs if config.common == longest
    )
    assert work.max() < first_s <= floors[longest][0] * (1 + EPS)


def test_a_leaf_of_a_star_sends_the_gradients_once_not_four_thirds_of_them():
    """A thin way out of b and c and a wide way in: the hub's sum takes less than a ring's share would."""
    pairs = [("a", "b", 900), ("b", "a", 1), ("a", "c", 900), ("c", "a", 1), ("b", "c", 0.01), ("c", "b", 0.01)]
    links = [Link(source, dest, gbps * GBPS, 0.0) for source, dest, gbps in pairs]
    problem = Problem.of(fleet(*(domain(name, 1) for name in "abc"), links=links), job(layers(4), batch=8))
    three = [(way, group) for _, (way, group), plan, _ in sharings(problem) if len(plan.pipelines) == 3]
    assert three
    for space, (way, group), _, report in sharings(problem):
        assert space.bounds()[way, group] <= report.step_time_s


def test_units_share_the_batch_by_their_speed_and_finish_together():
    slow, fast = domain("slow", 2, accelerator=card("slow", tflops=50)), domain("fast", 2)
    problem = Problem.of(fleet(slow, fast, gbps=1000), job(layers(4), batch=96))
    best = min(sharings(problem), key=lambda item: item[3].step_time_s)[2]
    samples = {p.domains[0]: p.microbatches * p.replicas * best.microbatch_size for p in best.pipelines}
    assert sum(samples.values()) == 96
    assert 1.6 < samples["fast"] / samples["slow"] < 2.4


def test_a_region_of_two_domains_holds_what_neither_could():
    tight = card(gib=10.0)
    near = {"region": "west", "accelerator": tight}
    problem = Problem.of(
        fleet(domain("a", 2, **near), domain("b", 2, **near), domain("c", 8), gbps=100, ms=1),
        job(layers(6), batch=8),
    )
    kinds = {plan.kind for _, _, plan, _ in sharings(problem)}
    assert kinds == {"nested"}


def test_a_domain_that_no_link_reaches_shares_nothing():
    links = link("a", "b", 5, 30) + link("c", "a", 5, 30)[:1]  # c may send but never receive
    problem = Problem.of(fleet(*(domain(name) for name in "abc"), links=links), job())
    found = list(sharings(problem))
    assert found
    assert all(set(plan.domains) == {"a", "b"} for _, _, plan, _ in found)
    assert all(np.isfinite(report.step_time_s) for *_, report in found)


@pytest.mark.parametrize("gib", [10.5, 11.0, 12.5])
def test_units_whose_fastest_shape_has_no_room_for_the_outer_state_exchange_in_another(gib):
    places = [domain(name, 4, accelerator=card(gib=gib)) for name in "ab"]
    problem = Problem.of(fleet(*places, gbps=10), job(layers(8), batch=16, local_steps=(8,)))
    space = ShardSpace(problem, (0, 1))
    seldom = [way for way in range(len(space.ways)) if space.ways[way].local_steps == 8]
    built = [space.build(space.sharing(way, 0)) for way in seldom]
    assert any(built)
    assert all(problem.model.fits(plan) for plan in built if plan is not None)
    within = [space.build_within(way, 0, limit_s=100.0) for way in seldom]
    assert [plan is None for plan in within] == [plan is None for plan in built]


def test_units_never_interleave_because_one_schedule_serves_them_all():
    problem = Problem.of(
        fleet(domain("a", 4), domain("b", 4)), job(layers(8), batch=16, schedules=tuple(Schedule))
    )
    assert all(plan.schedule is not Schedule.INTERLEAVED for _, _, plan, _ in sharings(problem))


def test_compression_and_local_steps_shorten_the_sum_between_domains():
    asked = job(layers(4), batch=32, gradient_compression=(1.0, 4.0), local_steps=(8,))
    found = {}
    for _, _, plan, report in sharings(Problem.of(fleet(domain("a"), domain("b"), gbps=1), asked)):
        key = (plan.gradient_compression, plan.local_steps)
        found[key] = min(found.get(key, np.inf), report.step_time_s)
    assert found[1.0, 1] > found[4.0, 1] > found[4.0, 8]
    assert found[1.0, 1] > found[1.0, 8]


def test_the_order_of_regions_and_domains_does_not_change_the_units():
    near = {"region": "west"}
    one = fleet(domain("a", **near), domain("b", **near), domain("c"))
    other = replace(one, domains=one.domains[::-1])
    names = [
        {frozenset(p.fleet.domains[i].name for i in unit) for unit in ShardSpace(p, (0, 1, 2)).units}
        for p in (Problem.of(one, job()), Problem.of(other, job()))
    ]
    assert names[0] == names[1] == {frozenset("a"), frozenset("b"), frozenset("c"), frozenset("ab")}


@examples(60)
@given(st.integers(0, 10**6))
def test_the_groups_are_all_sets_of_disjoint_units_that_links_could_connect(seed):
    space = ShardSpace(problem := Problem.of(*small_case(seed, most_domains=4)), everything(problem))
    bandwidth = problem.fleet.bandwidth_bytes_per_s()
    np.fill_diagonal(bandwidth, 0.0)

    def connected(group):
        inside = [i for unit in group for i in unit]
        apart = len(set(inside)) == len(inside)
        return apart and all(bandwidth[np.ix_(unit, inside)].any() for unit in group)

    sizes = range(2, len(space.members) + 1)
    every = [group for size in sizes for group in combinations(space.units, size) if connected(group)]
    assert list(space.groups) == every


def test_a_unit_too_slow_for_its_share_does_one_microbatch_in_the_shape_that_is_done_first():
    slow = domain("slow", 8, accelerator=card("slow", tflops=1))
    problem = Problem.of(fleet(slow, domain("fast", 32), gbps=1000), job(layers(8), batch=64, local_steps=(64,)))
    space = ShardSpace(problem, (0, 1))
    for way in range(len(space.ways)):
        sharing = space.sharing(way, 0)
        plan = space.build(sharing)
        [mine] = [pipeline for pipeline in plan.pipelines if pipeline.domains == ("slow",)]
        shapes = space._units.inners((0,), sharing.way.common)
        picked = next(shape for shape in shapes if same_shape(shape.plan.pipelines[0], mine))
        if mine.microbatches == 1:
            assert picked.fill_s == min(shape.fill_s for shape in shapes)
    assert mine.microbatches == 1


@pytest.mark.long("an exact search")
def test_a_region_far_apart_works_with_more_microbatches_under_way():
    """Classic 1F1B would wait for half a round trip at every microbatch, although no stage and no link is busy."""
    sites = [domain(name, 8, region=name[0]) for name in ("a1", "a2", "b1", "b2")]
    schedules = (Schedule.ONE_F_ONE_B, Schedule.LATENCY_AWARE)
    problem = Problem.of(fleet(*sites, gbps=100, ms=200), job(layers(32), batch=512, schedules=schedules))
    space = ShardSpace(problem, everything(problem))
    nested = [k for k, group in enumerate(space.groups) if [len(unit) for unit in group] == [2, 2]]
    assert nested
    for group in nested:
        plans = [space.build(space.sharing(way, group)) for way in range(len(space.ways))]
        best = min(zip(problem.model.reports(plans), plans, strict=True), key=lambda pair: pair[0].step_time_s)[1]
        waiting = replace(best, pipelines=tuple(replace(p, stages=classic(p.stages)) for p in best.pipelines))
        aware_s, classic_s = (report.step_time_s for report in problem.model.reports([best, waiting]))
        assert best.schedule is Schedule.LATENCY_AWARE
        assert aware_s < 0.95 * classic_s


def everything(problem):
    return tuple(range(len(problem.fleet.domains)))


def same_shape(one, other):
    return one.replicas == other.replicas and [s.tensor_parallel for s in one.stages] == [
        s.tensor_parallel for s in other.stages
    ]


def classic(stages):
    return tuple(replace(stage, warmup=len(stages) - 1 - k) for k, stage in enumerate(stages))


def test_of_many_domains_the_fast_ones_with_fast_links_between_them_are_a_group():
    cards = [card("slow", tflops=50), card("fast", tflops=400)]
    domains = [domain(f"d{i:02d}", accelerator=cards[i % 2]) for i in range(14)]
    near = {f"d{i:02d}" for i in range(1, 9, 2)}
    links = [
        each
        for a, b in combinations([one.name for one in domains], 2)
        for each in link(a, b, 100 if {a, b} <= near else 1, 10)
    ]
    problem = Problem.of(fleet(*domains, links=links), job())
    names = {
        frozenset(problem.fleet.domains[unit[0]].name for unit in group)
        for group in ShardSpace(problem, everything(problem)).groups
    }
    assert near in names
    assert {f"d{i:02d}" for i in range(1, 14, 2)} in names
    assert len(names) < 200


def test_a_sharing_costs_the_work_of_the_batch_where_it_costs_least_and_what_its_gradients_send():
    """One device a domain for the time of a step, which it was bounded by, is much less."""
    pair = fleet(domain("a", devices=64, price=4.0), domain("b", devices=64, price=2.0), gbps=100, ms=1)
    problem = Problem.of(pair, job(layers(8), batch=256, objective=Objective.COST))
    space, at, _, report = min(sharings(problem), key=lambda item: money(item[3]))
    least_usd = space.least_usd(range(len(space.ways)), space.bounds())[at]
    sent_usd = 2 * float(problem.job.layers.params.sum()) * problem.job.element_bytes * 0.02 / 1e9
    assert sent_usd < least_usd <= money(report) < 2 * least_usd


def splits_of(pipeline, layers_count):
    """The pipeline with its layers split in every way."""
    for cuts in combinations(range(1, layers_count), len(pipeline.stages) - 1):
        ends = pairwise((0, *cuts, layers_count))
        stages = zip(pipeline.stages, ends, strict=True)
        yield replace(pipeline, stages=tuple(replace(s, first_layer=a, num_layers=z - a) for s, (a, z) in stages))


@pytest.mark.long("every split of small fleets")
@examples(16)
@example(16)
@given(st.integers(0, 10**6))
def test_no_other_split_of_a_shared_batch_or_its_layers_refutes_the_proof(seed):
    """What no plan of a sharing beats stays in the gap: only those built were in it, and another was faster."""
    problem = Problem.of(*crowded_case(seed))
    count, batch = len(problem.job.layers), problem.job.global_batch
    found = Search(problem, Scales(), everything(problem), clock=lambda: 0.0, deadline=1.0).run()
    shared = [item.plan for item in found.by_set.values() if len(item.plan.pipelines) == 2]
    for plan in (each for each in shared if each.schedule is Schedule.ONE_F_ONE_B):
        for counts in product(range(1, batch + 1), repeat=2):
            deep = [replace(each, stages=classic(each.stages)) for each in plan.pipelines]
            pipelines = [each.with_microbatches(m) for each, m in zip(deep, counts, strict=True)]
            asked = replace(plan, pipelines=tuple(pipelines)).with_samples(batch)
            if asked.num_samples != batch:
                continue
            bare = without_recomputation(problem, asked)
            for some in product(*(splits_of(pipeline, count) for pipeline in (bare or asked).pipelines)):
                for fits in fitting(problem, replace(bare or asked, pipelines=some), problem.job.zero_stages):
                    assert found.bound <= problem.model.reports([fits])[0].step_time_s * (1 + EPS)
