"""Launch files for Megatron-LM: an argument file, a script a domain, and the rank map Megatron will use.

Megatron numbers its ranks itself: tensor rank first, then data parallel, then stage (`tp-cp-ep-dp-pp`), or tensor,
stage, data parallel with `--use-tp-pp-dp-mapping`. Where one of the two walks the plan's devices node by node,
torchrun launches it; else every process is started with the RANK that belongs to its device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata.errors import UsageError
from strata.simulate.pipeline import classic_warmup
from strata.training.export.launch import (
    DUAL_PIPE_HINT,
    DomainNodes,
    LaunchFiles,
    domain_nodes,
    ranks_json,
    shell_head,
)
from strata.training.export.megatron_arguments import arguments, global_batch, recomputed_blocks, uses_fsdp
from strata.training.export.megatron_model import missing
from strata.training.export.ranks import Rank, RankLayout, RankMap, rank_map
from strata.training.plan.planned import PlannedJob
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import TrainingPlan
from strata.workload.script import comment


def render(layout: RankLayout, job: PlannedJob) -> LaunchFiles:
    """Return the launch files. Raises UsageError, with every reason, where Megatron would train something else."""
    plan = layout.plan
    refusals = list(_refusals(plan, job))
    if refusals:
        apart = plan.schedule is Schedule.ZERO_BUBBLE
        again = "train.schedules: [1f1b, 1f1b-la, interleaved] in the job, or " if apart else ""
        folded = plan.schedule is Schedule.DUAL_PIPE_V
        hint = DUAL_PIPE_HINT if folded else f"{again}strata export --to torchrun"
        raise UsageError("Megatron-LM cannot run this plan: " + "; ".join(refusals), hint=hint)
    ranks = rank_map(layout)
    order, mapping = _order(ranks)
    ranks = ranks.renumbered(order)
    notes = tuple(_notes(plan, job))
    domains = domain_nodes(ranks)
    is_in_order = order == sorted(order)
    given = [*arguments(plan, job), *(["--use-tp-pp-dp-mapping"] if mapping and is_in_order else [])]
    files = {
        "ranks.json": ranks_json(ranks, plan),
        "megatron-args.txt": comment([f"Megatron-LM arguments of {job.name}.", *(f"note: {n}" for n in notes)])
        + "\n".join(given)
        + "\n",
    }
    for nodes in domains:
        head = shell_head(
            nodes,
            launcher="Megatron-LM",
            first=domains[0].domain,
            notes=notes,
            more=[
                "  MEGATRON     the folder of a Megatron-LM checkout",
                "Arguments go to pretrain_gpt.py: data, tokenizer, learning rate, checkpoints.",
            ],
        )
        files[f"launch-{nodes.slug}.sh"] = (
            head + _start(plan) + (_torchrun(nodes) if is_in_order else _each(nodes, ranks))
        )
    return LaunchFiles(files, ranks, notes)


def _start(plan: TrainingPlan) -> str:
    """Return the lines that read the arguments. NCCL's order takes one queue of kernels, FSDP several."""
    queues = 'export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"'
    if uses_fsdp(plan):
        queues = "unset CUDA_DEVICE_MAX_CONNECTIONS"
    return f"""\
: "${{MEGATRON:?set it to the folder of a Megatron-LM checkout}}"
{queues}
ARGS=()
while read -r -a words; do
  [[ -z ${{words[*]}} || ${{words[0]}} == \\#* ]] || ARGS+=("${{words[@]}}")
done <"$(dirname "$0")/megatron-args.txt"
"""


def _torchrun(nodes: DomainNodes) -> str:
    return f"""exec torchrun --nnodes={nodes.num_nodes} --node-rank=$(({nodes.first_node} + NODE_INDEX)) \\
  --nproc-per-node="${{PROCESSES[NODE_INDEX]}}" \\
  --rdzv-backend=static --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \\
  "$MEGATRON/pretrain_gpt.py" "${{ARGS[@]}}" "$@"
"""


