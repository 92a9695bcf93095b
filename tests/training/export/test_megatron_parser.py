"""The arguments of a plan, as Megatron-LM's parser reads them and its checks judge them."""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from strata.errors import UsageError
from strata.training.export.megatron import render
from strata.training.export.ranks import RankLayout
from strata.training.plan.planned import PlannedJob, PlannedModel
from strata.workload.huggingface import model
from strata.workload.job import ContextExchange, Recompute, Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.software_schema import SoftwareEntry

HERE = Path(__file__).parent
OPTIONS = yaml.safe_load((HERE / "megatron_options.yaml").read_text())


def freq(text):
    """A list, as in `[0]*3+[1]*5`: one entry a layer."""
    assert set(text) <= set("[]0123456789*+,()"), text
    return eval(text)


TYPES = {"int": int, "float": float, "str": str, "moe_freq_type": freq, "la_freq_type": freq}


SEVERAL = {"--cp-comm-type", "--recompute-modules"}


def parser():
    made = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, takes in OPTIONS.items():
        if takes == "flag":
            made.add_argument(name, action="store_true")
        elif isinstance(takes, list):
            made.add_argument(name, choices=takes)
        else:
            made.add_argument(name, type=TYPES[takes], nargs="+" if name in SEVERAL else None)
    return made


def words(launch):
    lines = launch.files["megatron-args.txt"].splitlines()
    return [word for line in lines if not line.startswith("#") for word in line.split(" ")]


def check(given, world_size):
    """What Megatron's own checks ask (`validate_args` in the same file), as far as it is about these options."""
    stages = given.pipeline_model_parallel_size
    parts = given.context_parallel_size or 1
    copies, rest = divmod(world_size, given.tensor_model_parallel_size * stages * parts)
    assert parts == 1 or given.seq_length % (2 * parts) == 0
    assert given.num_experts or not given.expert_model_parallel_size
    assert (given.num_experts or 1) % (given.expert_model_parallel_size or 1) == 0
    assert copies * parts % (given.expert_model_parallel_size or 1) == 0
    assert rest == 0
    assert given.global_batch_size % (given.micro_batch_size * copies) == 0
    assert given.max_position_embeddings >= given.seq_length
    assert given.tensor_model_parallel_size > 1 or not given.sequence_parallel
    assert not (given.bf16 and given.fp16)
    heads = given.num_query_groups if given.group_query_attention else given.num_attention_heads
    assert heads % given.tensor_model_parallel_size == 0
    if given.recompute_granularity == "full":
        assert given.recompute_method
        assert given.recompute_num_layers
    if given.overlap_param_gather:
        assert given.use_distributed_optimizer
        assert given.overlap_grad_reduce
    assert copies * parts % (given.num_distributed_optimizer_instances or 1) == 0
    assert given.use_megatron_fsdp == (given.ckpt_format == "fsdp_dtensor")
    if given.overlap_moe_expert_parallel_comm:
        assert given.expert_model_parallel_size > 1
        assert given.recompute_granularity != "full"
        assert stages == 1 or given.num_virtual_stages_per_pipeline_rank or given.pipeline_model_parallel_layout
    if given.moe_pad_expert_input_to_capacity:
        assert given.moe_expert_capacity_factor is not None
        assert given.moe_token_dispatcher_type == "alltoall"
    if given.cuda_graph_impl == "full_iteration":
        assert given.no_check_for_nan_in_loss_and_grad
    if given.fp8_param_gather:
        assert given.fp8_format
        assert given.use_distributed_optimizer
    first, last = given.decoder_first_pipeline_num_layers, given.decoder_last_pipeline_num_layers
    virtual = given.num_virtual_stages_per_pipeline_rank
    if given.pipeline_model_parallel_layout:
        assert first is last is virtual is None
        layout = given.pipeline_model_parallel_layout.split("|")
        virtual, rest = divmod(len(layout), stages)
        assert rest == 0
        assert layout[0][0] == "E"
        assert layout[-1][-1] == "L"
        assert "".join(layout) == f"E{'t' * given.num_layers}L"
    elif first is not None:
        assert (given.num_layers - first - last) % (stages - 2) == 0
    else:
        assert given.num_layers % (stages * (virtual or 1)) == 0
    if (virtual or 1) > 1:
        assert stages > 1
        assert given.global_batch_size // (given.micro_batch_size * copies) % stages == 0
    for pattern in (given.moe_layer_freq if given.num_experts else None, given.linear_attention_freq):
        assert pattern is None or len(pattern) == given.num_layers
    if given.experimental_attention_variant == "gated_delta_net":
        assert given.linear_attention_freq
        assert given.linear_num_value_heads % given.linear_num_key_heads == 0


