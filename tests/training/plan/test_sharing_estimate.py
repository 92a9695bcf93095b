from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strata.fleet.catalogue import accelerator
from strata.fleet.schema import load_fleet
from strata.fleet.synthetic import random_fleet
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.unit import Units
from strata.training.plan.shortlist.branches import Builder
from strata.training.plan.shortlist.sharings import DataParallelEstimates
from strata.workload.job import Recompute, Schedule
from strata.workload.schema import load_job
from tests.support.builders import card, domain, fleet, job, layers


@pytest.mark.long("builds many sharings")
@pytest.mark.parametrize("seed", range(4))
def test_estimates_are_close_to_what_is_built(seed):
    sites = random_fleet(4, (card("x"), card("y", tflops=300)), np.random.default_rng(seed), devices=32)
    assumed = (Schedule.ONE_F_ONE_B, Schedule.LATENCY_AWARE)
    work = job(layers(8), batch=256, local_steps=(8,), schedules=assumed)
    problem = Problem.of(sites, work)
    builder = Builder(problem)
    branches = builder.branches
    times = branches.values[0]
    ratios = {"pipeline": [], "sharing": []}
    for row in np.argsort(times, kind="stable")[: 4 * 40 : 4]:
        reports = problem.model.reports(builder.plans(int(row)))
        if reports:
            kind = "sharing" if branches.config[row] < 0 else "pipeline"
            ratios[kind].append(min(report.step_time_s for report in reports) / times[row])
    assert ratios["pipeline"] or ratios["sharing"]
    for found in ratios.values():
        if found:
            assert 0.97 < np.median(found) < 1.03


def test_a_domain_alone_is_the_only_branch_where_there_is_no_other():
    sites = random_fleet(1, (card("x"),), np.random.default_rng(0), devices=32)
    branches = Builder(Problem.of(sites, job(layers(8), batch=32))).branches
    assert branches.single.all()
    assert len(branches.item)


@pytest.mark.parametrize("batch", [8, 32])
def test_sharings_of_few_microbatches_are_estimated_closely(batch):
    sites = random_fleet(5, (card("x"), card("y", tflops=300)), np.random.default_rng(batch), devices=64)
    problem = Problem.of(sites, job(layers(8), batch=batch, local_steps=(8, 64)))
    builder = Builder(problem)
    branches = builder.branches
    sharings = np.flatnonzero(branches.config < 0)
    best = sharings[np.argsort(branches.values[0, sharings], kind="stable")][:40]
    built = {int(row): plans for row in best if (plans := builder.plans(int(row)))}  # else a copy has no sample
    assert len(built) > 5
    step_s = [problem.model.reports(plans)[0].step_time_s for plans in built.values()]
    ratios = step_s / branches.values[0, list(built)]
    assert 0.98 < np.median(ratios) < 1.02
    assert np.mean(np.abs(ratios - 1) < 0.05) > 0.8


def test_whether_a_domain_holds_the_model_is_known_before_anything_is_built():
    sizes = (8, 16, 24, 32, 40, 48, 56, 64)
    a100 = accelerator("A100-SXM4-80GB")
    sites = fleet(*(domain(f"d{size}", size, accelerator=a100) for size in sizes))
    asked = replace(load_job("llama-3.1-70b"), recompute=(Recompute.NONE, Recompute.FULL))  # what estimates know
    problem = Problem.of(sites, asked).evenly_recomputed
    shards = ShardSpace(problem, tuple(range(len(sizes))))
    chains = ChainSpace(problem, shards.members)
    shapes = DataParallelEstimates(problem, shards, chains)._shapes
    units = Units(problem)
    held = {
        (key, unit): bool(units.inners((unit,), key)) == bool(table[0, unit].any())
        for key, table in shapes.items()
        if not key.holds_outer
        and not key.microbatch_size
        & (key.microbatch_size - 1)  # of other sizes only shapes are estimated whose shares they divide
        for unit in range(len(sizes))
    }
    assert held
    # An estimate has stages alike: within a few percent of a device's memory it may say either.
    assert np.mean(list(held.values())) > 0.98


def test_a_head_that_takes_longer_than_a_layer_is_not_cut():
    table = layers(16)
    table.forward_flops[-1] = 5 * table.forward_flops[1]
    problem = Problem.of(fleet(domain("a", 16)), job(table, batch=64))
    builder = Builder(problem)
    times = builder.branches.values[0]
    for row in range(len(times)):
        plans = builder.plans(row)
        reports = problem.model.reports(plans)
        # Of fewer microbatches than stages the estimate counts too little of the bubble.
        if reports and 8 < len(reports[0].stages) <= plans[0].pipelines[0].microbatches:
            assert times[row] > 0.9 * min(report.step_time_s for report in reports)


@pytest.mark.parametrize(("pieces", "ranks"), [(8, 1), (1, 8), (2, 8)])
def test_estimates_of_cut_sequences_and_spread_experts_are_close_to_what_is_built(pieces, ranks):
    work = load_job("qwen3-30b-a3b")
    work = replace(work, recompute=(Recompute.NONE,), schedules=(Schedule.ONE_F_ONE_B,), global_batch=64)
    problem = Problem.of(load_fleet("hub").only(["Qingyang"]), work).split(context=pieces, expert=ranks)
    builder = Builder(problem)
    times = builder.branches.values[0]
    built = ((time_s, builder.plans(row)) for row, time_s in enumerate(times.tolist()))
    reports = [(time_s, problem.model.reports(plans)[0]) for time_s, plans in built if plans]
    assert len(reports) > 3
    assert 0.97 < np.median([report.step_time_s / time_s for time_s, report in reports]) < 1.03
