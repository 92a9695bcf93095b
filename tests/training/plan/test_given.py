"""A plan that the user brings: what is wrong with it, and how far it is from the best."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from strata.errors import BadFile
from strata.training.plan.compare import plan_request
from strata.training.plan.exact.problem import Problem
from strata.training.plan.given import evaluate_given, read_given
from strata.training.plan.objective import Scales
from strata.training.plan.planned import PlanRequest
from strata.training.plan.planner import plan_training
from strata.workload.huggingface import model
from strata.workload.job import Limits, Schedule
from strata.workload.pins import Pins
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import card, domain, fleet, job, layers
from tests.support.laws import examples
from tests.support.small_cases import small_case
from tests.support.training_plans import plan_data

PLACE = fleet(domain("a", 16), domain("b", 8))
JOB = job(layers(8), batch=32)
HEAD = "apiVersion: strata/v1alpha1\nkind: TrainingLayout\n"


@pytest.fixture
def layout(tmp_path):
    def write(text: str, place=PLACE, asked=JOB):
        path = tmp_path / "layout.yaml"
        path.write_text(HEAD + text)
        return read_given(path, place, asked)

    return write


def tokens(plan, place=PLACE, asked=JOB):
    return [reason.token for reason in evaluate_given(plan, "p", place, asked, Scales()).faults]


def pipeline(*stages, replicas=1, microbatches=32):
    return Pipeline(tuple(stages), replicas, microbatches)


def test_a_layout_is_what_its_degrees_mean(layout):
    plan = layout("domain: a\ntensor: 4\npipeline: 2\ndata: 2\nmicrobatch: 2\nzero: 1\n")
    stages = (Stage("a", 0, 5, 4, 1), Stage("a", 5, 5, 4, 0))
    assert plan == TrainingPlan((Pipeline(stages, 2, 8),), 2, zero_stage=1)
    assert tokens(plan) == []


def test_a_folded_layout_ends_where_it_begins(layout):
    plan = layout("domain: a\npipeline: 2\nschedule: dualpipev\n")
    assert [s.num_layers for s in plan.pipelines[0].stages] == [6, 4]
    assert plan.held_layers(plan.pipelines[0]) == ((range(3), range(7, 10)), (range(3, 5), range(5, 7)))
    assert tokens(plan) == []


def test_what_a_folded_plan_lacks_is_said():
    stages = [Stage("a", 0, 9, 1, 1), Stage("b", 9, 1, 1)]
    plan = TrainingPlan((pipeline(*stages, microbatches=3),), 1, Schedule.DUAL_PIPE_V)
    faults = evaluate_given(plan, "p", PLACE, JOB, Scales()).faults
    assert [str(reason) for reason in faults] == [
        "dualpipev needs two chunks a stage, and the plan has 1",
        "dualpipev needs stages in one domain, and the plan's lie in a, b",
        "dualpipev needs two microbatches a stage, and 2 stages have 3",
        "dualpipev needs two layers on each stage",
    ]


def test_stages_of_several_domains_stand_in_their_order(layout):
    plan = layout("domains: [a, b]\npipeline: 3\nstages: [2, 1]\nlayers: [2, 3, 3]\ndata: 4\n")
    (chain,) = plan.pipelines
    assert [(s.domain, s.first_layer, s.num_layers) for s in chain.stages] == [
        ("a", 0, 3),
        ("a", 3, 3),
        ("b", 6, 4),
    ]


def test_copies_in_several_domains_are_a_pipeline_each(layout):
    plan = layout("domains: [a, b]\nacross: data\ndata: 8\n")
    assert [(p.domains, p.replicas, p.microbatches) for p in plan.pipelines] == [(("a",), 4, 4), (("b",), 4, 4)]
    assert tokens(plan) == []


def test_a_last_microbatch_may_be_short_and_none_may_be_missing(layout):
    assert tokens(layout("domain: a\ndata: 2\nmicrobatch: 3\n")) == []
    assert tokens(layout("domain: a\ndata: 2\nmicrobatches: 20\n")) == ["batch-differs"]
    assert tokens(layout("domain: a\ndata: 2\nmicrobatches: 8\n")) == ["batch-differs"]


def test_latency_aware_warm_ups_are_those_the_planner_takes(layout):
    plan = layout("domains: [a, b]\npipeline: 2\nschedule: 1f1b-la\n")
    assert plan.pipelines[0].stages[0].warmup > 1


def test_without_domains_there_must_be_one_only(layout):
    assert layout("data: 2\n", fleet(domain("a", 16))).domains == ("a",)
    with pytest.raises(BadFile, match="add `domains: a` or a list"):
        layout("data: 2\n")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("domain: aa\n", ["3:1: domain: no domain 'aa' in the fleet (did you mean 'a'?)"]),
        ("domain: a\ndata: 5\n", ["4:1: data: 5 copies do not divide the job's global batch of 32 sequences"]),
        ("domain: a\npipeline: 9\n", ["4:1: pipeline: more stages than the model has transformer blocks (8)"]),
        ("domains: [a, b]\npipeline: 3\n",
         ["4:1: pipeline: 3 stages cannot be shared by 2 domains alike; add `stages:`, one number each"]),
        ("domain: a\nmodel: other\nlayers: [4, 4]\n",
         ["4:1: model: a layout of other, and the job trains ",
          "5:1: layers: 8 blocks on 2 stages, where there are 8 on 1"]),
        ("domain: a\nexpert: 2\ncontext: 9999999\n",
         ["4:1: expert: the job's model has no experts",
          f"5:1: context: more ranks than a sequence has tokens ({JOB.sequence_length})"]),
        ("domain: a\ntensors: 2\n", ["4:1: tensors: unknown key (did you mean 'tensor'?)"]),
    ],
)  # fmt: skip
def test_what_no_layout_can_mean_is_refused_where_it_stands(layout, text, faults):
    with pytest.raises(BadFile) as caught:
        layout(text)
    assert [f"{f.line}:{f.column}: {f.where}: {f.message}" for f in caught.value.faults] == faults


def test_heads_of_linear_attention_must_be_divided_too():
    """Qwen3-Next: 16 heads that attend, and 16 of linear keys; here the keys have 4."""
    hybrid = model("qwen3-next-80b-a3b")
    few = replace(hybrid, linear=replace(hybrid.linear, key_heads=4))
    plan = TrainingPlan((pipeline(Stage("a", 0, 10, 8)),), 1)
    for spec, said in (
        (hybrid, []),
        (few, ["tensor parallel 8 does not divide the 4 linear key heads; 4 does"]),
    ):
        asked = replace(JOB, spec=spec, num_heads=spec.divided_heads)
        faults = evaluate_given(plan, "p", PLACE, asked, Scales()).faults
        assert [str(fault) for fault in faults] == said


def test_key_value_heads_must_be_divided_or_copied():
    phi = replace(model("llama-3.1-8b"), num_heads=40, num_kv_heads=10)
    asked = replace(JOB, spec=phi, num_heads=40)
    plan = TrainingPlan((pipeline(Stage("a", 0, 10, 4)),), 1)
    faults = evaluate_given(plan, "p", PLACE, asked, Scales()).faults
    said = "tensor parallel 4 neither divides the 10 key-value heads nor is a multiple of them; 2 does or is"
    assert [str(fault) for fault in faults] == [said]
    assert {config.tensor_parallel for config in Problem.of(PLACE, asked).configs} == {1, 2}
    assert {config.tensor_parallel for config in Problem.of(PLACE, JOB).configs} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("plan", "asked", "expected"),
    [
        (TrainingPlan((pipeline(Stage("c", 0, 10, 1)),), 1), JOB, ["no-such-domain"]),
        (TrainingPlan((pipeline(Stage("a", 0, 4, 1), Stage("a", 5, 4, 1)),), 1), JOB,
         ["layers-not-covered", "warmup-rises"]),
        (TrainingPlan((pipeline(Stage("a", 0, 10, 5)),), 1), JOB, ["heads-not-divided"]),
        (TrainingPlan((pipeline(Stage("a", 0, 10, 16)),), 1), JOB, ["tensor-across-nodes"]),
        (TrainingPlan((pipeline(Stage("b", 0, 10, 4), replicas=4, microbatches=8),), 1), JOB, ["devices-short"]),
        (TrainingPlan((pipeline(Stage("a", 0, 10, 1), microbatches=4),), 1), JOB, ["batch-differs"]),
        (TrainingPlan((pipeline(Stage("a", 0, 10, 1), microbatches=64),), 1), JOB, ["batch-differs"]),
        (TrainingPlan((pipeline(Stage("a", 0, 10, 1)),), 1), replace(JOB, pins=Pins(tensor=2)), ["pins-not-kept"]),
        (TrainingPlan((pipeline(Stage("a", 0, 10, 1)),), 1),
         replace(JOB, limits=Limits(domains=frozenset("b"), tokens_per_s=1e15)),
         ["domain-not-allowed", "too-slow"]),
        (TrainingPlan((pipeline(Stage("a", 0, 10, 16), microbatches=4),), 1), JOB,
         ["tensor-across-nodes", "batch-differs"]),
    ],
)  # fmt: skip
def test_everything_that_is_wrong_is_said(plan, asked, expected):
    assert tokens(plan, asked=asked) == expected


def test_a_link_that_is_missing_and_memory_are_named():
    apart = fleet(domain("a", 16, accelerator=card(gib=8.0)), domain("b", 8), links=[])
    assert tokens(TrainingPlan((pipeline(Stage("a", 0, 5, 1, 1), Stage("b", 5, 5, 1)),), 1), apart) == [
        "link-missing", "link-missing"
    ]  # fmt: skip
    two = TrainingPlan((pipeline(Stage("a", 0, 10, 1)), pipeline(Stage("b", 0, 10, 1))), 1)
    assert tokens(two, apart) == ["no-sum-between"]
    assert tokens(TrainingPlan((pipeline(Stage("a", 0, 10, 1)),), 1), apart) == ["memory-exceeded"]


def test_a_layout_the_job_does_not_ask_for_is_a_note_and_no_fault(layout):
    plan = layout("domain: a\ndata: 2\nzero: 3\nrecompute: full\n")
    given = evaluate_given(plan, "p", PLACE, JOB, Scales())
    assert given.faults == ()
    assert [reason.data["choice"] for reason in given.notes] == ["zero 3", "recompute full"]


def test_the_distance_is_from_the_best_plan_and_from_the_bound(tmp_path):
    path = tmp_path / "layout.yaml"
    path.write_text(HEAD + "domain: b\ntensor: 2\npipeline: 2\ndata: 2\n")
    request = PlanRequest(baselines=False, given=str(path))
    report = plan_request(PLACE, JOB, request, clock=lambda: 0.0)
    data = report.to_dict(request, {})
    assert data["given"]["faults"] == []
    assert data["given"]["ratio"] == data["given"]["plan"]["step_time_s"] / data["plans"][0]["step_time_s"] > 1
    assert data["given"]["bound_ratio"] >= data["given"]["ratio"]


@pytest.mark.long("a law over many plans")
@examples(30)
@drawn(st.integers(0, 10**6))
def test_nothing_is_wrong_with_what_the_planner_itself_makes(seed):
    place, asked = small_case(seed)
    answer = plan_training(place, asked, clock=lambda: 0.0)
    for item in answer.plans:
        assert tokens(item.plan, place, asked) == []


def test_a_saved_plan_is_read_and_one_of_another_model_refused(tmp_path):
    plan = TrainingPlan((pipeline(Stage("a", 0, 10, 1)),), 1)
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(plan_data(PLACE, JOB, plan)))
    assert read_given(path, PLACE, JOB) == plan
    with pytest.raises(BadFile, match="a plan of a model whose num_layers is 10; that of the job's is 14"):
        read_given(path, PLACE, job(layers(12)))
    in_use = PlanRequest(planner="hi-ppo", in_use=str(path))
    with pytest.raises(BadFile, match="num_layers is 10"):
        plan_request(PLACE, job(layers(12)), in_use, clock=lambda: 0.0)


def test_what_is_no_plan_says_what_would_be_one(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("kind: TrainingJob\n")
    with pytest.raises(BadFile, match="neither a TrainingPlan nor a TrainingLayout") as caught:
        read_given(path, PLACE, JOB)
    assert "kind: TrainingLayout" in caught.value.hint


def test_interleaved_layouts_keep_their_chunks(layout):
    plan = layout("domain: a\npipeline: 4\nschedule: interleaved\nvirtual_stages: 2\n")
    assert (plan.schedule, plan.virtual_stages) == (Schedule.INTERLEAVED, 2)
