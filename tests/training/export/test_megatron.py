import os
import subprocess
from dataclasses import replace

import pytest

from strata.errors import UsageError
from strata.training.export.megatron import render
from strata.training.export.ranks import RankLayout, rank_map
from strata.training.plan.planned import PlannedJob, PlannedModel
from strata.workload.huggingface import model
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

JOB = PlannedJob(
    name="job", model="model", num_layers=10, sequence_length=4096, global_batch=32, num_heads=32, hidden_size=4096
)


def plan(*counts, domains, replicas=2, tensor_parallel=2, microbatches=8, **more):
    stages, first = [], 0
    for s, (count, domain) in enumerate(zip(counts, domains, strict=True)):
        stages.append(Stage(domain, first, count, tensor_parallel, len(counts) - 1 - s))
        first += count
    return TrainingPlan((Pipeline(tuple(stages), replicas, microbatches),), 2, **more)


def layout(plan, per_node=8):
    names = plan.domains
    return RankLayout(plan, dict.fromkeys(names, 64), dict.fromkeys(names, per_node), dict.fromkeys(names, "card"))


def arguments(launch):
    lines = [line for line in launch.files["megatron-args.txt"].splitlines() if not line.startswith("#")]
    return dict((line + " ").split(" ", 1) for line in lines)


def launched(folder, launch):
    """Run every script against a torchrun and a python that only report; return device by global rank."""
    for name, text in launch.files.items():
        (folder / name).write_text(text)
    tools = folder / "bin"
    tools.mkdir()
    for name, report in (
        ("torchrun", 'echo "torchrun $@"'),
        ("python", 'echo "python $RANK $LOCAL_RANK $WORLD_SIZE"'),
    ):
        (tools / name).write_text(f"#!/usr/bin/env bash\n{report}\n")
        (tools / name).chmod(0o755)
    found, first = {}, 0
    for (domain, index), ranks in launch.ranks.nodes().items():
        environment = {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "MASTER_ADDR": "host",
            "MEGATRON": "/megatron",
            "NODE_INDEX": str(index),
        }
        script = ["bash", str(folder / f"launch-{domain}.sh"), "--mock-data"]
        text = subprocess.run(
            script, env=environment, capture_output=True, text=True, check=True, timeout=300
        ).stdout
        for line in text.splitlines():
            words = line.split()
            if words[0] == "python":
                found[int(words[1])] = (domain, index, int(words[2]))
                assert int(words[3]) == len(launch.ranks.ranks)
            else:
                assert words[-1] == "--mock-data"
                assert "--tensor-model-parallel-size" in words
                for local in range(len(ranks)):
                    found[first + local] = (domain, index, local)
        first += len(ranks)
    return found


