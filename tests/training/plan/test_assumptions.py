from __future__ import annotations

from dataclasses import replace

import numpy as np

from strata.decision import Trust
from strata.fleet.catalogue import accelerator
from strata.fleet.fleet import NETWORK_BANDWIDTH
from strata.training.plan.assumptions import assumptions
from strata.training.plan.exact.problem import Problem
from strata.workload.huggingface import model
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.profile import LayerProfile, LayerTimes
from tests.support.builders import domain, fleet, job, layers, link

TWO = TrainingPlan((Pipeline((Stage("a", 0, 5, 1, 1), Stage("b", 5, 5, 1)), 1, 64),), 1)
ONE = TrainingPlan((Pipeline((Stage("a", 0, 10, 1),), 1, 64),), 1)
MEASURED = {
    pair: replace(one, trust=Trust.MEASURED) for pair, one in fleet(domain("a"), domain("b")).links.items()
}


def inputs(plan, place, asked=None):
    return [(one.input, one.trust) for one in assumptions(Problem.of(place, asked or job(layers(8))), plan)]


def test_layer_times_and_links_that_nobody_measured_are_named():
    place = fleet(domain("a"), domain("b"))
    assert inputs(TWO, place) == [
        ("layer times on card", Trust.ASSUMED),
        ("2 links between a, b", Trust.ANALYTIC),
    ]
    assert [name for name, _ in inputs(ONE, place)] == ["layer times on card"]


def test_what_would_measure_a_layer_is_a_command_that_takes_the_model():
    def how(name):
        asked = replace(job(layers(8)), spec=model(name), model_name=name)
        return assumptions(Problem.of(fleet(domain("a")), asked), ONE)[0].measure

    for timed in ("llama-3.1-8b", "deepseek-v3"):
        assert how(timed) == f"strata profile {timed}"
    assert how("qwen3-next-80b-a3b") == "strata calibrate LOG"


def test_a_card_without_units_for_bf16_is_taken_at_the_rate_of_fp16_and_that_is_said():
    place = fleet(domain("a", accelerator=accelerator("T4")), domain("b"))
    said = {
        precision: [one.value for one in assumptions(Problem.of(place, job(layers(8), precision=precision)), ONE)]
        for precision in ("bf16", "fp16")
    }
    assert said == {"bf16": ["from FLOPs of fp16: it has no units for bf16"], "fp16": ["from FLOPs"]}


def test_a_network_that_was_not_given_is_named_once_for_like_domains():
    silent = [domain(name, assumed=(NETWORK_BANDWIDTH,)) for name in "ab"]
    assert ("network inside a, b", Trust.ASSUMED) in inputs(TWO, fleet(*silent))


def test_devices_that_others_held_when_the_fleet_was_discovered_are_named():
    def free(number):
        place = fleet(domain("a", num_free_devices=number), domain("b"))
        return [one for one in assumptions(Problem.of(place, job(layers(8))), TWO) if "free" in one.input]

    (short,) = free(0)
    assert (short.input, short.value) == ("free devices of a", "1, of which 0 were free when it was discovered")
    assert free(1) == free(None) == []


def test_what_is_measured_is_not_named():
    times = LayerTimes(np.ones(10), np.ones(10), np.zeros(10))
    asked = job(layers(8), profile=LayerProfile({("card", 1, 1): times}))
    place = replace(fleet(domain("a"), domain("b")), links=MEASURED)
    assert inputs(TWO, place, asked) == []


def test_local_steps_rest_on_published_losses():
    plan = replace(TWO, pipelines=(ONE.pipelines[0], Pipeline((Stage("b", 0, 10, 1),), 1, 64)), local_steps=8)
    names = [name for name, _ in inputs(plan, fleet(domain("a"), domain("b"), links=link("a", "b", 1, 1)))]
    assert names == ["layer times on card", "2 links between a, b", "extra tokens of DiLoCo"]


def test_a_plan_is_as_good_as_the_network_it_assumes():
    times = LayerTimes(np.ones(10), np.ones(10), np.zeros(10))
    asked = job(layers(8), profile=LayerProfile({("card", 1, 1): times}))
    for assumed, trust in (((), Trust.ANALYTIC), ((NETWORK_BANDWIDTH,), Trust.ASSUMED)):
        problem = Problem.of(fleet(domain("a", assumed=assumed)), asked)
        assert problem.model.reports([ONE])[0].trust is trust
