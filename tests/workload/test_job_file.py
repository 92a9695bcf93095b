from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile, UsageError
from strata.files import bundled_names, read_document
from strata.workload.huggingface import model
from strata.workload.job import Objective, Recompute, Schedule
from strata.workload.job_entries import TrainingJobFile
from strata.workload.profile import load_profile
from strata.workload.schema import BUNDLED_JOBS, job_from_document, load_job
from strata.workload.software import Software
from tests import ROOT

EXAMPLES = ROOT / "examples"

HEAD = """\
apiVersion: strata/v1alpha1
kind: TrainingJob
name: tiny
model: gpt2
"""
JOB = f"{HEAD}train: {{global_batch: 64, sequence: 1024}}\n"
LAYERS = 14
TIMES = {"forward_s": [0.1] * LAYERS, "backward_s": [0.2] * LAYERS, "update_s": [0] * LAYERS}
NEGATIVE, TEXT = ([bad, *[0] * (LAYERS - 1)] for bad in (-1, "1"))


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def faults(written):
    def load(text: str) -> list[str]:
        with pytest.raises(BadFile) as caught:
            load_job(written(text))
        return [f"{f.line}:{f.column}: {f.where}: {f.message}" for f in caught.value.faults]

    return load


def test_the_shortest_job_takes_its_defaults(written):
    job = load_job(written(JOB))
    assert (job.name, job.model_name, job.num_heads, len(job.layers)) == ("tiny", "gpt2", 12, LAYERS)
    assert (job.global_batch, job.sequence_length, job.tokens_per_step) == (64, 1024, 65536)
    assert (job.precision, job.optimizer, job.objective) == ("bf16", "adamw", Objective.TIME)
    assert job.recompute == (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    assert (job.local_steps, job.gradient_compression, job.zero_stages) == ((), (1.0,), (0, 1))
    assert (job.home, job.limits.domains, job.limits.cost_usd_per_step) == (None, None, None)
    assert (job.limits.memory_headroom, job.flops_efficiency, job.profile) == (0.08, None, None)


MIXTURE = JOB.replace("gpt2", "qwen3-30b-a3b")


def test_a_job_says_what_software_runs_it(written):
    assert load_job(written(JOB)).software == Software()
    mixed = load_job(
        written(f"{MIXTURE}software: {{framework: megatron-core, dispatcher: flex, gradients: fp32}}\n")
    )
    assert mixed.software == Software(transformer_engine=True, sorts_apart=False, wide_gradients=True)
    assert (mixed.gradient_bytes, mixed.state_bytes_per_param) == (4.0, 18.0)
    plain = load_job(written(f"{MIXTURE}software: {{framework: pytorch, compiled: false, fused_loss: true}}\n"))
    assert plain.software == Software(transformer_engine=False, fused_norms=False, fused_loss=True)
    # Megatron-Core weighs what experts make inside them, and keeps no copy of it.
    assert mixed.layers.activation_bytes[1] < plain.layers.activation_bytes[1]


@pytest.mark.parametrize(
    ("job", "said", "fault"),
    [
        (JOB, "dispatcher: flex", "software.dispatcher: gpt2 has no experts"),
        (JOB, "token_drop: true", "software.token_drop: gpt2 has no experts"),
        (MIXTURE, "framework: megatron-core, compiled: false", "software.compiled: is PyTorch's own"),
        (JOB, "framework: jax", "software.framework: "),
    ],
)
def test_software_that_does_not_go_with_the_model_or_its_framework_is_refused(faults, job, said, fault):
    [told] = faults(f"{job}software: {{{said}}}\n")
    assert fault in told


def test_everything_that_can_be_said_is_heard(written):
    job = load_job(
        written(f"""{HEAD}
train:
  global_batch: 64Ki tokens
  sequence: 1Ki
  precision: fp32
  optimizer: sgd
  recompute: full
  schedules: [gpipe, interleaved]
  sync: {{mode: [sync, diloco], local_steps: [4, 16], compress: [none, int8, int4]}}
  zero: [0, 3]
home: east
goal: {{minimize: tchebycheff, weights: [1, 0, 2]}}
limits: {{cost: $12, tokens_per_s: 2M, domains: [east, west], memory_headroom: 10%}}
efficiency: 0.5
""")
    )
    assert (job.global_batch, job.sequence_length, job.precision, job.optimizer) == (64, 1024, "fp32", "sgd")
    assert job.recompute == (Recompute.FULL,)
    assert job.schedules == (Schedule.GPIPE, Schedule.INTERLEAVED)
    assert (job.local_steps, job.gradient_compression, job.zero_stages) == ((4, 16), (1.0, 4.0, 8.0), (0, 3))
    assert (job.home, job.objective, job.weights) == ("east", Objective.TCHEBYCHEFF, (1, 0, 2))
    assert (job.limits.cost_usd_per_step, job.limits.tokens_per_s) == (12, 2e6)
    assert job.limits.domains == {"east", "west"}
    assert (job.limits.memory_headroom, job.flops_efficiency) == (0.1, 0.5)
    assert job.layers.boundary_bytes[0] == 1024 * 768 * 4


def test_one_value_may_stand_for_a_list(written):
    train = (
        "train: {global_batch: 1, sequence: 8, sync: {mode: diloco, compress: int8}, zero: 2, schedules: gpipe}"
    )
    job = load_job(written(f"{HEAD}{train}\n"))
    assert (job.local_steps, job.gradient_compression) == ((8, 32, 128), (2.0,))
    assert (job.zero_stages, job.schedules) == ((2,), (Schedule.GPIPE,))


@given(sequence=st.integers(1, 1024), sequences=st.integers(1, 10_000))
def test_a_batch_in_tokens_is_the_same_in_sequences(tmp_path_factory, sequence, sequences):
    path = tmp_path_factory.getbasetemp() / "batch.yaml"
    path.write_text(f"{HEAD}train: {{global_batch: {sequence * sequences} tokens, sequence: {sequence}}}\n")
    assert load_job(path).global_batch == sequences


def test_a_model_path_starts_at_the_job_file(tmp_path, written):
    own = tmp_path / "models" / "own"
    own.mkdir(parents=True)
    (own / "config.json").write_text((EXAMPLES / "own-model" / "config.json").read_text())
    path = written(JOB.replace("gpt2", "models/own"))
    assert load_job(path).model_name == "own"
    assert job_from_document(read_document(path), tmp_path).model_name == "own"
    with pytest.raises(BadFile, match="no such file"):
        job_from_document(read_document(path), tmp_path / "elsewhere")


def test_all_faults_come_at_once_each_with_its_place(faults):
    text = """\
apiVersion: strata/v1alpha1
kind: TrainingJob
name: tiny
model: gpt3
train:
  global_batch: 0
  sequence: -4
  precison: bf16
  schedules: [1f1b, 1f1c]
  sync: {mode: [async], local_steps: [0]}
goal: {minimize: speed, weights: [0, 0, 0]}
limits: {cost: $0, memory_headroom: 120%}
efficiency: 1.5
"""
    assert [fault.split(": ")[:2] for fault in faults(text)] == [
        ["4:1", "model"],
        ["6:3", "train.global_batch"],
        ["7:3", "train.sequence"],
        ["8:3", "train.precison"],
        ["9:21", "train.schedules.1"],
        ["10:17", "train.sync.mode.0"],
        ["10:39", "train.sync.local_steps.0"],
        ["11:8", "goal.minimize"],
        ["11:25", "goal.weights"],
        ["12:10", "limits.cost"],
        ["12:20", "limits.memory_headroom"],
        ["13:1", "efficiency"],
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(JOB.replace("gpt2", "gpt-2"), "4:1: model: gpt-2: no such file", id="model"),
        pytest.param(JOB.replace("64", "4Mi"), "5:9: train.global_batch: '4Mi' has no unit", id="batch of what"),
        pytest.param(JOB.replace("64", "0 tokens"), "'0 tokens' is not a valid batch size", id="no tokens"),
        pytest.param(JOB.replace("64", "many tokens"), "cannot read 'many tokens'", id="no number"),
        pytest.param(JOB.replace("64", "1000 tokens"), "whole number of sequences of 1024; write 1", id="part"),
        pytest.param(JOB.replace("64", "3000 tokens"), "of 1024; write 2 or 3", id="between"),
        pytest.param(JOB.replace("64", "1.5"), "1.5 is not a whole number", id="fraction"),
        pytest.param(JOB.replace("64", "true"), "True is not a quantity", id="boolean"),
        pytest.param(
            JOB.replace("1024", "2048"), "train.sequence: gpt2 has learned positions for only 1024", id="long"
        ),
        pytest.param(JOB.replace("1024", "8, precision: fp4"), "5:40: train.precision: ", id="precision"),
        pytest.param(JOB.replace("1024", "8, zero: 4"), "5:40: train.zero: ", id="zero stage"),
        pytest.param(JOB.replace("1024", "8, zero: []"), "train.zero: ", id="no stage"),
        pytest.param(JOB.replace("1024", "8, sync: {local_steps: 4}"), "need mode: [sync, diloco]", id="steps"),
        pytest.param(f"{JOB}home: a\nlimits: {{domains: [b]}}\n", "6:1: home: 'a' is not one of", id="home"),
        pytest.param(f"{JOB}limits: {{domains: []}}\n", "6:10: limits.domains: ", id="no domains"),
        pytest.param(f"{JOB}limits: {{memory_headroom: some}}\n", "'some' is not a share", id="share"),
        pytest.param(f"{JOB}limits: {{memory_headroom: nan%}}\n", "6:10: limits.memory_headroom", id="nan"),
        pytest.param(f"{JOB}limits: {{cost: 5GB}}\n", "6:10: limits.cost: unit 'GB'", id="cost"),
        pytest.param(f"{JOB}goal: {{weights: [1, 2]}}\n", "goal.weights.2: required key is missing", id="weights"),
        pytest.param(f"{JOB}efficiency: 0\n", "6:1: efficiency: ", id="efficiency"),
        pytest.param(f"{JOB}profile: times.json\n", "6:1: profile: ", id="profile"),
        pytest.param(f"{JOB}sequence: 8\n", "6:1: sequence: unknown key", id="unknown"),
        pytest.param(HEAD, "1:1: train: required key is missing", id="no train"),
        pytest.param(JOB.replace("TrainingJob", "Fleet"), "2:1: kind: ", id="kind"),
    ],
)
def test_a_wrong_value_is_refused_at_its_place(faults, text, said):
    (fault,) = faults(text)
    assert said in fault