@pytest.mark.parametrize(
    ("domains", "option", "one_by_one"),
    [
        pytest.param("aab", False, True, id="two-stages-in-one-domain"),
        pytest.param("abc", False, False, id="a-stage-a-domain"),
        pytest.param("aaa", True, False, id="one-domain"),
    ],
)
def test_every_process_runs_the_part_megatron_takes_its_rank_for(tmp_path, domains, option, one_by_one):
    chosen = plan(3, 4, 3, domains=domains)
    launch = render(layout(chosen), JOB)
    devices = launched(tmp_path, launch)
    planned = {(r.stage, r.copy, r.tensor_rank): r.device for r in rank_map(layout(chosen)).ranks}
    for rank, device in devices.items():
        tensor, rest = rank % 2, rank // 2
        stage, copy = (rest % 3, rest // 3) if option else (rest // 2, rest % 2)  # Megatron's own arithmetic
        assert planned[stage, copy, tensor] == device
        assert launch.ranks.ranks[rank].device == device
    assert sorted(devices) == list(range(12))
    assert ("--use-tp-pp-dp-mapping" in arguments(launch)) is option
    assert ("RANKS=(" in launch.files["launch-a.sh"]) is one_by_one


def test_copies_of_several_pipelines_are_megatrons_data_parallel_ranks(tmp_path):
    one = Pipeline((Stage("a", 0, 10, 2),), 2, 8)
    both = TrainingPlan((one, replace(one, stages=(Stage("b", 0, 10, 2),))), 1)
    devices = launched(tmp_path, render(layout(both), JOB.model_copy(update={"global_batch": 32})))
    assert [devices[rank][0] for rank in range(8)] == list("aaaabbbb")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param((4, 3, 3), {"first": "3", "last": "2"}, id="ends-differ"),
        pytest.param((4, 2, 3, 1), {"layout": "Ettt|tt|ttt|L"}, id="any"),
        pytest.param((6, 4), {"layout": "Ettttt|tttL"}, id="two"),
        pytest.param((5, 5), {}, id="even"),
        pytest.param((1, 8, 1), {"layout": "E|tttttttt|L"}, id="embedding-alone"),
    ],
)
def test_layers_are_cut_as_planned(counts, expected):
    given = arguments(render(layout(plan(*counts, domains="abcd"[: len(counts)])), JOB))
    assert given["--num-layers"].strip() == "8"
    names = {
        "first": "--decoder-first-pipeline-num-layers",
        "last": "--decoder-last-pipeline-num-layers",
        "layout": "--pipeline-model-parallel-layout",
    }
    assert {key: given[name].strip() for key, name in names.items() if name in given} == expected


def test_batch_memory_and_shape_are_the_plans():
    given = arguments(render(layout(plan(5, 5, domains="ab", recompute=Recompute.FULL, zero_stage=1)), JOB))
    assert {key: value.strip() for key, value in given.items()} == {
        "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "2",
        "--sequence-parallel": "",
        "--num-layers": "8",
        "--hidden-size": "4096",
        "--num-attention-heads": "32",
        "--seq-length": "4096",
        "--max-position-embeddings": "4096",
        "--micro-batch-size": "2",
        "--global-batch-size": "32",
        "--attention-dropout": "0",
        "--hidden-dropout": "0",
        "--bf16": "",
        "--grad-reduce-in-bf16": "",
        "--optimizer": "adam",
        "--use-distributed-optimizer": "",
        "--overlap-grad-reduce": "",
        "--overlap-param-gather": "",
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": "1",
    }


def test_what_megatron_would_train_otherwise_is_refused_with_every_reason():
    one = Pipeline((Stage("a", 0, 10, 2),), 1, 8)
    other = Pipeline((Stage("b", 0, 4, 4), Stage("b", 4, 6, 4)), 1, 5)
    with pytest.raises(UsageError) as error:
        render(layout(TrainingPlan((one, other), 1, local_steps=8)), JOB)
    text = str(error.value)
    assert "different places" in text
    assert "8, 5 microbatches" in text
    assert "tensor parallel over 2, 4" in text
    assert "every 8 steps" in text


def test_what_megatron_runs_at_another_speed_is_noted_in_every_file():
    deep = plan(5, 5, domains="ab", schedule=Schedule.LATENCY_AWARE, gradient_compression=2.0)
    stages = tuple(replace(stage, warmup=5 - s) for s, stage in enumerate(deep.pipelines[0].stages))
    deep = replace(deep, pipelines=(replace(deep.pipelines[0], stages=stages),))
    launch = render(layout(deep), JOB.model_copy(update={"global_batch": 30, "hidden_size": None}))
    text = " ".join(launch.notes)
    assert "[1, 0]" in text
    assert "[5, 4]" in text
    assert "2 to 1" in text
    assert "--hidden-size" in text
    assert "global batch of 32 where the job has 30" in text
    for name in ("launch-a.sh", "launch-b.sh", "megatron-args.txt"):
        assert all(f"# note: {note}" in launch.files[name] for note in launch.notes)


def architecture(spec):
    return render(layout(plan(5, 5, domains="ab")), JOB.model_copy(update={"architecture": PlannedModel.of(spec)}))


