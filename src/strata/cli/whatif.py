"""`strata whatif`: plan as things are and as they would be; the two decisions side by side."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.planning import time_limit_s
from strata.cli.whatif_table import NONE, points, serving_figures, show_changes
from strata.errors import OutOfTime, UsageError
from strata.units import show_bytes, show_count, show_time, show_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.fleet.changes import ValueChange
    from strata.fleet.comparison import Comparison
    from strata.serving.planning.allocate import Strategy
    from strata.serving.planning.goal import Goal
    from strata.training.plan.report import TrainingPlanReport


@click.command()
@click.argument("fleet")
@click.argument("job")
@click.option("--set", "settings", multiple=True, required=True, metavar="PATH=VALUE", help="May be repeated.")
@click.option("--time-limit", default="30s", help="Stop either search after so long.")
@output_option
def whatif(fleet: str, job: str, settings: tuple[str, ...], time_limit: str, output: str) -> int:
    """Plan a training or serving JOB on a FLEET as they are, and again with something set to another value.

    \b
    link.A-B.KEY     bandwidth, latency, rtt or price, both directions (A>B: one)
    domain.NAME.KEY  num_gpus, gpus_per_node, accelerator, price,
                     intra_bandwidth, network_bandwidth or uplink
    job.KEY          global_batch, sequence, precision, optimizer, recompute,
                     schedules, zero, expert_imbalance, local_steps, compress,
                     minimize, weights, efficiency, or limits.cost,
                     .tokens_per_s, .domains, .memory_headroom, or
                     parallel.tensor, .pipeline, .data, .microbatch, .context,
                     .expert, .virtual_stages, or software.framework, .dispatcher,
                     .token_drop, .overlap_experts, .cuda_graphs, .compiled,
                     .async_tensor_parallel, .fused_loss, .gradients
    of serving jobs  prompt, output, batch, rate, goals.ttft, goals.tpot,
                     precision.weights, .kv, efficiency.flops, .bandwidth,
                     memory_headroom, strategy

    \b
    strata whatif aws10 opt-350m --set link.Seoul-Ireland.bandwidth=1Gbps
    strata whatif fleet.yaml job.yaml --set domain.West=none --set job.minimize=cost
    strata whatif aws10 serve-llama-3.1-70b --set job.precision.weights=fp8

    A saved serving plan may stand for its JOB: both are then planned for its goal, by its strategy.
    `link.A-B=none` and `domain.NAME=none` take a link or a domain away; a link that is not there is added by
    its bandwidth and latency. Exits 3 where no plan fits then, 6 where the time limit passed first.
    """
    limit_s = time_limit_s(time_limit)
    is_serving = _is_serving(job)
    data = (_serving if is_serving else _training)(fleet, job, settings, limit_s)
    emit(data, output, show_changes(data, (serving_figures if is_serving else _figures)(data)))
    return 0 if data["new"]["plan"] is not None else 3


def _is_serving(job: str) -> bool:
    """Whether a job is one to be served, or a saved plan of one: what its file says, or where it is bundled."""
    from strata.files import read_document
    from strata.workload.serving_schema import BUNDLED_SERVING_JOBS

    if Path(job).is_file():
        data = read_document(job).data
        return isinstance(data, dict) and data.get("kind") in ("ServingJob", "ServingPlan")
    return (BUNDLED_SERVING_JOBS / f"{job}.yaml").is_file()


def _serving(fleet: str, job: str, settings: tuple[str, ...], limit_s: float) -> dict[str, Any]:
    from strata.fleet.changes import apply_settings
    from strata.fleet.schema import load_fleet
    from strata.serving.planning.planner import plan_serving
    from strata.serving.planning.whatif import JOB_KEYS, compare
    from strata.workload.serving_schema import load_serving_job

    goal, strategy, job = _planned_with(job)
    before = load_fleet(fleet), load_serving_job(job)
    new_fleet, new_job, changes = apply_settings(*before, settings, keys=JOB_KEYS)
    answers = []
    for label, (hardware, work) in (("as it is", before), ("what if", (new_fleet, new_job))):
        with progress(label):
            answers.append(
                plan_serving(
                    hardware,
                    work,
                    clock=time.perf_counter,
                    strategy=strategy or work.strategy,
                    goal=goal,
                    time_limit_s=limit_s,
                )
            )
    comparison = compare(*answers)
    old, new = (
        answer.to_dict(work, inputs={"fleet": fleet, "job": job})
        for answer, work in zip(answers, (before[1], new_job), strict=True)
    )
    return _difference(changes, _serving_side(old), _serving_side(new), comparison)


def _planned_with(job: str) -> tuple[Goal, Strategy | None, str]:
    """Return goal, strategy and job of a saved plan; of a job itself the usual goal and no strategy."""
    from strata.files import read_document
    from strata.serving.planning.goal import Goal
    from strata.serving.planning.planfile import read_serving_plan

    if not Path(job).is_file() or read_document(job).data.get("kind") != "ServingPlan":
        return Goal.BOTH, None, job
    plan = read_serving_plan(job)
    if "job" not in plan.inputs:
        raise UsageError(f"{job} does not say which job it was made for", hint="strata whatif FLEET JOB --set ...")
    return plan.goal, plan.strategy, plan.inputs["job"]


def _serving_side(answer: dict[str, Any]) -> dict[str, Any]:
    """Return one side: its plan with its figures (None where none fits), and the reasons of its decision."""
    kept = ("strategy", "goal", "pipelines", "figures")
    return {
        "plan": {key: answer[key] for key in kept} if answer["pipelines"] else None,
        **{key: answer[key] for key in ("reasons", "trust", "inputs_digest", "search_s")},
    }


def _training(fleet: str, job: str, settings: tuple[str, ...], limit_s: float) -> dict[str, Any]:
    from strata.fleet.changes import apply_settings
    from strata.fleet.schema import load_fleet
    from strata.training.plan.comparison import compare
    from strata.training.plan.planner import plan_training
    from strata.training.plan.whatif import JOB_KEYS
    from strata.workload.schema import load_job

    before = load_fleet(fleet), load_job(job)
    new_fleet, new_job, changes = apply_settings(*before, settings, keys=JOB_KEYS)
    answers = []
    for label, (hardware, work) in (("as it is", before), ("what if", (new_fleet, new_job))):
        with progress(label):
            answer = plan_training(hardware, work, clock=time.perf_counter, time_limit_s=limit_s)
        if answer.search.interrupted:
            raise KeyboardInterrupt  # one plan and half of another compare to nothing
        if answer.best is None and answer.search.stopped:
            raise OutOfTime(f"no plan within {show_time(limit_s)} ({label})", hint="a longer --time-limit")
        answers.append(answer)
    old, new = answers
    return _difference(changes, _side(old), _side(new), compare(old, new))


def _difference(
    changes: Sequence[ValueChange], old: dict[str, Any], new: dict[str, Any], comparison: Comparison
) -> dict[str, Any]:
    return {
        "changes": [asdict(change) for change in changes],
        "old": old,
        "new": new,
        "difference": comparison.to_dict(),
        "text": comparison.text,
    }


def _side(answer: TrainingPlanReport) -> dict[str, Any]:
    """Return one side: its plan (None where none fits), and the reasons of its decision."""
    from strata.training.plan.report import plan_dict

    best, chosen = answer.best, answer.decision.reasons[:1]
    return {
        "plan": None if best is None else plan_dict(answer.problem, best, 1, chosen),
        "reasons": [reason.to_dict() for reason in answer.decision.reasons],
        "trust": str(answer.decision.trust),
        "inputs_digest": answer.decision.inputs_digest,
        "search_s": answer.decision.elapsed_s,
    }


def _figures(data: dict[str, Any]) -> list[list[str]]:
    """Return a row a figure: its name, how it is now, how it would be, and the change."""
    old, new, moved = data["old"]["plan"], data["new"]["plan"], data["difference"]

    def both(key: str, show: Any) -> list[str]:
        sides = [side and side[key] for side in (old, new)]
        return [NONE if value is None else show(value) for value in sides]

    def times(key: str) -> str:
        ratio = moved[f"{key}_ratio"]
        return "" if ratio is None else f"{ratio:.2f}x"

    more_wan = moved["wan_bytes_per_step_difference"]
    wan = f"{'-' if more_wan < 0 else '+'}{show_bytes(abs(more_wan))}" if more_wan else ""
    return [
        ["plan", *both("kind", str), "same" if moved["same_plan"] else ""],
        ["step time", *both("step_time_s", show_time), times("step_time_s")],
        ["tokens/s", *both("tokens_per_s", show_count), times("tokens_per_s")],
        ["utilisation", *both("utilization", "{:.1%}".format), points(moved["utilization_difference"])],
        ["GPUs", *both("num_devices", str), ""],
        ["WAN a step", *both("wan_bytes_per_step", show_bytes), wan],
        ["$/Mtoken", *both("cost_usd_per_mtoken", show_usd), times("cost_usd_per_mtoken")],
        ["trust", *both("trust", str), ""],
    ]