def test_faults_of_the_model_are_told_with_those_of_the_job(faults, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    told = faults(f"{JOB.replace('gpt2', 'config.json')}speed: 3\n")
    assert told[0].startswith("6:1: speed: unknown key")
    assert any("num_hidden_layers: required key is missing" in fault for fault in told[1:])


def test_a_file_that_is_no_mapping_is_refused(faults):
    assert len(faults("- 1\n")) == 1


def test_a_missing_job_is_answered_with_the_bundled_ones(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_job(tmp_path / "job.yaml")
    with pytest.raises(UsageError, match="there are: llama") as caught:
        load_job("opt-350")
    assert caught.value.hint == "opt-350m"


@pytest.mark.parametrize("source", [*bundled_names(BUNDLED_JOBS), *sorted(EXAMPLES.glob("job-*.yaml"))], ids=str)
def test_every_bundled_job_and_example_loads(source):
    job = load_job(source)
    assert job.layers.params.sum() > 1e8
    assert job.name == Path(source).name.removeprefix("job-").removesuffix(".yaml")


def test_the_schema_can_be_printed():
    assert "train" in json.loads(json.dumps(TrainingJobFile.model_json_schema()))["properties"]


def test_a_profile_is_looked_up_under_the_conditions_it_was_measured_in(tmp_path, written):
    (tmp_path / "times.json").write_text(json.dumps({"A100": {"2,1": TIMES}}))
    profile = load_job(written(f"{JOB}profile: times.json\n")).profile
    assert profile is not None
    times = profile.lookup("A100", 2, 1)
    assert times is not None
    np.testing.assert_array_equal(times.backward_s, [0.2] * LAYERS)
    assert profile.lookup("A100", 4, 1) is None
    assert profile.lookup("A100", 2, 2) is None
    assert profile.lookup("H100", 2, 1) is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param([], "should be a mapping", id="list"),
        pytest.param({}, "holds no profile", id="empty"),
        pytest.param({"A100": 3}, "A100: should be a mapping", id="number"),
        pytest.param({"A100": {"2": TIMES}}, "A100.2: write 'microbatch size", id="one size"),
        pytest.param({"A100": {"0,1": TIMES}}, "A100.0,1: write 'microbatch size", id="zero"),
        pytest.param({"A100": {"1,1": []}}, "A100.1,1: should be a mapping", id="row"),
        pytest.param({"A100": {"1,1": {**TIMES, "fwd": []}}}, "A100.1,1.fwd: unknown key", id="unknown"),
        pytest.param({"A100": {"1,1": {**TIMES, "update_s": None}}}, "update_s: should be a list", id="missing"),
        pytest.param({"A100": {"1,1": {**TIMES, "update_s": 1}}}, "update_s: should be a list", id="scalar"),
        pytest.param(
            {"A100": {"1,1": {**TIMES, "update_s": [1.0]}}}, "has 1 values, the model has 14", id="short"
        ),
        pytest.param(
            {"A100": {"1,1": {**TIMES, "update_s": NEGATIVE}}},
            "should be greater than or equal to 0",
            id="negative",
        ),
        pytest.param(
            {"A100": {"1,1": {**TIMES, "update_s": TEXT}}},
            "should be a valid number",
            id="text",
        ),
    ],
)
def test_a_profile_that_does_not_fit_is_refused_with_the_reason(tmp_path, data, said):
    path = tmp_path / "times.json"
    path.write_text(json.dumps(data))
    with pytest.raises(BadFile) as caught:
        load_profile(path, num_layers=len(model("gpt2").kinds))
    (fault,) = caught.value.faults
    assert said in f"{fault.where}: {fault.message}"