LLAMA = {
    "--swiglu": "",
    "--normalization": "RMSNorm",
    "--position-embedding-type": "rope",
    "--vocab-size": "128256",
    "--untie-embeddings-and-output-weights": "",
    "--disable-bias-linear": "",
    "--kv-channels": "128",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("llama-3.1-8b", LLAMA, id="dense"),
        pytest.param(
            "qwen3-30b-a3b",
            LLAMA
            | {"--vocab-size": "151936", "--qk-layernorm": "", "--num-experts": "128", "--moe-router-topk": "8"}
            | {"--moe-ffn-hidden-size": "768", "--moe-layer-freq": "[1]*8"}
            | {"--moe-token-dispatcher-type": "alltoall"},
            id="experts",
        ),
        pytest.param(
            "deepseek-v3",
            {key: value for key, value in LLAMA.items() if key != "--kv-channels"}
            | {"--vocab-size": "129280", "--multi-latent-attention": "", "--q-lora-rank": "1536"}
            | {
                "--kv-lora-rank": "512",
                "--qk-head-dim": "128",
                "--qk-pos-emb-head-dim": "64",
                "--v-head-dim": "128",
            }
            | {"--qk-layernorm": "", "--num-experts": "256", "--moe-router-topk": "8"}
            | {"--moe-ffn-hidden-size": "2048", "--moe-shared-expert-intermediate-size": "2048"}
            | {"--moe-token-dispatcher-type": "alltoall", "--moe-layer-freq": "[0]*3+[1]*5"},
            id="latent-attention-and-dense-layers-first",
        ),
        pytest.param(
            "qwen3-next-80b-a3b",
            {**LLAMA, "--vocab-size": "151936", "--kv-channels": "256", "--qk-layernorm": ""}
            | {"--attention-output-gate": "", "--experimental-attention-variant": "gated_delta_net"}
            | {"--linear-attention-freq": "[1]*3+[0]*1+[1]*3+[0]*1", "--linear-conv-kernel-dim": "4"}
            | {"--linear-key-head-dim": "128", "--linear-value-head-dim": "128"}
            | {"--linear-num-key-heads": "16", "--linear-num-value-heads": "32"}
            | {"--num-experts": "512", "--moe-router-topk": "10", "--moe-ffn-hidden-size": "512"}
            | {"--moe-shared-expert-intermediate-size": "512", "--moe-shared-expert-gate": ""}
            | {"--moe-token-dispatcher-type": "alltoall", "--moe-layer-freq": "[1]*8"},
            id="linear-attention",
        ),
    ],
)
def test_the_model_is_the_one_that_was_planned(name, expected):
    plain = arguments(render(layout(plan(5, 5, domains="ab")), JOB))
    given = arguments(architecture(model(name)))
    assert {key: value.strip() for key, value in given.items() if key not in plain} == expected


def test_an_older_model_has_layer_norm_learned_positions_and_biases():
    llama = model("llama-3.1-8b")
    older = replace(
        llama, gated_mlp=False, norm_bias=True, qkv_bias=True, output_bias=True, mlp_bias=True,
        tied_embeddings=True, num_positions=1024, max_sequence_length=1024,
    )  # fmt: skip
    given = arguments(architecture(older))
    assert given["--normalization"].strip() == "LayerNorm"
    assert given["--position-embedding-type"].strip() == "learned_absolute"
    assert given["--max-position-embeddings"].strip() == "1024"
    absent = {"--swiglu", "--disable-bias-linear", "--add-qkv-bias", "--untie-embeddings-and-output-weights"}
    assert absent.isdisjoint(given)
    assert "--add-qkv-bias" in arguments(architecture(replace(llama, qkv_bias=True)))


def test_what_of_a_model_megatron_cannot_be_given_is_noted():
    odd = replace(model("llama-3.1-8b"), model_type="gemma2", norms_per_layer=4, output_bias=True)
    text = " ".join(architecture(odd).notes)
    for words in ("--rotary-base", "--norm-epsilon", "GeGLU", "4 norms a layer", "in all or in none"):
        assert words in text
