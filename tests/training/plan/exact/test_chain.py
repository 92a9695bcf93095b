from __future__ import annotations

from dataclasses import replace

import pytest

from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.rows import build_chain, chains
from strata.workload.job import SEARCHED, Recompute, Schedule
from strata.workload.pins import Pins
from tests.support.builders import card, domain, fleet, job, layers

PLAIN = ParallelConfig(microbatch_size=1, tensor_parallel=1, data_parallel=1, cap=2, recompute=Recompute.NONE)


def built(place, asked, order=(0, 1), setting=PLAIN):
    return list(build_chain(Problem.of(place, asked), setting, order))


def test_each_schedule_is_a_vector_of_warm_ups():
    plans = built(fleet(domain("a", 2), domain("b", 2), ms=400), job(layers(14), batch=16))
    warmups = {plan.schedule: [stage.warmup for stage in plan.pipelines[0].stages] for plan in plans}
    assert warmups[Schedule.ONE_F_ONE_B] == [3, 2, 1, 0]
    assert warmups[Schedule.GPIPE] == [15] * 4
    deeper = warmups[Schedule.LATENCY_AWARE]
    assert deeper[1] - deeper[2] > 1  # the wide-area cut
    assert deeper[2:] == [2, 0] or deeper[2:] == [1, 0]


def test_inside_a_domain_latency_makes_no_schedule_worth_building():
    plans = built(fleet(domain("a", 2)), job(), (0,))
    assert {plan.schedule for plan in plans} == set(SEARCHED) - {Schedule.LATENCY_AWARE, Schedule.GPIPE}


def test_stages_interleave_in_as_many_chunks_as_their_layers_divide_into():
    two = fleet(domain("a", 2))
    chunks = [
        {plan.virtual_stages for plan in built(two, job(layers(count)), (0,))} - {1} for count in (3, 4, 8, 16, 32)
    ]
    assert chunks == [set(), {2}, {2, 4}, {2, 4, 8}, {2, 4, 8}]
    pinned = job(layers(6), pins=Pins(virtual_stages=3))
    assert [plan.virtual_stages for plan in built(two, pinned, (0,))] == [3]


def test_a_warm_up_never_exceeds_the_microbatches_there_are():
    for plan in built(fleet(domain("a", 2), domain("b", 2), ms=400), job(layers(14), batch=2)):
        assert max(stage.warmup for stage in plan.pipelines[0].stages) <= 1


def test_zero_is_used_where_an_update_shared_pays_for_the_weights_gathered_or_memory_asks_for_it():
    copies = ParallelConfig(1, 1, 4, 1, Recompute.NONE)
    roomy, tight = (domain("a", 4, accelerator=card(gib=gib)) for gib in (80.0, 14.0))
    slow = {"intra_bandwidth_bytes_per_s": 1e10}
    asked = job(layers(6, hidden_mib=1.0), batch=8)
    for site, stage in ((roomy, 1), (replace(roomy, **slow), 0), (replace(tight, **slow), 1)):
        assert [plan.zero_stage for plan in built(fleet(site), asked, (0,), copies)] == [stage]


def test_layers_move_to_the_larger_memory_where_the_fastest_split_does_not_fit():
    small, large = domain("a", 1, accelerator=card("s", gib=10.0)), domain("b", 1, accelerator=card("l"))
    plans = built(fleet(small, large), job(layers(8), batch=4))
    assert plans
    for plan in plans:
        first, second = plan.pipelines[0].stages
        assert first.num_layers < second.num_layers


def test_what_fits_under_no_schedule_says_how_much_is_missing_where():
    small = Problem.of(fleet(domain("a", 1, accelerator=card(gib=6.0))), job(layers(8)))
    (why,) = chains(small, PLAIN, (0,))
    assert callable(why)
    reason = why()
    assert reason.token == "memory-exceeded"
    assert reason.subject == "a"
    assert reason.data["need_bytes"] > reason.data["have_bytes"]


def test_more_stages_than_layers_are_no_pipeline():
    assert built(fleet(domain("a", 8)), job(layers(1)), (0,), ParallelConfig(1, 1, 1, 8, Recompute.NONE)) == []


@pytest.mark.parametrize(("count", "batch", "there"), [(2, 8, True), (2, 7, False), (8, 8, False)])
def test_interleaving_needs_whole_rounds_and_two_layers_a_stage(count, batch, there):
    setting = ParallelConfig(1, 1, 1, count, Recompute.NONE)
    plans = built(fleet(domain("a", count)), job(layers(6), batch=batch, schedules=tuple(Schedule)), (0,), setting)
    assert (Schedule.INTERLEAVED in {plan.schedule for plan in plans}) is there
