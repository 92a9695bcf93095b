"""Launch files for torchrun: a script a domain, the rank map, and a training script that runs the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strata.bundled import bundled_text
from strata.errors import UsageError
from strata.training.export.launch import DUAL_PIPE_HINT, LaunchFiles, domain_nodes, ranks_json, shell_head
from strata.training.export.ranks import RankLayout, rank_map
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import TrainingPlan
from strata.workload.software_schema import SoftwareEntry

PLAIN_SOFTWARE: Final = SoftwareEntry()

# The training script is kept importable, so that it is linted and typed; the copy finds beside it what it imports.
_BESIDE: Final = (("strata.workload", "tiny"), ("strata.training.program", "client"))


def render(layout: RankLayout, *, software: SoftwareEntry = PLAIN_SOFTWARE) -> LaunchFiles:
    """Return the launch files of a job that runs with some software. Raises UsageError where a plan has no rank
    map."""
    if any(stage.context_parallel > 1 for pipeline in layout.plan.pipelines for stage in pipeline.stages):
        raise UsageError(
            "train.py cannot split a sequence between ranks (context parallelism)",
            hint="strata export --to megatron",
        )
    if layout.plan.schedule is Schedule.DUAL_PIPE_V:
        raise UsageError(f"train.py does not run {layout.plan.schedule}", hint=DUAL_PIPE_HINT)
    ranks = rank_map(layout)
    notes = (*_notes(layout.plan), *_other_software(software))
    domains = domain_nodes(ranks)
    files = {"ranks.json": ranks_json(ranks, layout.plan)}
    for nodes in domains:
        head = shell_head(
            nodes, launcher="torchrun", first=domains[0].domain, notes=notes, more=["Arguments go to train.py."]
        )
        files[f"launch-{nodes.slug}.sh"] = f"""{head}cd "$(dirname "$0")"
exec torchrun --nnodes={nodes.num_nodes} --node-rank=$(({nodes.first_node} + NODE_INDEX)) \\
  --nproc-per-node="${{PROCESSES[NODE_INDEX]}}" \\
  --rdzv-backend=static --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \\
  train.py "$@"
"""
    train = bundled_text("strata.training.export", "train.py")
    for package, module in _BESIDE:
        assert f"from {package}.{module} import" in train, f"train.py imports {module}"
        train = train.replace(f"from {package}.{module} import", f"from {module} import")
        files[f"{module}.py"] = bundled_text(package, f"{module}.py")
    files["train.py"] = train
    return LaunchFiles(files, ranks, notes)


def _notes(plan: TrainingPlan) -> Iterator[str]:
    if plan.local_steps > 1:
        yield (
            f"train.py sums gradients across domains every step; the plan does so every {plan.local_steps} steps "
            "(DiLoCo), so the measured step time will be longer than the plan's"
        )
    if plan.gradient_compression != 1:
        yield (
            f"train.py does not compress gradients; the plan does, {plan.gradient_compression:g} to 1, so sums "
            "across domains will take longer than the plan's"
        )
    if plan.expert_parallel > 1:
        yield "train.py's stand-in model has no experts, so it does not try what the plan exchanges between them"
    if plan.recompute in (Recompute.SELECTIVE, Recompute.SELECTIVE_OP):
        yield "train.py keeps what the plan computes again (selective recomputation), so a rank needs more memory"
    if plan.activation_offload:
        yield "train.py keeps activations on the device; the plan offloads some, so a rank needs more memory"
    if plan.schedule is Schedule.ZERO_BUBBLE:
        yield "train.py computes gradients of inputs again with those of weights: backwards take longer"
    if plan.zero_stage:
        yield (
            f"train.py does not shard {_SHARDED[plan.zero_stage]}; the plan does (ZeRO stage {plan.zero_stage}), "
            "so a rank needs more memory than the plan's"
        )


def _other_software(software: SoftwareEntry) -> Iterator[str]:
    """Yield what the job's `software:` does and plain PyTorch, as train.py has it, does not."""
    others = [key for key, value in software if value != getattr(PLAIN_SOFTWARE, key)]
    if others and not (others == ["framework"] and software.framework == "pytorch"):
        yield (
            f"train.py is plain PyTorch; the plan counts on the job's software ({', '.join(others)}), so its step "
            "time and memory will not be the plan's"
        )


_SHARDED: Final = {
    1: "the optimizer",
    2: "optimizer and gradients",
    3: "optimizer, gradients and weights",
}
