"""What if, of serving: settings of fleet and job, and how the two plans differ."""

from __future__ import annotations

import itertools
import math

import pytest

from strata.errors import UsageError
from strata.fleet.changes import apply_settings
from strata.serving.planning.planner import plan_serving
from strata.serving.planning.whatif import JOB_KEYS, RATIOS, compare
from strata.workload.serving_job import Demand, ServingJob
from tests.support.builders import domain, fleet
from tests.support.inference_models import served

JOB = ServingJob("chat", served("llama-3.1-8b"), Demand(4, 512, 128, tpot_goal_s=0.05))
FLEET = fleet(domain("a", 8), domain("b", 8))


def plan(hardware, asked):
    ticks = itertools.count()
    return plan_serving(hardware, asked, clock=lambda: next(ticks) * 1e-6)


def apply(hardware, asked, settings):
    return apply_settings(hardware, asked, settings, keys=JOB_KEYS)


def test_settings_are_made_and_said():
    hardware, asked, changes = apply(
        FLEET,
        JOB,
        ["domain.b=none", "job.batch=8", "job.rate=90/min", "job.goals.tpot=none", "job.goals.ttft=2s",
         "job.precision.weights=fp8", "job.memory_headroom=10%", "job.prompt=512"],
    )  # fmt: skip
    assert [one.name for one in hardware.domains] == ["a"]
    assert asked.demand == Demand(8, 512, 128, ttft_goal_s=2.0, tpot_goal_s=math.inf, rate_per_s=1.5)
    assert asked.model.weight_bytes.sum() == JOB.model.weight_bytes.sum() / 2
    assert asked.memory_headroom == 0.1
    assert [str(change) for change in changes] == [
        "domain.b: 8 card -> none",
        "job.batch: 4 sequences -> 8 sequences",
        "job.rate: 0/s -> 1.5/s",
        "job.goals.ttft: none -> 2s",
        "job.goals.tpot: 50ms -> none",
        "job.precision.weights: bf16 -> fp8",
        "job.memory_headroom: 8% -> 10%",
    ]


@pytest.mark.parametrize("key", ["prompt", "demand.prompt"])
def test_a_key_is_written_as_the_file_has_it_or_without_its_section(key):
    assert apply(FLEET, JOB, [f"job.{key}=1024"])[1].demand.prompt_tokens == 1024
    with pytest.raises(UsageError, match="did you mean 'batch'"):
        apply(FLEET, JOB, ["job.demand.bach=3"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("job.model=gpt2", "'model' is what the layer table was computed from: edit the job file instead"),
        ("job.bach=3", "unknown key 'bach' (did you mean 'batch'?)"),
        ("job.batch=0", "job.batch=0: "),
        ("job.precision.kv=int2", "job.precision.kv=int2: "),
        ("job.recompute=full", "unknown key 'recompute'"),
        ("domain.c.num_gpus=8", "no domain is named 'c'"),
    ],
)
def test_what_cannot_be_set_is_said(setting, said):
    with pytest.raises(UsageError) as caught:
        apply(FLEET, JOB, [setting])
    assert said in str(caught.value)


def test_positions_that_a_model_has_not_are_refused():
    learned = ServingJob("old", served("gpt2"), Demand(4, 512, 128))
    with pytest.raises(UsageError, match="learned positions for only 1024 tokens, but prompt and output are 2176"):
        apply(FLEET, learned, ["job.prompt=2048"])


def test_two_plans_are_compared_by_their_figures():
    old = plan(FLEET, JOB)
    hardware, asked, _ = apply(FLEET, JOB, ["domain.b=none"])
    new = plan(hardware, asked)
    found = compare(old, new)
    assert found.figures["tokens_per_s_ratio"] == new.estimate.tokens_per_s / old.estimate.tokens_per_s
    assert set(found.figures) == {f"{name}_ratio" for name in RATIOS}
    assert found.to_dict()["domains_removed"] == ["b"]
    assert found.domains["a"][1].share == 1.0
    assert "b leaves" in found.text
    same = compare(old, plan(FLEET, JOB))
    assert same.same_plan
    assert same.text.endswith("as before.")


def test_a_side_without_a_plan_has_no_ratios():
    hardware, asked, _ = apply(FLEET, JOB, ["domain.b=none", "domain.a.num_gpus=1", "job.batch=5000"])
    found = compare(plan(FLEET, JOB), plan(hardware, asked))
    assert set(found.figures.values()) == {None}
    assert found.text.startswith("No plan fits any more")
