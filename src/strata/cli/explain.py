"""`strata explain`: why a plan was chosen, stage by stage, and why a domain or a node was not used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option
from strata.errors import UsageError
from strata.names import closest
from strata.tables import Shown, rows
from strata.units import show_bytes, show_time

if TYPE_CHECKING:
    from strata.training.plan.schema import TrainingPlanFile


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
    data, file = _latest() if plan is None else _read(plan)
    if file is None:
        return _explain_serving(data, why_not, output)
    if why_not is None:
        emit(data, output, _show(data))
        return 0 if data["plans"] else 3
    answer = _why_not(data, file, why_not)
    emit(answer, output, ["\n".join(answer["text"])])
    return 0


def _latest() -> tuple[dict[str, Any], TrainingPlanFile | None]:
    """Return the latest plan of this machine, and its checked form where it is a training plan."""
    import os

    from strata.history import History, default_path

    path = default_path(os.environ)
    entries = []
    if path.exists():
        with History(path) as history:
            entries = [*history.latest("training", 1), *history.latest("serving", 1)]
    if not entries:
        raise UsageError("no plan has been made yet", hint="strata plan train seed llama-3.1-70b")
    latest = max(entries, key=lambda entry: entry.id)
    data = dict(latest.decision)
    if latest.kind == "serving":
        return data, None
    from strata.training.plan.planfile import plan_file_of

    return _whole(plan_file_of(data, source=str(path)))


def _read(path: str) -> tuple[dict[str, Any], TrainingPlanFile | None]:
    from strata.files import read_json
    from strata.training.plan.planfile import OLD_KIND, read_plan_file

    data = read_json(path)
    if isinstance(data, dict) and data.get("kind") == "ServingPlan":
        from strata.serving.planning.planfile import read_serving_plan

        return read_serving_plan(path).to_dict(), None
    if not isinstance(data, dict) or data.get("kind") not in ("TrainingPlan", OLD_KIND):
        kind = data.get("kind") if isinstance(data, dict) else None
        raise UsageError(
            f"{path}: not a plan that `strata plan` wrote" + (f" (kind: {kind})" if kind else ""),
            hint="strata plan train FLEET JOB --save plan.json",
        )
    return _whole(read_plan_file(path))


def _whole(file: TrainingPlanFile) -> tuple[dict[str, Any], TrainingPlanFile]:
    """Return what a plan file says, its plans with the keys that an earlier strata left out, and the file."""
    data = file.model_dump(mode="json", by_alias=True, exclude_unset=True)
    shown = [*zip(data["plans"], file.plans, strict=True)]
    shown += zip(data.get("front") or (), file.front or (), strict=True)
    if file.knee is not None:
        shown.append((data["knee"]["plan"], file.knee.plan))
    for item, entry in shown:
        item["plan"] = entry.plan.plan.to_dict()
    return data, file


def _explain_serving(data: dict[str, Any], why_not: str | None, output: str) -> int:
    from strata.cli.plan_serve_table import show_serving, why_not_serving

    if why_not is None:
        emit(data, output, show_serving(data, next_command=False))
        return 0 if data["pipelines"] else 3
    answer = why_not_serving(data, why_not)
    emit(answer, output, ["\n".join(answer["text"])])
    return 0


def _show(data: dict[str, Any]) -> Shown:
    from strata.cli.plan_table import context_degrees, show_plans

    yield from show_plans(data, next_command=False)
    if not data["plans"]:
        return
    best = data["plans"][0]
    context = context_degrees(best)[-1]
    pieces = f" cp{context}" if context > 1 else ""
    yield ""
    body = [
        [
            stage["domain"],
            stage["accelerator"],
            _layers(stage),
            f"{stage['replicas']}x tp{stage['tensor_parallel']}{pieces}",
            show_time(stage["forward_s"]),
            show_time(stage["backward_s"]),
            f"{show_bytes(stage['memory_bytes'])}/{show_bytes(stage['memory_limit_bytes'])}",
        ]
        for stage in best["stages"]
    ]
    yield rows(["stage in", "device", "layers", "copies", "fwd", "bwd", "memory"], body, right=range(4, 7))


def _layers(stage: dict[str, Any]) -> str:
    """Write which layers a stage holds; files written before chunks were know only their number."""
    first, count = stage["first_layer"], stage["num_layers"]
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in stage.get("chunks", [(first, first + count - 1)]))


def _why_not(data: dict[str, Any], file: TrainingPlanFile, domain: str) -> dict[str, Any]:
    names = [item["name"] for item in data["fleet"]["domains"]]
    excluded = [reason for reason in data["reasons"] if reason["subject"] == domain]
    if domain not in names and not excluded:
        close = closest(domain, names)
        raise UsageError(
            f"no domain {domain!r} in this plan", hint=f"--why-not {close if close else ' | '.join(names)}"
        )
    answer: dict[str, Any] = {"domain": domain, "used": False, "reasons": excluded, "best_with": None}
    if data["plans"] and domain in data["plans"][0]["domains"]:
        answer["used"] = True
        answer["text"] = [f"{domain} is used by the chosen plan, {data['plans'][0]['name']}"]
        return answer
    if excluded:
        answer["text"] = [reason["text"] for reason in excluded]
        return answer
    answer["best_with"] = _best_with(file, domain)
    answer["text"] = _sentences(data, domain, answer["best_with"])
    return answer


def _best_with(file: TrainingPlanFile, domain: str) -> dict[str, Any] | None:
    """Plan with the domain forced in, as the file was planned; the files it came from must be as they were."""
    from strata.training.plan.planfile import reload_inputs
    from strata.training.plan.planner import best_with, problem_of
    from strata.training.plan.report import plan_dict

    inputs = reload_inputs(file)
    if inputs.changes:
        raise UsageError(
            f"the plan was not made from these files: {'; '.join(inputs.changes)}",
            hint=f"strata plan train {file.inputs['fleet']} {file.inputs['job']} --save plan.json",
        )
    problem = problem_of(inputs.fleet, inputs.job)
    if not file.plans:
        return None
    item, reasons = best_with(
        problem, file.plans[0].plan.plan, domain, clock=time.perf_counter, time_limit_s=file.request.time_limit_s
    )
    return None if item is None else plan_dict(problem, item, 1, reasons)


def _sentences(data: dict[str, Any], domain: str, item: dict[str, Any] | None) -> list[str]:
    if item is None:
        tried = [alternative for alternative in data["alternatives"] if domain in alternative["domains"]]
        refusals = [f"{a['name']}: {reason['text']}" for a in tried for reason in a["reasons"]]
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