def scaled(factor: float) -> dict[str, list[float]]:
    return {name: [factor * seconds for seconds in times] for name, times in TIMES.items()}


@pytest.mark.parametrize(
    ("rows", "faults"),
    [
        ({"1,1": TIMES, "1,8": scaled(100)}, ["1,8: takes 100x the time of '1,1'; are both in seconds?"]),
        ({"1,1": TIMES, "1,8": scaled(1e-3)}, ["1,8: takes 0.001x the time of '1,1'; are both in seconds?"]),
        ({"1,1": TIMES, "4,1": scaled(1e-3)}, ["4,1: takes 0.001x the time of '1,1'; are both in seconds?"]),
        ({"1,1": TIMES, "4,1": scaled(1000)}, ["4,1: takes 1e+03x the time of '1,1'; are both in seconds?"]),
        ({"1,1": TIMES, "4,1": scaled(0.4)}, ["4,1: takes 0.4x the time of '1,1'; are both in seconds?"]),
        ({"1,1": TIMES, "1, 1": TIMES}, ["1, 1: the same condition as '1,1'"]),
        ({"1,1": scaled(0)}, [
            "1,1: forward_s of layer 1 is 0, and a layer that computes takes time",
            "1,1: backward_s of layer 1 is 0, and a layer that computes takes time",
        ]),
        ({"1,1": TIMES, "1,2": scaled(0.6), "1,8": scaled(3), "2,1": scaled(1.9), "2,8": scaled(3.2)}, []),
    ],
)  # fmt: skip
def test_a_profile_that_contradicts_itself_is_refused_where_it_does(tmp_path, rows, faults):
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"A100": rows}, indent=1))
    if not faults:
        assert len(load_profile(path, num_layers=LAYERS).times) == len(rows)
        return
    with pytest.raises(BadFile) as caught:
        load_profile(path, num_layers=LAYERS)
    assert [f"{f.where.removeprefix('A100.')}: {f.message}" for f in caught.value.faults] == faults
    lines = path.read_text().splitlines()
    for fault in caught.value.faults:
        assert lines[fault.line - 1].strip().startswith(f'"{fault.where.removeprefix("A100.")}"')


