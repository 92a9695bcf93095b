"""`strata explain`: why a plan was chosen, stage by stage, and why a domain or a node was not used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option, rows
from strata.errors import UsageError
from strata.units import show_bytes, show_time

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("plan", type=click.Path(dir_okay=False), required=False)
@click.option("--why-not", "why_not", metavar="DOMAIN", help="Why the plan does not use this domain (or node).")
@output_option
def explain(plan: str | None, why_not: str | None, output: str) -> int:
    """Say why PLAN was chosen, or why a domain was not.

    PLAN is what `strata plan train|serve --save` wrote, or what its `-o json` printed; without it, the latest
    answer.

    \b
    strata plan train aws10 llama-3.1-70b --save plan.json
    strata explain plan.json --why-not Tokyo
    """
    data = _latest() if plan is None else _read(plan)
    if data["kind"] == "ServingPlan":
        return _explain_serving(data, why_not, output)
    if why_not is None:
        emit(data, output, lambda console: _show(console, data))
        return 0 if data["plans"] else 3
    found = _why_not(data, why_not)
    emit(found, output, lambda console: console.print("\n".join(found["text"])))
    return 0


def _latest() -> dict[str, Any]:
    import os

    from strata.history import History, default_path

    path = default_path(os.environ)
    entries = []
    if path.exists():
        with History(path) as history:
            entries = [*history.latest("training", 1), *history.latest("serving", 1)]
    if not entries:
        raise UsageError("no plan has been made yet", hint="strata plan train seed llama-3.1-70b")
    return dict(max(entries, key=lambda entry: entry.id).decision)


def _read(path: str) -> dict[str, Any]:
    from strata.files import read_json

    data = read_json(path)
    if isinstance(data, dict) and data.get("kind") == "ServingPlan":
        from strata.serving.planning.planfile import read_serving_plan
        from strata.serving.planning.schema import ServingPlanFile

        read_serving_plan(path)  # tells what is wrong in the file, with its place
        return ServingPlanFile.model_validate(data).model_dump(mode="json", by_alias=True)
    if not isinstance(data, dict) or data.get("kind") != "TrainingAnswer" or "plans" not in data:
        kind = data.get("kind") if isinstance(data, dict) else None
        raise UsageError(
            f"{path}: is no answer of `strata plan`" + (f" (kind: {kind})" if kind else ""),
            hint="strata plan train FLEET JOB --save plan.json",
        )
    return data


def _explain_serving(data: dict[str, Any], why_not: str | None, output: str) -> int:
    from strata.cli.plan_serve_table import show_serving, why_not_serving

    if why_not is None:
        emit(data, output, lambda console: show_serving(console, data, next_command=False))
        return 0 if data["pipelines"] else 3
    found = why_not_serving(data, why_not)
    emit(found, output, lambda console: console.print("\n".join(found["text"])))
    return 0


def _show(console: Console, data: dict[str, Any]) -> None:
    from strata.cli.plan_table import show_answer

    show_answer(console, data, next_command=False)
    if not data["plans"]:
        return
    best = data["plans"][0]
    console.print()
    body = [
        [
            stage["domain"],
            stage["accelerator"],
            f"{stage['first_layer']}-{stage['first_layer'] + stage['num_layers'] - 1}",
            f"{stage['replicas']}x tp{stage['tensor_parallel']}",
            show_time(stage["forward_s"]),
            show_time(stage["backward_s"]),
            f"{show_bytes(stage['memory_bytes'])}/{show_bytes(stage['memory_limit_bytes'])}",
        ]
        for stage in best["stages"]
    ]
    console.print(
        rows(["stage in", "device", "layers", "copies", "fwd", "bwd", "memory"], body, right=range(4, 7))
    )


def _why_not(data: dict[str, Any], domain: str) -> dict[str, Any]:
    names = [item["name"] for item in data["fleet"]["domains"]]
    excluded = [reason for reason in data["reasons"] if reason["subject"] == domain]
    if domain not in names and not excluded:
        import difflib

        close = difflib.get_close_matches(domain, names, n=1)
        raise UsageError(
            f"no domain {domain!r} in this answer", hint=f"--why-not {close[0] if close else ' | '.join(names)}"
        )
    answer: dict[str, Any] = {"domain": domain, "used": False, "reasons": excluded, "best_with": None}
    if data["plans"] and domain in data["plans"][0]["domains"]:
        answer["used"] = True
        answer["text"] = [f"{domain} is used by the chosen plan, {data['plans'][0]['name']}"]
        return answer
    if excluded:
        answer["text"] = [reason["text"] for reason in excluded]
        return answer
    answer["best_with"] = _best_with(data, domain)
    answer["text"] = _sentences(data, domain, answer["best_with"])
    return answer


def _best_with(data: dict[str, Any], domain: str) -> dict[str, Any] | None:
    """Plan again with the domain forced in; the files the answer came from must still be there."""
    from dataclasses import replace

    from strata.fleet.schema import load_fleet
    from strata.training.plan.planner import best_with, plan_training
    from strata.training.plan.report import plan_dict
    from strata.workload.job import Objective
    from strata.workload.schema import load_job

    inputs = data["inputs"]
    fleet, job = load_fleet(inputs["fleet"]), load_job(inputs["job"])
    job = replace(job, objective=Objective(data["objective"]))
    answer = plan_training(fleet, job, clock=time.perf_counter, rank=0)
    item = best_with(answer, domain, clock=time.perf_counter)
    return None if item is None else plan_dict(answer, item, 1)


def _sentences(data: dict[str, Any], domain: str, item: dict[str, Any] | None) -> list[str]:
    if item is None:
        found = [alternative for alternative in data["alternatives"] if domain in alternative["domains"]]
        refusals = [f"{a['name']}: {reason['text']}" for a in found for reason in a["reasons"]]
        return [f"no plan that uses {domain} fits this job", *refusals[:3]]
    best = data["plans"][0]
    ratio = item["step_time_s"] / best["step_time_s"]
    lines = [
        f"the best plan with {domain} is {item['name']}: a step of {show_time(item['step_time_s'])}, "
        f"{ratio:.2f}x that of {best['name']}"
    ]
    lines += [f"  {reason['token']}: {reason['text']}" for reason in item["reasons"]]
    spent = " · ".join(
        f"{part} {item['breakdown_s'][part] / item['step_time_s']:.0%}" for part in item["breakdown_s"]
    )
    return [*lines, f"  its step: {spent}"]
