"""A plan that the user brings: a plan file or a layout, checked, evaluated, and set beside the best one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strata.decision import Reason
from strata.errors import BadFile, UsageError
from strata.files import read_document
from strata.fleet.fleet import Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.report import StepReport
from strata.training.plan import explain, legality
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.layout import layout_plan
from strata.training.plan.objective import Scales, score_report
from strata.training.plan.planfile import best_plan, checked_plan_file, reload_inputs
from strata.training.plan.planned import PlannedJob
from strata.training.plan.report import TrainingPlanReport, plan_dict
from strata.units import show_bytes
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan

_FORM: Final = "kind: TrainingLayout with tensor, pipeline, data, microbatch, or a file that `--save` wrote"

SAME_MEMORY: Final = 0.01
"""By what share a stage may take other memory than its file says: more is no rounding."""


@dataclass(frozen=True)
class GivenPlan:
    """A user's plan on a fleet. faults: all that is wrong with it. notes: what it does that the job does not ask.

    item: the plan evaluated, None where it cannot be.
    """

    problem: Problem
    plan: TrainingPlan
    source: str
    faults: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    item: Evaluated | None

    def to_dict(self, best: TrainingPlanReport) -> dict[str, Any]:
        """Return the stable JSON form: what is wrong, and how far it is from the best plan and from the bound.

        ratio, bound_ratio: the given plan's step time over the best one's, and over what no plan can beat.
        """
        item, ratio, bound_ratio, why = self.item, None, None, tuple[Reason, ...]()
        if item is not None and best.best is not None:
            ratio = item.report.step_time_s / best.best.report.step_time_s
            why = explain.why_not(self.problem, item, best.best) if ratio > 1 else ()
            bound_s = best.proof()["bound_s"]
            bound_ratio = item.report.step_time_s / bound_s if bound_s else None
        return {
            "source": self.source,
            "name": explain.name(self.plan),
            "faults": [reason.to_dict() for reason in self.faults],
            "notes": [reason.to_dict() for reason in self.notes],
            "ratio": ratio,
            "bound_ratio": bound_ratio,
            "plan": None if item is None else plan_dict(self.problem, item, 1, why),
        }


def read_given(path: str | Path, fleet: Fleet, job: TrainingJob) -> TrainingPlan:
    """Read a plan for a job on a fleet. Raises BadFile with all faults: also where it is of another model."""
    document, model = read_document(path), StepModel(fleet, job)
    kind = document.data.get("kind") if isinstance(document.data, dict) else None
    if kind == "TrainingLayout":
        return layout_plan(document, model)
    if kind != "TrainingPlan":
        fault = document.fault(("kind",), "neither a TrainingPlan nor a TrainingLayout")
        raise BadFile([fault], hint=_FORM)
    saved = best_plan(document)
    if wrong := other_model(saved.job, job):
        raise BadFile([document.fault(("job", "model"), wrong)], hint="a plan of the job's own model")
    return saved.plan


def other_model(planned: PlannedJob, job: TrainingJob) -> str:
    """Return what tells the model of a plan from the job's, or "". Its name alone does not: sizes and parts do."""
    now = PlannedJob.of(job)
    keys = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "architecture")
    differing = [key for key in keys if getattr(planned, key) != getattr(now, key)]
    if not differing:
        return ""
    if planned.model != now.model:
        return f"a plan of {planned.model or 'another model'}, and the job trains {now.model or 'another'}"
    key = differing[0]
    if key == "architecture":
        return f"a plan of a model whose parts are not those of the job's {now.model}"
    return f"a plan of a model whose {key} is {getattr(planned, key)}; that of the job's is {getattr(now, key)}"


def evaluate_given(plan: TrainingPlan, source: str, fleet: Fleet, job: TrainingJob, scales: Scales) -> GivenPlan:
    """Return what is wrong with a plan, and what it takes where it can be evaluated."""
    problem = Problem(fleet, job, ())
    faults, report = judged(problem.model, plan)
    if report is None:
        return GivenPlan(problem, plan, source, faults, (), None)
    item = Evaluated(plan, report, score_report(job, scales, report))
    return GivenPlan(problem, plan, source, faults, tuple(legality.outside(job, plan)), item)


def judged(model: StepModel, plan: TrainingPlan) -> tuple[tuple[Reason, ...], StepReport | None]:
    """Return all that is wrong with a plan, and what a step takes; None where it cannot be evaluated."""
    if faults := legality.misfits(model, plan):
        return tuple(faults), None
    report = model.reports([plan])[0]
    return (*legality.shortfalls(model, plan), *explain.limit_missed(model.job, report)), report


def check_plan_file(path: str | Path) -> str:
    """Check a saved plan as a given one, on the fleet and for the job that it was made from.

    Returns "", or why that could not be done: they are not there, or no longer what they were. Raises BadFile with
    all faults: also where a stage's memory is not what its layers take.
    """
    document = read_document(path)
    file = checked_plan_file(document)
    try:
        inputs = reload_inputs(file)
    except UsageError as error:
        return f"not checked against fleet and job: {error}"
    if inputs.changes:
        return f"not checked against fleet and job: {'; '.join(inputs.changes)}"
    model, faults = StepModel(inputs.fleet, inputs.job), []
    for at, entry in enumerate(file.plans):
        here = ("plans", at)
        wrong, report = judged(model, entry.plan.plan)
        faults += [document.fault((*here, "plan"), str(reason)) for reason in wrong]
        if report is None:
            continue
        for s, real in enumerate(model.details([entry.plan.plan])[0].stages[: len(entry.stages)]):
            claimed, takes = entry.stages[s].memory_bytes, real.memory_bytes
            if abs(claimed / takes - 1) > SAME_MEMORY:
                message = f"{show_bytes(claimed)}, where its layers take {show_bytes(takes)}"
                faults.append(document.fault((*here, "stages", s, "memory_bytes"), message))
    if faults:
        raise BadFile(faults, hint=f"strata plan train {file.inputs['fleet']} {file.inputs['job']} --save {path}")
    return ""