def planned(name, *, batch=32, sequence=1024, **more):
    spec = model(name)
    return PlannedJob(
        name="job", model=name, num_layers=spec.num_layers + 2, sequence_length=sequence, global_batch=batch,
        num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, hidden_size=spec.hidden_size,
        ffn_hidden_size=spec.intermediate_size, architecture=PlannedModel.of(spec), **more,
    )  # fmt: skip


def plan(*counts, tensor_parallel=2, replicas=2, microbatches=8, context=1, some=(), **more):
    stages, first = [], 0
    for s, count in enumerate(counts):
        again = some[s] if some else None
        stages.append(Stage("a", first, count, tensor_parallel, len(counts) - 1 - s, context, again))
        first += count
    return TrainingPlan((Pipeline(tuple(stages), replicas, microbatches),), 2, **more)


def shared_gate(job):
    """A mixture of experts with a shared one behind a gate, as Qwen2's; none is bundled."""
    moe = job.architecture.experts.model_copy(update={"shared_ffn_hidden_size": 512, "shared_gate": True})
    return job.model_copy(update={"architecture": job.architecture.model_copy(update={"experts": moe})})


QKV_BIAS = PlannedModel.of(replace(model("llama-3.1-8b"), qkv_bias=True))
UNEVEN = (4, 5, 4, 4, 4, 4, 4, 3)
VIRTUAL = {"schedule": Schedule.INTERLEAVED, "virtual_stages": 2}
CASES = {
    "llama": (plan(17, 17), planned("llama-3.1-8b")),
    "llama-one-device": (plan(34, tensor_parallel=1, replicas=1), planned("llama-3.1-8b", precision="fp16")),
    "llama-uneven": (plan(9, 9, 8, 8, recompute=Recompute.FULL, zero_stage=1), planned("llama-3.1-8b")),
    "llama-ends": (plan(10, 8, 8, 8), planned("llama-3.1-8b", optimizer="sgd")),
    "zero-2": (plan(17, 17, zero_stage=2), planned("llama-3.1-8b")),
    "fsdp": (plan(34, replicas=4, zero_stage=3), planned("llama-3.1-8b", batch=64)),
    "hsdp": (plan(34, replicas=4, zero_stage=3, shard_group=2), planned("llama-3.1-8b", batch=64)),
    "context": (plan(17, 17, context=2), planned("llama-3.1-8b")),
    "context-all-to-all": (
        plan(17, 17, context=2, context_exchange=ContextExchange.ALL_TO_ALL, zero_stage=1),
        planned("llama-3.1-8b"),
    ),
    "experts": (plan(25, 25, context=2, expert_parallel=4), planned("qwen3-30b-a3b")),
    "software": (
        plan(25, 25, context=2, expert_parallel=4, **VIRTUAL),
        planned("qwen3-30b-a3b", software=SoftwareEntry(overlap_experts=True, cuda_graphs=True, token_drop=True)),
    ),
    "software-flex": (
        plan(25, 25, expert_parallel=2),
        planned("qwen3-30b-a3b", software=SoftwareEntry(dispatcher="flex", gradients="fp32", fused_loss=True)),
    ),
    "selective": (plan(17, 17, recompute=Recompute.SELECTIVE), planned("llama-3.1-8b")),
    "selective-fp8": (plan(17, 17, recompute=Recompute.SELECTIVE), planned("llama-3.1-8b", precision="fp8")),
    "some-layers": (plan(17, 17, recompute=Recompute.FULL, some=(6, 5)), planned("llama-3.1-8b")),
    "fp8": (plan(17, 17), planned("llama-3.1-8b", precision="fp8")),
    "fp8-sharded": (plan(17, 17, zero_stage=1), planned("llama-3.1-8b", precision="fp8")),
    "interleaved": (plan(17, 17, **VIRTUAL), planned("llama-3.1-8b")),
    "interleaved-uneven": (plan(9, 9, 8, 8, **VIRTUAL), planned("llama-3.1-8b")),
    "interleaved-ends": (plan(2, 5, 5, 2, **VIRTUAL), planned("gpt2")),
    "biases": (plan(17, 17), planned("llama-3.1-8b").model_copy(update={"architecture": QKV_BIAS})),
    "gpt": (plan(7, 7, recompute=Recompute.FULL), planned("gpt2", optimizer="adam")),
    "gpt-neox": (plan(23, 23), planned("gpt-neox-20b")),
    "moe": (plan(25, 25), planned("qwen3-30b-a3b")),
    "moe-shared": (plan(25, 25), shared_gate(planned("qwen3-30b-a3b"))),
    "linear": (plan(25, 25), planned("qwen3-next-80b-a3b")),
    "latent": (plan(32, 31), planned("deepseek-v3", sequence=4096)),
    "fp32": (plan(7, 7), planned("gpt2", precision="fp32")),
}


