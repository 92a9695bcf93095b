"""The flags of Megatron-LM that follow from a plan: where it cuts the model, its batch, what it keeps in memory.

Names and meaning of the arguments: megatron/training/arguments.py of Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Iterator

from strata.training.export.megatron_model import model_arguments
from strata.training.plan.planned import PlannedJob
from strata.workload.job import ContextExchange, Recompute
from strata.workload.plan import TrainingPlan


def arguments(plan: TrainingPlan, job: PlannedJob) -> Iterator[str]:
    """Yield the arguments of a plan, one a line; those with a value have it after a space."""
    stages = plan.pipelines[0].stages
    yield f"--tensor-model-parallel-size {stages[0].tensor_parallel}"
    yield f"--pipeline-model-parallel-size {len(stages)}"
    if stages[0].tensor_parallel > 1:
        yield "--sequence-parallel"
    if stages[0].context_parallel > 1:
        yield f"--context-parallel-size {stages[0].context_parallel}"
        yield f"--cp-comm-type {'p2p' if plan.context_exchange is ContextExchange.RING else 'a2a'}"
    if plan.expert_parallel > 1:
        yield f"--expert-model-parallel-size {plan.expert_parallel}"
    yield from _split(plan)
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
        yield from model_arguments(job.architecture, job.num_layers - 2)
    yield from _software(job)
    yield f"--seq-length {job.sequence_length}"
    learned = job.architecture.max_positions if job.architecture else None
    yield f"--max-position-embeddings {learned or job.sequence_length}"
    yield f"--micro-batch-size {plan.microbatch_size}"
    yield f"--global-batch-size {global_batch(plan)}"
    # What it would do by default takes memory that the plan does not count: dropout's masks (a byte an element,
    # arXiv 2205.05198 §4.1), gradients in fp32 beside bf16 weights (18 bytes a parameter for 16), SGD's momentum.
    yield "--attention-dropout 0"
    yield "--hidden-dropout 0"
    if job.precision in ("bf16", "fp16", "fp8"):
        yield "--fp16" if job.precision == "fp16" else "--bf16"
    if job.precision in ("bf16", "fp8") and job.software.gradients == "model":
        yield "--grad-reduce-in-bf16"
    if job.precision == "fp8":
        yield "--fp8-format hybrid"
        yield "--fp8-recipe tensorwise"
    if job.optimizer == "sgd":
        yield "--optimizer sgd"
        yield "--sgd-momentum 0"
    else:
        yield "--optimizer adam"
    yield from _copies(plan, job)
    if plan.recompute is Recompute.SELECTIVE:
        yield "--recompute-granularity selective"
        is_latent = job.architecture is not None and job.architecture.latent is not None
        yield f"--recompute-modules layernorm mlp{' mla_up_proj' if is_latent else ''}"
    if plan.recompute is Recompute.FULL:
        yield "--recompute-granularity full"
        some = recomputed_blocks(plan)
        yield f"--recompute-method {'block' if some else 'uniform'}"
        yield f"--recompute-num-layers {some or 1}"


def _software(job: PlannedJob) -> Iterator[str]:
    """Yield what the job's `software:` says of how it runs, beside gradients."""
    software = job.software
    if job.architecture is not None and job.architecture.experts is not None:
        yield f"--moe-token-dispatcher-type {software.dispatcher}"  # by default every rank gathers all tokens
        if software.token_drop:
            yield "--moe-expert-capacity-factor 1.0"
            yield "--moe-pad-expert-input-to-capacity"
        if software.overlap_experts:
            yield "--overlap-moe-expert-parallel-comm"
    if software.cuda_graphs:
        yield "--cuda-graph-impl full_iteration"
        yield "--no-check-for-nan-in-loss-and-grad"
    if software.fused_loss:
        yield "--cross-entropy-loss-fusion"


def recomputed_blocks(plan: TrainingPlan) -> int | None:
    """Return how many blocks of each stage are recomputed in full, 0 for all; None where Megatron cannot say it.

    Megatron takes one number for all stages (the embedding is no block), and recomputes all where there are fewer.
    """
    stages = [stage for pipeline in plan.pipelines for stage in pipeline.stages]
    if all(stage.recompute_layers is None for stage in stages):
        return 0
    if plan.recompute is not Recompute.FULL or plan.virtual_stages > 1:
        return None
    last = max(stage.first_layer + stage.num_layers for stage in stages)
    blocks, again = [], []
    for stage in stages:
        before, after = int(stage.first_layer == 0), int(stage.first_layer + stage.num_layers == last)
        count = stage.num_layers - before - after
        some = stage.num_layers if stage.recompute_layers is None else stage.recompute_layers
        blocks.append(count)
        again.append(max(0, min(some - before, count)))
    most = max(again)
    return most if most and all(n == min(most, b) for n, b in zip(again, blocks, strict=True)) else None


def _copies(plan: TrainingPlan, job: PlannedJob) -> Iterator[str]:
    """Yield what copies exchange and shard. ZeRO-1 is the distributed optimizer, 2 and 3 are Megatron-FSDP.

    Context ranks hold the same weights and count as copies. Gradients are summed behind the last backward and
    weights fetched ahead of the work, as the plan counts.
    """
    copies = sum(pipeline.replicas * pipeline.stages[0].context_parallel for pipeline in plan.pipelines)
    shards = plan.state_shards(plan.pipelines[0])
    if copies > 1:
        yield "--overlap-grad-reduce"
    if shards == 1:
        return
    yield "--use-distributed-optimizer"
    yield "--overlap-param-gather"
    if copies > shards:
        yield f"--num-distributed-optimizer-instances {copies // shards}"
    if job.precision == "fp8":  # weights in FP8, rows and columns, take the two bytes of one in bf16
        yield "--fp8-param-gather"
    if uses_fsdp(plan):
        yield "--use-megatron-fsdp"
        sharded = "optim_grads" if plan.zero_stage == 2 else "optim_grads_params"
        yield f"--data-parallel-sharding-strategy {sharded}"
        yield "--ckpt-format fsdp_dtensor"
        yield "--init-model-with-meta-device"


def uses_fsdp(plan: TrainingPlan) -> bool:
    """Whether the plan shards more than the optimizer's state."""
    return plan.zero_stage > 1 and plan.state_shards(plan.pipelines[0]) > 1


def global_batch(plan: TrainingPlan) -> int:
    """Return the sequences of one step."""
    return plan.microbatch_size * sum(p.microbatches * p.replicas for p in plan.pipelines)


def _split(plan: TrainingPlan) -> Iterator[str]:
    """Yield how the layers are cut. Megatron counts transformer layers; ours count the embedding and the head."""
    stages, virtual = len(plan.pipelines[0].stages), plan.virtual_stages
    held = plan.held_layers(plan.pipelines[0])
    blocks = [len(held[s][c]) for c in range(virtual) for s in range(stages)]
    blocks[0] -= 1
    blocks[-1] -= 1
    if len(set(blocks)) == 1 and blocks[0]:
        if virtual > 1:
            yield f"--num-virtual-stages-per-pipeline-rank {virtual}"
        return
    middle = set(blocks[1:-1])
    if virtual == 1 and stages > 2 and len(middle) == 1 and min(blocks) > 0:
        yield f"--decoder-first-pipeline-num-layers {blocks[0]}"
        yield f"--decoder-last-pipeline-num-layers {blocks[-1]}"
        return
    layout = "|".join("t" * count for count in blocks)
    yield f"--pipeline-model-parallel-layout E{layout}L"
