"""`strata whatif`: plan as things are and as they would be; the two decisions side by side."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.planning import time_limit_s
from strata.cli.whatif_serve_table import serving_changes
from strata.errors import OutOfTime, UsageError
from strata.tables import Shown, rows
from strata.units import show_bytes, show_count, show_time, show_usd

if TYPE_CHECKING:
    from strata.serving.planning.allocate import Strategy
    from strata.serving.planning.goal import Goal
    from strata.training.plan.report import TrainingPlanReport

_NONE: Final = "-"


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
    job.KEY          global_batch, recompute, local_steps, compress, minimize,
                     weights, efficiency, or limits.cost, .tokens_per_s,
                     .domains, .memory_headroom, or parallel.tensor,
                     .pipeline, .data, .microbatch
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
    emit(data, output, serving_changes(data) if is_serving else _show(data))
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
    from strata.fleet.schema import load_fleet
    from strata.serving.planning.planner import plan_serving
    from strata.serving.planning.whatif import apply, compare
    from strata.workload.serving_schema import load_serving_job

    goal, strategy, job = _planned_with(job)
    before = load_fleet(fleet), load_serving_job(job)
    new_fleet, new_job, changes = apply(*before, settings)
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
    return {
        "changes": [asdict(change) for change in changes],
        "old": _serving_side(old),
        "new": _serving_side(new),
        "difference": comparison.to_dict(),
        "text": comparison.text,
    }


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
    from strata.fleet.schema import load_fleet
    from strata.training.plan.comparison import compare
    from strata.training.plan.planner import plan_training
    from strata.training.plan.whatif import apply
    from strata.workload.schema import load_job

    before = load_fleet(fleet), load_job(job)
    new_fleet, new_job, changes = apply(*before, settings)
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
    comparison = compare(old, new)
    return {
        "changes": [{"path": change.path, "old": change.old, "new": change.new} for change in changes],
        "old": _side(old),
        "new": _side(new),
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


def _show(data: dict[str, Any]) -> Shown:
    for change in data["changes"]:
        yield f"what if {change['path']}: {change['old']} -> {change['new']}"
    if not data["changes"]:
        yield "these settings change nothing: all is set to what it is"
    yield ""
    body = [*_figures(data), *_domains(data)]
    yield rows(["", "now", "what if", "change"], body, right=(1, 2, 3))
    yield ""
    yield from _reasons(data)
    yield data["text"]


def _figures(data: dict[str, Any]) -> list[list[str]]:
    """Return a row a figure: its name, how it is now, how it would be, and the change."""
    old, new, moved = data["old"]["plan"], data["new"]["plan"], data["difference"]

    def both(key: str, show: Any) -> list[str]:
        sides = [side and side[key] for side in (old, new)]
        return [_NONE if value is None else show(value) for value in sides]

    def times(key: str) -> str:
        ratio = moved[f"{key}_ratio"]
        return "" if ratio is None else f"{ratio:.2f}x"

    more_wan = moved["wan_bytes_per_step_difference"]
    wan = f"{'-' if more_wan < 0 else '+'}{show_bytes(abs(more_wan))}" if more_wan else ""
    return [
        ["plan", *both("kind", str), "same" if moved["same_plan"] else ""],
        ["step time", *both("step_time_s", show_time), times("step_time_s")],
        ["tokens/s", *both("tokens_per_s", show_count), times("tokens_per_s")],
        ["utilisation", *both("utilization", "{:.1%}".format), _points(moved["utilization_difference"])],
        ["GPUs", *both("num_devices", str), ""],
        ["WAN a step", *both("wan_bytes_per_step", show_bytes), wan],
        ["$/Mtoken", *both("cost_usd_per_mtoken", show_usd), times("cost_usd_per_mtoken")],
        ["trust", *both("trust", str), ""],
    ]


def _points(difference: float | None) -> str:
    """Write a difference of two shares; "" where it would read zero."""
    return f"{100 * difference:+.1f} points" if difference and abs(difference) >= 0.0005 else ""


def _domains(data: dict[str, Any]) -> list[list[str]]:
    """Return a row a domain that either plan uses: its share of the work, and its devices."""

    def work(side: dict[str, Any] | None) -> str:
        if side is None:
            return _NONE
        return f"{side['share']:.0%} on {side['num_devices']} GPU{'s' if side['num_devices'] > 1 else ''}"

    body = []
    for name, sides in data["difference"]["domains"].items():
        old, new = sides["old"], sides["new"]
        if old is None or new is None:
            change = "joins" if old is None else "leaves"
        else:
            change = _points(new["share"] - old["share"])
        body.append([name, work(old), work(new), change])
    return body


def _reasons(data: dict[str, Any]) -> Shown:
    """Print the reasons of the new decision, `+` before those that are new, and `-` before those that are gone."""
    moved = data["difference"]
    for reason in moved["reasons_gone"]:
        yield f"- {reason['token']}: {reason['text']}"
    for reason in data["new"]["reasons"]:
        sign = "+" if reason in moved["reasons_appeared"] else " "
        yield f"{sign} {reason['token']}: {reason['text']}"
