"""`kind: ServingJob` as files: what they may hold, what it becomes, and what is refused where."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from strata.errors import BadFile, UsageError
from strata.files import bundled_names
from strata.workload.schema import BUNDLED_JOBS
from strata.workload.serving_job import ServingRatios
from strata.workload.serving_schema import BUNDLED_SERVING_JOBS, load_serving_job

HEAD = """\
apiVersion: strata/v1alpha1
kind: ServingJob
name: tiny
model: gpt2
"""
JOB = f"{HEAD}demand: {{prompt: 512, output: 128}}\n"


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
            load_serving_job(written(text))
        return [f"{f.line}:{f.column}: {f.where}: {f.message}" for f in caught.value.faults]

    return load


def test_the_shortest_job_takes_its_defaults(written):
    job = load_serving_job(written(JOB))
    assert (job.name, job.model.model_name, job.model.num_layers) == ("tiny", "gpt2", 12)
    assert (job.demand.batch, job.demand.prompt_tokens, job.demand.output_tokens) == (16, 512, 128)
    assert (job.demand.ttft_goal_s, job.demand.tpot_goal_s, job.demand.rate_per_s) == (math.inf, math.inf, 0)
    assert (job.weights, job.kv, job.strategy, job.routing) == ("bf16", "bf16", "auto", "auto")
    assert (job.memory_headroom, job.flops_efficiency, job.bandwidth_efficiency) == (0.08, None, None)


def test_every_value_arrives_in_si_units(written):
    job = load_serving_job(
        written(
            f"{HEAD}demand: {{prompt: 512, output: 128, batch: 4, rate: 1200/min}}\n"
            "goals: {ttft: 2s, tpot: 50ms}\n"
            "precision: {weights: fp8, kv: fp8}\n"
            "memory_headroom: 10%\n"
            "efficiency: {flops: 0.4, bandwidth: 0.6}\n"
            "calibration: {H100: {step: 1.1, sequence: 0.002, context: 0.9, request_s: 0.02}}\n"
            "engine: {sequences: 128, step_tokens: 2048}\n"
            "strategy: dp\n"
            "routing: rr\n"
        )
    )
    assert (job.demand.batch, job.demand.rate_per_s) == (4, pytest.approx(20))
    assert (job.demand.ttft_goal_s, job.demand.tpot_goal_s) == (2.0, 0.05)
    assert (job.weights, job.kv, job.strategy, job.routing) == ("fp8", "fp8", "dp", "rr")
    assert (job.memory_headroom, job.flops_efficiency, job.bandwidth_efficiency) == (0.1, 0.4, 0.6)
    assert job.calibration == {"H100": ServingRatios(1.1, 0.002, 0.9, 1.0, 0.02)}
    assert (job.sequences, job.step_tokens) == (128, 2048)


@pytest.mark.parametrize(("text", "per_s"), [("28/s", 28), ("28", 28), ("3600/h", 1), ("0", 0), ("0.5/s", 0.5)])
def test_a_rate_is_read_with_or_without_its_unit(written, text, per_s):
    job = load_serving_job(written(JOB.replace("output: 128", f"output: 128, rate: {text}")))
    assert job.demand.rate_per_s == pytest.approx(per_s)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("output: 128", "output: 128, rate: 28/y", "5:36: demand.rate: '28/y' is not a rate"),
        ("output: 128", "output: 128, rate: -1", "demand.rate: should be greater than or equal to 0"),
        ("output: 128", "output: 128, rate: nan/s", "demand.rate: should be a finite number"),
        ("output: 128", "output: 128, batches: 3", "demand.batches: unknown key (did you mean 'batch'?)"),
        ("prompt: 512", "prompt: 0", "demand.prompt: 0 is not a whole number"),
        ("prompt: 512, ", "", "demand.prompt: required key is missing"),
        ("prompt: 512", "prompt: 1000", "demand.prompt: gpt2 has learned positions for only 1024 tokens"),
        ("model: gpt2", "model: gpt9", "model: gpt9"),
        ("name: tiny", "name: tiny\ngoals: {ttft: 2}", "goals.ttft: 2 has no unit"),
        ("name: tiny", "name: tiny\ngoals: {tpot: 0s}", "goals.tpot: should be greater than 0"),
        ("name: tiny", "name: tiny\nprecision: {weights: int3}", "precision.weights: should be 'bf16', 'fp8'"),
        ("name: tiny", "name: tiny\nmemory_headroom: 100%", "memory_headroom: should be less than 1"),
        ("name: tiny", "name: tiny\nefficiency: {flops: 0}", "efficiency.flops: should be greater than 0"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(faults, old, new, says):
    told = faults(JOB.replace(old, new))
    assert len(told) == 1
    assert says in told[0]
    assert not told[0].startswith("0:")


def test_all_faults_are_told_at_once(faults):
    told = faults(
        JOB.replace("gpt2", "gpt9").replace("prompt: 512", "prompt: x").replace("name: tiny", "name: ''")
    )
    assert [line.split(": ")[1] for line in told] == ["name", "model", "demand.prompt"]


def test_blocks_shrink_with_their_precision_and_the_ends_do_not():
    job = load_serving_job("serve-llama-3.1-70b")
    plain, fp8, int4 = (job.stored(weights=weights).model for weights in ("bf16", "fp8", "int4"))
    assert fp8.weight_bytes.sum() == pytest.approx(plain.weight_bytes.sum() / 2)
    assert int4.weight_bytes.sum() == pytest.approx(plain.weight_bytes.sum() * (4 + 16 / 128) / 16)
    assert plain.head_bytes == fp8.head_bytes == int4.head_bytes
    assert plain.embedding_bytes == int4.embedding_bytes
    halved = job.stored(kv="fp8")
    assert halved.model.kv_bytes_per_token.sum() == plain.kv_bytes_per_token.sum() / 2
    again = job.stored(weights="int4", kv="fp8").stored(weights="bf16", kv="bf16")
    assert again.model.weight_bytes == pytest.approx(plain.weight_bytes)
    assert (again.weights, again.kv, halved.weights, halved.kv) == ("bf16", "bf16", "bf16", "fp8")


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_models_in_mxfp4_take_about_what_their_card_says(tmp_path, name, gib):
    """Of the checkpoints experts alone are in MXFP4 (arXiv 2508.10925, table 1), here all of a block."""
    text = (
        f"apiVersion: strata/v1alpha1\nkind: ServingJob\nname: x\nmodel: {name}\nprecision: {{weights: mxfp4}}\n"
    )
    file = tmp_path / "job.yaml"
    file.write_text(text + "demand: {prompt: 512, output: 128, batch: 8}\n")
    info = load_serving_job(file).model
    assert info.weight_bytes.sum() + info.embedding_bytes + info.head_bytes == pytest.approx(gib * 2**30, rel=0.08)


@pytest.mark.parametrize("name", bundled_names(BUNDLED_SERVING_JOBS))
def test_every_bundled_serving_job_loads_under_its_name(name):
    assert load_serving_job(name).name == name


def test_bundled_serving_jobs_are_no_training_jobs():
    assert not {*bundled_names(BUNDLED_SERVING_JOBS)} & {*bundled_names(BUNDLED_JOBS)}
    with pytest.raises(UsageError, match="no bundled serving job") as caught:
        load_serving_job("llama-3.1-70b")
    assert caught.value.hint == "serve-llama-3.1-70b"