def _each(nodes: DomainNodes, ranks: RankMap) -> str:
    """Return the launch of every process by itself: torchrun would number the ranks node by node."""
    table = " ".join(f'"{" ".join(str(rank.rank) for rank in node)}"' for node in nodes.nodes)
    return f"""# Megatron's order of ranks does not walk the nodes in turn, so each process is given its rank.
RANKS=({table})  # on each node, devices in order
export MASTER_ADDR MASTER_PORT WORLD_SIZE={len(ranks.ranks)} LOCAL_WORLD_SIZE="${{PROCESSES[NODE_INDEX]}}"
LOCAL_RANK=0
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
for RANK in ${{RANKS[NODE_INDEX]}}; do
  RANK=$RANK LOCAL_RANK=$LOCAL_RANK python "$MEGATRON/pretrain_gpt.py" "${{ARGS[@]}}" "$@" &
  LOCAL_RANK=$((LOCAL_RANK + 1))
done
for ((i = 0; i < LOCAL_RANK; i++)); do wait -n; done
"""


def _refusals(plan: TrainingPlan, job: PlannedJob) -> Iterator[str]:
    """Yield what would make Megatron train another way, or elsewhere."""
    first = plan.pipelines[0]
    if len({tuple((s.first_layer, s.num_layers) for s in pipeline.stages) for pipeline in plan.pipelines}) > 1:
        yield "its pipelines cut the layers at different places, and Megatron cuts all copies alike"
    if len({pipeline.microbatches for pipeline in plan.pipelines}) > 1:
        counts = ", ".join(str(pipeline.microbatches) for pipeline in plan.pipelines)
        yield f"its pipelines work through {counts} microbatches a copy, and Megatron gives every copy as many"
    degrees = sorted({stage.tensor_parallel for pipeline in plan.pipelines for stage in pipeline.stages})
    if len(degrees) > 1:
        yield f"its stages are tensor parallel over {', '.join(map(str, degrees))}, and Megatron has one degree"
    parts = sorted({stage.context_parallel for pipeline in plan.pipelines for stage in pipeline.stages})
    if len(parts) > 1:
        yield f"its stages are context parallel over {', '.join(map(str, parts))}, and Megatron has one degree"
    elif parts[0] > 1 and job.sequence_length % (2 * parts[0]):
        yield (
            f"{job.sequence_length} tokens do not divide into {2 * parts[0]} parts, and Megatron gives each of "
            f"{parts[0]} context ranks two"
        )
    if recomputed_blocks(plan) is None:
        again = {s.num_layers if s.recompute_layers is None else s.recompute_layers for s in first.stages}
        counts = ", ".join(map(str, sorted(again)))
        each = "chunk" if plan.virtual_stages > 1 else "stage"
        yield f"it recomputes {counts} layers a stage, and Megatron as many blocks of each {each}, in full"
    if plan.activation_offload:
        yield f"it offloads {plan.activation_offload:.0%} of activations, and Megatron whole layers or modules"
    if plan.schedule is Schedule.ZERO_BUBBLE:
        yield f"it computes gradients of weights apart ({plan.schedule}), and Megatron with those of inputs"
    if plan.schedule is Schedule.DUAL_PIPE_V:
        yield f"it goes down the stages and back up ({plan.schedule}), and Megatron has no such schedule"
        return
    rest = [p.microbatches % len(p.stages) for p in plan.pipelines]
    if plan.virtual_stages > 1 and any(rest):
        yield (
            f"it interleaves {first.microbatches} microbatches over {len(first.stages)} stages, and Megatron "
            "takes whole groups of as many microbatches as there are stages"
        )
    yield from _unlike_software(plan, job)
    if plan.local_steps > 1:
        yield f"it crosses domains every {plan.local_steps} steps (DiLoCo), and Megatron does so every step"
    copies = sorted({pipeline.replicas for pipeline in plan.pipelines})
    if plan.zero_stage and len(copies) > 1:
        yield (
            f"it shards over {', '.join(map(str, copies))} copies (ZeRO stage {plan.zero_stage}), and Megatron "
            "over groups of one size"
        )
    if sum(stage.num_layers for stage in first.stages) < 3:
        yield "it has no layer between embedding and head"