def launched(chosen, job, per_node=8):
    names = chosen.domains
    layout = RankLayout(
        chosen, dict.fromkeys(names, 64), dict.fromkeys(names, per_node), dict.fromkeys(names, "card")
    )
    return render(layout, job)


@pytest.mark.parametrize("case", CASES)
def test_megatrons_parser_knows_every_option_and_its_checks_pass(case):
    chosen, job = CASES[case]
    given = parser().parse_args(words(launched(chosen, job)))
    check(given, chosen.num_devices)
    assert given.num_layers == model(job.model).num_layers


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("interleaved", {"--num-virtual-stages-per-pipeline-rank 2"}),
        ("interleaved-uneven", {f"--pipeline-model-parallel-layout E{'|'.join(map('t'.__mul__, UNEVEN))}L"}),
        ("interleaved-ends", {"--pipeline-model-parallel-layout E|ttt|ttt|t|t|tt|tt|L"}),
    ],
)
def test_the_chunks_of_an_interleaved_plan_are_those_of_its_rank_map(case, expected):
    launch = launched(*CASES[case])
    assert expected <= set(launch.files["megatron-args.txt"].splitlines())
    chosen, job = CASES[case]
    layers = [n for c in range(2) for rank in launch.ranks.ranks if rank.copy == rank.tensor_rank == 0
              for n in range(rank.chunks[c][0], rank.chunks[c][1] + 1)]  # fmt: skip
    assert layers == list(range(job.num_layers))
    assert len(chosen.pipelines[0].stages) * 2 == sum(len(r.chunks) for r in launch.ranks.ranks) // 4


@pytest.mark.parametrize(
    ("case", "strategy", "instances"),
    [("zero-2", "optim_grads", None), ("fsdp", "optim_grads_params", None), ("hsdp", "optim_grads_params", 2)],
)
def test_zero_2_and_3_are_megatrons_fsdp(case, strategy, instances):
    launch = launched(*CASES[case])
    given = parser().parse_args(words(launch))
    assert given.data_parallel_sharding_strategy == strategy
    assert given.num_distributed_optimizer_instances == instances
    # Megatron-FSDP refuses to run with one queue, all else with several.
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS\n" in launch.files["launch-a.sh"]
    assert "MAX_CONNECTIONS:-1" in launched(*CASES["llama"]).files["launch-a.sh"]


def test_copies_of_each_site_shard_among_themselves():
    """Two pipelines, two copies each: the optimizer is sharded over 2 of the 4 copies, not over a slow link."""
    one = plan(17, 17, zero_stage=1, microbatches=4)
    other = Pipeline(tuple(replace(stage, domain="b") for stage in one.pipelines[0].stages), 2, 4)
    both = replace(one, pipelines=(*one.pipelines, other))
    given = parser().parse_args(words(launched(both, planned("llama-3.1-8b"))))
    assert given.use_distributed_optimizer
    assert given.num_distributed_optimizer_instances == 2
    single = replace(both, pipelines=tuple(replace(p, replicas=1) for p in both.pipelines))
    alone = parser().parse_args(words(launched(single, planned("llama-3.1-8b"))))
    assert not alone.use_distributed_optimizer  # a copy alone shards nothing
    uneven = replace(both, pipelines=(both.pipelines[0], replace(other, replicas=3)))
    with pytest.raises(UsageError, match="shards over 2, 3 copies"):
        launched(uneven, planned("llama-3.1-8b"))


def test_fp8_copies_of_weights_are_counted_or_said():
    launch = launched(*CASES["fp8"])
    assert "--fp8-param-gather" not in words(launch)
    assert any("FP8 copies" in note for note in launch.notes)
    sharded = launched(*CASES["fp8-sharded"])
    assert "--fp8-param-gather" in words(sharded)
    assert not any("FP8 copies" in note for note in sharded.notes)


def test_a_group_of_microbatches_that_megatron_does_not_interleave_is_refused():
    with pytest.raises(UsageError, match="interleaves 7 microbatches over 2 stages"):
        launched(plan(17, 17, microbatches=7, **VIRTUAL), planned("llama-3.1-8b", batch=28))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (plan(17, 17, context=3), "1024 tokens do not divide into 6 parts"),
        (plan(17, 17, activation_offload=0.5), "offloads 50% of activations"),
        (plan(17, 17, recompute=Recompute.SELECTIVE, some=(3, 3)), "recomputes 3 layers a stage"),
        (plan(17, 17, recompute=Recompute.FULL, some=(3, 3), **VIRTUAL), "recomputes 3 layers a stage"),
        (plan(17, 17, recompute=Recompute.FULL, some=(6, 3)), "recomputes 3, 6 layers a stage"),
        (plan(17, 17, recompute=Recompute.FULL, some=(0, None)), "recomputes 0, 17 layers a stage"),
    ],
)
def test_what_megatron_has_no_words_for_is_refused(chosen, message):
    with pytest.raises(UsageError, match=message):
        launched(chosen, planned("llama-3.1-8b"))


