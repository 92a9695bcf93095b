"""Why a plan was chosen, and why it does not use a domain or a node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from strata.api.plans import PlannedServing, PlannedTraining
from strata.errors import UsageError
from strata.files import read_json
from strata.history import History, default_path
from strata.names import closest
from strata.serving.planning.planfile import read_serving_plan
from strata.training.plan.planfile import plan_file_of, read_plan_file, reload_inputs
from strata.training.plan.planner import best_with, problem_of
from strata.training.plan.report import plan_dict
from strata.training.plan.schema import TrainingPlanFile
from strata.units import show_time

_LISTED: Final = 8
"""Stages that a sentence each is written about."""


def explain(
    plan: str | Path | PlannedTraining | PlannedServing | None = None, *, why_not: str | None = None
) -> dict[str, Any]:
    """Return a plan with its reasons, or with `why_not` the reasons against a domain (or a node).

    plan: a file, an answer, or None for the latest of this machine. Raises BadFile, UsageError where the plan has
    no such domain, or what it was made from has changed.
    """
    data, file = _opened(plan)
    if why_not is None:
        return data
    return _why_not_serving(data, why_not) if file is None else _why_not(data, file, why_not)


def _opened(
    plan: str | Path | PlannedTraining | PlannedServing | None,
) -> tuple[dict[str, Any], TrainingPlanFile | None]:
    if plan is None:
        return _latest()
    if isinstance(plan, PlannedServing):
        return plan.to_dict(), None
    if isinstance(plan, PlannedTraining):
        return _whole(plan_file_of(plan.to_dict(), source=f"the plan of {plan.report.problem.job.name}"))
    return _read(str(plan))


def _latest() -> tuple[dict[str, Any], TrainingPlanFile | None]:
    """Return the latest plan of this machine, and its checked form where it is a training plan."""
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

    return _whole(plan_file_of(data, source=str(path)))


def _read(path: str) -> tuple[dict[str, Any], TrainingPlanFile | None]:
    data = read_json(path)
    if isinstance(data, dict) and data.get("kind") == "ServingPlan":
        return read_serving_plan(path).to_dict(), None
    if not isinstance(data, dict) or data.get("kind") != "TrainingPlan":
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


def _why_not(data: dict[str, Any], file: TrainingPlanFile, domain: str) -> dict[str, Any]:
    names = [item["name"] for item in data["fleet"]["domains"]]
    checked = zip(data["reasons"], file.reasons, strict=True)
    excluded = [reason for reason, entry in checked if entry.subject == domain]
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
    answer["text"] = [reason["text"] for reason in excluded]
    if all(reason["token"] == "unreachable" for reason in excluded):  # then it may still work alone
        answer["best_with"] = _best_with(file, domain)
        answer["text"] += _sentences(data, domain, answer["best_with"])
    return answer


def _best_with(file: TrainingPlanFile, domain: str) -> dict[str, Any] | None:
    """Plan with the domain forced in, as the file was planned; the files it came from must be as they were."""
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


def _why_not_serving(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return why a plan does not use a domain, a machine or a group of its devices, or that it does, as data.

    `text` is for people.
    """
    nodes = data["fleet"]["nodes"]
    known = {node["id"] for node in nodes} | {node["domain"] for node in nodes}
    meant = {name, *(node for node in known if node.startswith(f"{name}.") and "/" in name)}
    items = [item for item in data["unused"] if name == item["domain"] or not meant.isdisjoint(item["nodes"])]
    if meant.isdisjoint(known) and not items:
        close = closest(name, sorted(known))
        raise UsageError(
            f"there is no domain or node {name!r} in this plan", hint=f"--why-not {close}" if close else None
        )
    used = [
        f"pipeline {number}, {stage['node']}: layers {stage['first']} to {stage['end'] - 1}"
        for number, pipeline in enumerate(data["pipelines"], 1)
        for stage in pipeline["stages"]
        if stage["node"] in meant or name == stage["node"].rpartition("/")[0]
    ]
    reasons = [item["reason"] for item in items] or ([] if used else data["reasons"])
    text = [f"{name} is used: {line}" for line in used[:_LISTED]]
    if len(used) > _LISTED:
        text.append(f"and {len(used) - _LISTED} more")
    text += [f"{who(item)}: {item['reason']['text']}" for item in items] or (
        [] if used else [reason["text"] for reason in reasons]
    )
    return {"domain": name, "used": bool(used), "reasons": reasons, "text": text}


def who(item: dict[str, Any]) -> str:
    """Return a domain some nodes of which are not used, with how many."""
    nodes = len(item["nodes"])
    return f"{item['domain']} ({nodes} node{'s' if nodes > 1 else ''})" if nodes else str(item["domain"])