def test_a_layout_is_fixed_as_far_as_it_is_written(written):
    job = load_job(written(f"{JOB}parallel: {{tensor: 4, data: 8}}\n"))
    assert (job.pins.sizes, str(job.pins)) == ({"tensor": 4, "data": 8}, "tensor 4, data 8")
    assert load_job(written(JOB)).pins.names == ()
    job = load_job(written(f"{JOB}parallel: {{tensor: 4, stages: {{a: 2, b: 6}}}}\n"))
    assert (job.pins.stages, str(job.pins)) == ((("a", 2), ("b", 6)), "tensor 4, stages a:2,b:6")


@pytest.mark.parametrize(
    ("parallel", "fault"),
    [
        ("{tensor: 5}", "6:12: parallel.tensor: 5 does not divide the 12 attention heads of gpt2"),
        ("{pipeline: 15}", "6:12: parallel.pipeline: more stages than gpt2 has layers (14, embedding and head "
         "included)"),
        ("{data: 3}", "6:12: parallel.data: 3 copies do not divide a global batch of 64 sequences"),
        ("{microbatch: 65}", "6:12: parallel.microbatch: 65 samples are more than a global batch of 64 sequences"),
        ("{data: 32, microbatch: 4}", "6:22: parallel.microbatch: 4 samples on each of 32 copies are more than a "
         "global batch of 64 sequences"),
        ("{tensor: 0}", "6:12: parallel.tensor: 0 is not a whole number from 1 to 1000000000"),
        ("{tensors: 2}", "6:12: parallel.tensors: unknown key (did you mean 'tensor'?)"),
        ("{stages: {a: 15}}", "6:21: parallel.stages.a: more stages than gpt2 has layers (14, embedding and head "
         "included)"),
        ("{stages: {a: 2, b: 6}, pipeline: 4}", "6:27: parallel.stages.b: 6 of a pipeline of 4 stages "
         "(parallel.pipeline)"),
        ("{stages: {a: 0}}", "6:21: parallel.stages.a: 0 is not a whole number from 1 to 1000000000"),
        ("{stages: {a: 2}}\nlimits: {domains: [b]}", "6:21: parallel.stages.a: 'a' is not one of "
         "limits.domains (b)"),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_divide_is_refused_where_it_stands(faults, parallel, fault):
    assert faults(f"{JOB}parallel: {parallel}\n") == [fault]


@pytest.mark.parametrize(
    ("parallel", "fault"),
    [
        ("{virtual_stages: 3}", "parallel.virtual_stages: dualpipev has 2 chunks a stage"),
        ("{pipeline: 1}", "parallel.pipeline: dualpipev needs two stages or more"),
        ("{pipeline: 4, data: 16}", "parallel.pipeline: dualpipev takes two microbatches a stage, and a copy "
         "has at most 4"),
    ],
)  # fmt: skip
def test_what_a_folded_pipeline_cannot_be_is_refused_where_it_stands(faults, parallel, fault):
    folded = JOB.replace("sequence: 1024", "sequence: 1024, schedules: dualpipev")
    assert folded != JOB
    found = faults(f"{folded}parallel: {parallel}\n")
    assert [line.partition(": ")[2] for line in found if "dualpipev" in line] == [fault]


def test_pieces_and_experts_that_do_not_divide_are_refused_with_degrees_that_do(written):
    mixture = JOB.replace("gpt2", "qwen3-30b-a3b")
    for parallel, near in (
        ("{context: 7, expert: 200}", "{context: 4, expert: 128}"),
        ("{context: 9999}", "{context: 1024}"),
        ("{data: 2, context: 4, expert: 16}", "{expert: 8}"),
    ):
        with pytest.raises(BadFile) as caught:
            load_job(written(f"{mixture}parallel: {parallel}\n"))
        assert caught.value.hint == f"parallel: {near}"
        assert all((fault.line, fault.column > 11) == (6, True) for fault in caught.value.faults)


def test_a_dense_model_has_no_experts_to_spread(faults):
    assert faults(f"{JOB}parallel: {{expert: 2}}\n") == ["6:12: parallel.expert: gpt2 has no experts to spread"]


def test_all_that_does_not_divide_is_said_at_once(faults):
    assert len(faults(f"{JOB}parallel: {{tensor: 5, pipeline: 99, data: 7}}\n")) == 3


def test_what_the_example_calls_defaults_are(tmp_path):
    lines = (EXAMPLES / "job-llama-8b.yaml").read_text(encoding="utf-8").splitlines()
    said = yaml.safe_load("\n".join(line for line in lines if "# default" not in line and "; default" not in line))
    said["train"] = {key: value for key, value in said["train"].items() if value is not None}
    required = {key: said[key] for key in ("apiVersion", "kind", "name", "model")}
    required["train"] = {key: said["train"][key] for key in ("global_batch", "sequence")}
    jobs = []
    for number, data in enumerate((said, required)):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(data))
        jobs.append(load_job(tmp_path / f"{number}.yaml"))
    assert repr(jobs[0]) == repr(jobs[1])  # arrays inside have no truth