def test_parts_of_a_sequence_are_numbered_as_megatron_does():
    """rank = tp + TP (cp + CP (dp + DP pp)), or with copies before stages (megatron/core/parallel_state.py)."""
    chosen, job = CASES["context"]
    for rank in launched(chosen, job).ranks.ranks:
        assert rank.rank == rank.tensor_rank + 2 * (rank.context_rank + 2 * (rank.stage + 2 * rank.copy))
    groups = launched(chosen, job).ranks.data_groups
    assert {len(group.ranks) for group in groups} == {4}  # two copies, two parts of the sequence


@pytest.mark.parametrize(
    ("software", "more", "why"),
    [
        ({"overlap_experts": True}, {}, "they are not spread"),
        ({"overlap_experts": True}, {"expert_parallel": 2}, "does not interleave"),
        ({"overlap_experts": True}, {"expert_parallel": 2, "recompute": Recompute.FULL}, "recomputes in full"),
        ({"token_drop": True, "dispatcher": "flex"}, {"expert_parallel": 2}, "drops tokens with the flex"),
    ],
)
def test_software_that_megatron_is_not_is_refused(software, more, why):
    job = planned("qwen3-30b-a3b", software=SoftwareEntry(**software))
    with pytest.raises(UsageError, match=why):
        launched(plan(25, 25, **more), job)


def test_times_of_pytorchs_own_kernels_are_noted():
    notes = [launched(plan(17, 17), planned("llama-3.1-8b", **more)).notes for more in (
        {}, {"software": SoftwareEntry(framework="pytorch")},
    )]  # fmt: skip
    assert ["PyTorch" in " ".join(each) for each in notes] == [False, True]


def test_weight_gradients_apart_are_refused():
    with pytest.raises(UsageError, match=r"gradients of weights apart \(zb-h1\)"):
        launched(plan(17, 17, schedule=Schedule.ZERO_BUBBLE), planned("llama-3.1-8b"))


def test_a_folded_pipeline_is_refused_with_what_runs_it():
    folded = replace(plan(17, 17, schedule=Schedule.DUAL_PIPE_V), virtual_stages=2)
    with pytest.raises(UsageError, match=r"Megatron has no such schedule") as caught:
        launched(folded, planned("llama-3.1-8b"))
    assert "ScheduleDualPipeV" in str(caught.value.hint)


def test_every_option_of_the_file_is_given_in_some_case():
    used = {word for chosen, job in CASES.values() for word in words(launched(chosen, job))}
    assert used & set(OPTIONS) == set(OPTIONS)


@pytest.mark.parametrize(
    ("precision", "optimizer", "kept"),
    [("bf16", "adamw", 16), ("fp16", "adamw", 16), ("fp32", "adamw", 16), ("bf16", "sgd", 8)],
)
def test_megatron_keeps_as_many_bytes_a_parameter_as_the_plan_counts(precision, optimizer, kept):
    """Weights and gradients in compute precision, and fp32 weights and moments (arXiv 1910.02054 §3.1)."""
    job = planned("gpt2", precision=precision, optimizer=optimizer)
    given = parser().parse_args(words(launched(plan(7, 7), job)))
    is_half = given.bf16 or given.fp16
    gradient = 4 if given.bf16 and not given.grad_reduce_in_bf16 else 2 if is_half else 4
    moments = 8 if given.optimizer == "adam" else 4 if given.sgd_momentum else 0
    assert (2 if is_half else 4) + gradient + (4 if is_half else 0) + moments == kept


PROBE = """
import argparse, json, os, sys
from megatron.training.arguments import add_megatron_arguments
actions = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))._actions
table = {}
for action in actions:
    kind = getattr(action.type, "__name__", None)
    takes = list(map(str, action.choices)) if action.choices else "flag" if action.nargs == 0 else kind
    for name in action.option_strings:
        table[name] = takes
json.dump(table, sys.stdout)
"""


@pytest.mark.real("torch")
@pytest.mark.skipif(not os.environ.get("MEGATRON"), reason="needs MEGATRON, the folder of a Megatron-LM checkout")
def test_the_file_says_what_megatrons_own_parser_says():
    path = [os.environ["MEGATRON"], *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    answer = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    found = json.loads(answer.stdout[answer.stdout.index("{") :])
    assert {name: found.get(name) for name in OPTIONS} == OPTIONS
