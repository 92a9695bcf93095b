"""Plans that a running job may change to."""

from __future__ import annotations

import pytest

from strata.control.candidates import Candidates
from strata.control.elastic import with_smaller
from strata.fleet.schema import load_fleet
from strata.training.plan.planner import plan_training
from strata.workload.schema import load_job
from tests.support.builders import domain, fleet, job, layers


def test_a_domain_that_is_drained_leaves_a_plan_without_it():
    sites = fleet(domain("a", 2), domain("b", 2), gbps=1, ms=30)
    plans = Candidates.of(sites, job(layers(8), batch=16)).plans
    used = [set(plan.domains) for plan in plans]
    assert any("a" not in names for names in used)
    assert any("b" not in names for names in used)


def test_while_domains_are_free_a_job_has_a_plan_for_them():
    sites = fleet(*(domain(name, 2) for name in "abcde"), gbps=10, ms=1)
    plans = [set(plan.domains) for plan in Candidates.of(sites, job(layers(8), batch=16)).plans]
    assert all({name} in plans for name in "abcde")
    free = set("abcde") - plans[0]
    assert not free or any(names <= free for names in plans)


def test_each_domain_of_the_seed_has_a_plan_alone():
    seed = load_fleet("seed")
    alone = {
        plan.domains for plan in Candidates.of(seed, load_job("llama-3.1-8b")).plans if len(plan.domains) == 1
    }
    assert len(alone) == len(seed.domains)


def asked(tmp_path, model, *, sequence, batch):
    path = tmp_path / "job.yaml"
    path.write_text(
        f"apiVersion: strata/v1alpha1\nkind: TrainingJob\nname: a\nmodel: {model}\n"
        f"train: {{global_batch: {batch}, sequence: {sequence}}}\n"
    )
    return load_job(path)


@pytest.mark.long("plans real models")
@pytest.mark.parametrize(
    ("names", "model", "sequence", "batch"),
    [
        (("Qingyang", "Zhongwei"), "llama-3.1-8b", 131072, 8),
        (("Qingyang", "Chongqing"), "mixtral-8x7b", 8192, 512),
        (("East_DataCenter", "West_DataCenter"), "llama-3.1-8b", 131072, 8),
    ],
)
def test_pieces_of_sequences_and_spread_experts_are_among_the_plans(tmp_path, names, model, sequence, batch):
    """The loop did neither: on eight sites 131,072 tokens took it 12 times as long as what is planned."""
    sites = load_fleet("seed" if "East_DataCenter" in names else "hub").only(names)
    work = asked(tmp_path, model, sequence=sequence, batch=batch)
    best = plan_training(sites, work, clock=lambda: 0.0, rank=0).best
    plans = Candidates.of(sites, work)
    assert 1 / plans.nominal.max() <= 1.03 * best.report.step_time_s
    assert all(plans.model.fits(plan) for plan in with_smaller(plans).plans)


@pytest.mark.long("plans a real model")
def test_a_job_that_fits_nowhere_uncut_is_planned_soon(tmp_path):
    """Half a million tokens, which no device holds whole, kept the loop looking for minutes."""
    sites = load_fleet("hub").only(["Qingyang", "Zhongwei"])
    plans = Candidates.of(sites, asked(tmp_path, "llama-3.1-8b", sequence=524288, batch=8)).plans
    assert plans
    assert all(stage.context_parallel > 1 for plan in plans for stage in plan.pipelines[0].stages)


def test_plans_of_one_name_are_told_apart_by_their_devices():
    sites = fleet(domain("a", 4), domain("b", 1), gbps=1, ms=30)
    plans = with_smaller(Candidates.of(sites, job(layers(8), batch=16)))
    assert {"single a (4 devices)", "single a (1 device)", "single b"} <= set(plans.names)
