"""Launch files for Megatron-LM: an argument file, a script a domain, and the rank map Megatron will use.

Megatron numbers its ranks itself: tensor rank first, then data parallel, then stage (`tp-cp-ep-dp-pp`), or tensor,
stage, data parallel with `--use-tp-pp-dp-mapping`. Where one of the two walks the plan's devices node by node,
torchrun launches it; else every process is started with the RANK that belongs to its device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from strata.errors import UsageError
from strata.simulate.pipeline import classic_warmup
from strata.training.export.launch import DomainNodes, LaunchFiles, domain_nodes, ranks_json, shell_head
from strata.training.export.ranks import Rank, RankLayout, RankMap, rank_map
from strata.training.plan.schema import PlannedJob, PlannedModel
from strata.workload.job import Recompute
from strata.workload.plan import TrainingPlan
from strata.workload.script import comment


def render(layout: RankLayout, job: PlannedJob) -> LaunchFiles:
    """Return the launch files. Raises UsageError, with every reason, where Megatron would train something else."""
    plan = layout.plan
    refusals = list(_refusals(plan))
    if refusals:
        raise UsageError(
            "Megatron-LM cannot run this plan: " + "; ".join(refusals), hint="strata export --to torchrun"
        )
    ranks = rank_map(layout)
    order, mapping = _order(ranks)
    ranks = ranks.renumbered(order)
    notes = tuple(_notes(plan, job))
    domains = domain_nodes(ranks)
    is_in_order = order == sorted(order)
    arguments = [*_arguments(plan, job), *(["--use-tp-pp-dp-mapping"] if mapping and is_in_order else [])]
    files = {
        "ranks.json": ranks_json(ranks, plan),
        "megatron-args.txt": comment([f"Megatron-LM arguments of {job.name}.", *(f"note: {n}" for n in notes)])
        + "\n".join(arguments)
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
            head + _ARGUMENTS + (_torchrun(nodes) if is_in_order else _each(nodes, ranks))
        )
    return LaunchFiles(files, ranks, notes)


_ARGUMENTS = """: "${MEGATRON:?set it to the folder of a Megatron-LM checkout}"
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
ARGS=()
while read -r option value; do
  [[ -z $option || $option == \\#* ]] || ARGS+=("$option" ${value:+"$value"})
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


def _refusals(plan: TrainingPlan) -> Iterator[str]:
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
    if plan.local_steps > 1:
        yield f"it crosses domains every {plan.local_steps} steps (DiLoCo), and Megatron does so every step"
    if plan.zero_stage > 1:
        yield f"it shards gradients (ZeRO stage {plan.zero_stage}), and Megatron's optimizer shards its state only"
    if sum(stage.num_layers for stage in first.stages) < 3:
        yield "it has no layer between embedding and head"


def _notes(plan: TrainingPlan, job: PlannedJob) -> Iterator[str]:
    """Yield what Megatron does otherwise with the same result, at another speed."""
    pipeline = plan.pipelines[0]
    count = pipeline.microbatches
    classic = [min(depth, count - 1) for depth in classic_warmup(len(pipeline.stages))]
    for item in plan.pipelines:
        planned = [min(stage.warmup, count - 1) for stage in item.stages]
        if planned != classic:
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
    if job.hidden_size is None or job.num_heads is None:
        yield "the plan file does not say the model's shape: pass --hidden-size and --num-attention-heads"
    if job.architecture is not None:
        yield from _missing(job.architecture)
    batch = _global_batch(plan)
    if batch != job.global_batch:
        yield f"whole microbatches make a global batch of {batch} where the job has {job.global_batch}"


def _global_batch(plan: TrainingPlan) -> int:
    return plan.microbatch_size * sum(p.microbatches * p.replicas for p in plan.pipelines)


def _order(ranks: RankMap) -> tuple[list[int], bool]:
    """Return our rank of each Megatron rank, and whether that takes `--use-tp-pp-dp-mapping`.

    rank = tp + TP (dp + DP pp), or tp + TP (pp + PP dp) with the option (megatron/core/parallel_state.py).
    """
    default = _numbers(sorted(ranks.ranks, key=lambda r: (r.stage, r.pipeline, r.copy, r.tensor_rank)))
    if default == sorted(default):
        return default, False
    copies_first = _numbers(sorted(ranks.ranks, key=lambda r: (r.pipeline, r.copy, r.stage, r.tensor_rank)))
    return (copies_first, True) if copies_first == sorted(copies_first) else (default, False)


def _numbers(ranks: Sequence[Rank]) -> list[int]:
    return [rank.rank for rank in ranks]


def _arguments(plan: TrainingPlan, job: PlannedJob) -> Iterator[str]:
    stages = plan.pipelines[0].stages
    yield f"--tensor-model-parallel-size {stages[0].tensor_parallel}"
    yield f"--pipeline-model-parallel-size {len(stages)}"
    if stages[0].tensor_parallel > 1:
        yield "--sequence-parallel"
    yield from _split([stage.num_layers for stage in stages])
    yield f"--num-layers {job.num_layers - 2}"
    if job.hidden_size is not None and job.num_heads is not None:
        yield f"--hidden-size {job.hidden_size}"
        yield f"--num-attention-heads {job.num_heads}"
        if job.num_kv_heads is not None and job.num_kv_heads != job.num_heads:
            yield "--group-query-attention"
            yield f"--num-query-groups {job.num_kv_heads}"
    if job.ffn_hidden_size is not None:
        yield f"--ffn-hidden-size {job.ffn_hidden_size}"
    if job.architecture is not None:
        yield from _architecture(job.architecture, job.num_layers - 2)
    yield f"--seq-length {job.sequence_length}"
    learned = job.architecture.max_positions if job.architecture else None
    yield f"--max-position-embeddings {learned or job.sequence_length}"
    yield f"--micro-batch-size {plan.microbatch_size}"
    yield f"--global-batch-size {_global_batch(plan)}"
    if job.precision in ("bf16", "fp16"):
        yield f"--{job.precision}"
    yield f"--optimizer {'sgd' if job.optimizer == 'sgd' else 'adam'}"
    if plan.zero_stage == 1:
        yield "--use-distributed-optimizer"
    if plan.recompute is Recompute.FULL:
        yield "--recompute-granularity full"
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"


def _architecture(model: PlannedModel, num_layers: int) -> Iterator[str]:
    """Yield activation, norm, positions, attention and experts (names: megatron/training/arguments.py)."""
    if model.gated_mlp:
        yield "--swiglu"
    yield f"--normalization {'LayerNorm' if model.norm_bias else 'RMSNorm'}"
    yield f"--position-embedding-type {'rope' if model.max_positions is None else 'learned_absolute'}"
    yield f"--vocab-size {model.vocab_size}"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if not (model.output_bias or model.mlp_bias):
        yield "--disable-bias-linear"
        if model.qkv_bias:
            yield "--add-qkv-bias"
    if model.qk_norm or model.latent is not None:  # latent attention has norms of its own on queries and keys
        yield "--qk-layernorm"
    if model.latent is None:
        yield f"--kv-channels {model.head_dim}"
    else:
        yield "--multi-latent-attention"
        if model.latent.q_lora_rank is not None:
            yield f"--q-lora-rank {model.latent.q_lora_rank}"
        yield f"--kv-lora-rank {model.latent.kv_lora_rank}"
        yield f"--qk-head-dim {model.latent.qk_nope_head_dim}"
        yield f"--qk-pos-emb-head-dim {model.latent.qk_rope_head_dim}"
        yield f"--v-head-dim {model.latent.v_head_dim}"
    if model.experts is not None:
        yield f"--num-experts {model.experts.num_experts}"
        yield f"--moe-router-topk {model.experts.experts_per_token}"
        yield f"--moe-ffn-hidden-size {model.experts.ffn_hidden_size}"
        if model.experts.shared_ffn_hidden_size:
            yield f"--moe-shared-expert-intermediate-size {model.experts.shared_ffn_hidden_size}"
        if model.experts.shared_gate:
            yield "--moe-shared-expert-gate"
        dense = set(model.experts.dense_layers)
        runs = groupby(int(layer not in dense) for layer in range(num_layers))
        yield f"--moe-layer-freq {'+'.join(f'[{sparse}]*{len(list(run))}' for sparse, run in runs)}"


def _missing(model: PlannedModel) -> Iterator[str]:
    """Yield what of a model the arguments do not say: a reader must, or Megatron cannot."""
    given = ["--norm-epsilon"]
    if model.max_positions is None:
        given.append("--rotary-base (and scaling)")
    if model.experts is not None:
        given.append("how the router scores, scales and groups experts (--moe-router-...)")
    yield f"the plan does not hold all of the {model.model_type} config, pass the rest: {', '.join(given)}"
    if model.model_type in _OTHER_ACTIVATIONS:
        yield f"{model.model_type} has the activation {_OTHER_ACTIVATIONS[model.model_type]}, not Megatron's"
    if model.norms_per_layer != 2:
        yield f"{model.model_type} has {model.norms_per_layer} norms a layer, and Megatron's layers have 2"
    if model.output_bias != model.mlp_bias or (model.mlp_bias and not model.qkv_bias):
        yield "some projections have biases and others none, and Megatron has them in all or in none"


_OTHER_ACTIVATIONS: Final = {"gemma": "GeGLU", "gemma2": "GeGLU", "gemma3_text": "GeGLU", "opt": "ReLU"}


def _split(counts: Sequence[int]) -> Iterator[str]:
    """Yield how the layers are cut. Megatron counts transformer layers; ours count the embedding and the head."""
    blocks = list(counts)
    blocks[0] -= 1
    blocks[-1] -= 1
    if len(blocks) == 1 or (len(set(blocks)) == 1 and blocks[0]):
        return
    middle = set(blocks[1:-1])
    if len(blocks) > 2 and len(middle) == 1 and min(blocks) > 0:
        yield f"--decoder-first-pipeline-num-layers {blocks[0]}"
        yield f"--decoder-last-pipeline-num-layers {blocks[-1]}"
        return
    parts = ["t" * count for count in blocks]
    yield f"--pipeline-model-parallel-layout {'|'.join(['E' + parts[0], *parts[1:-1], parts[-1] + 'L'])}"