def _unlike_software(plan: TrainingPlan, job: PlannedJob) -> Iterator[str]:
    """Yield what the job's `software:` does and Megatron does not (`TransformerConfig.__post_init__`)."""
    software, stages = job.software, plan.pipelines[0].stages
    if software.overlap_experts and plan.expert_parallel == 1:
        yield "it overlaps what experts exchange (overlap_experts), and they are not spread"
    elif software.overlap_experts and plan.recompute is Recompute.FULL:
        yield "it recomputes in full, and Megatron does not where exchanges of experts overlap (overlap_experts)"
    elif software.overlap_experts and len(stages) > 1 and plan.virtual_stages == 1:
        yield "it does not interleave, and Megatron does where exchanges of experts overlap (overlap_experts)"
    if software.token_drop and software.dispatcher == "flex":
        yield "it drops tokens with the flex dispatcher, and Megatron pads experts with alltoall alone"


def _notes(plan: TrainingPlan, job: PlannedJob) -> Iterator[str]:
    """Yield what Megatron does otherwise with the same result, at another speed."""
    pipeline = plan.pipelines[0]
    count = pipeline.microbatches
    classic = [min(depth, count - 1) for depth in classic_warmup(len(pipeline.stages))]
    for item in plan.pipelines:
        planned = [min(stage.warmup, count - 1) for stage in item.stages]
        if planned != classic and plan.virtual_stages == 1:
            yield (
                f"Megatron runs 1F1B with {classic} forwards before the first backward, the plan "
                f"({plan.schedule}) with {planned}: step time and memory will not be the plan's"
            )
            break
    if plan.gradient_compression != 1:
        yield (
            f"Megatron does not compress gradients; the plan does, {plan.gradient_compression:g} to 1, so sums "
            "across domains will take longer than the plan's"
        )
    if job.precision == "fp8" and plan.state_shards(pipeline) == 1:
        yield (
            "Transformer Engine keeps FP8 copies of bf16 weights (--fp8-param-gather takes a sharded optimizer): "
            "up to 2 bytes a parameter more than the plan's"
        )
    if plan.recompute is Recompute.SELECTIVE_OP:
        yield "Megatron keeps all products, of which the plan computes every second again: it takes more memory"
    if plan.recompute is Recompute.SELECTIVE:
        yield (
            "Megatron recomputes no activation function alone: it computes the whole MLP again, so a stage takes "
            "longer and keeps less than the plan's"
        )
    if job.hidden_size is None or job.num_heads is None:
        yield "the plan file does not say the model's shape: pass --hidden-size and --num-attention-heads"
    if job.architecture is not None:
        yield from missing(job.architecture)
    if job.software.framework == "pytorch":
        yield "the plan's times are of PyTorch's own kernels (software: framework: pytorch), not of Megatron's"
    batch = global_batch(plan)
    if batch != job.global_batch:
        yield f"whole microbatches make a global batch of {batch} where the job has {job.global_batch}"


def _order(ranks: RankMap) -> tuple[list[int], bool]:
    """Return our rank of each Megatron rank, and whether that takes `--use-tp-pp-dp-mapping`.

    rank = tp + TP (cp + CP (dp + DP pp)), with the option tp + TP (cp + CP (pp + PP dp))
    (megatron/core/parallel_state.py).
    """
    inner = sorted(ranks.ranks, key=lambda r: (r.context_rank, r.tensor_rank))
    default = _numbers(sorted(inner, key=lambda r: (r.stage, r.pipeline, r.copy)))
    if default == sorted(default):
        return default, False
    copies_first = _numbers(sorted(inner, key=lambda r: (r.pipeline, r.copy, r.stage)))
    return (copies_first, True) if copies_first == sorted(copies_first) else (default, False)


def _numbers(ranks: Sequence[Rank]) -> list[int]:
    return [rank.rank for rank in ranks]
