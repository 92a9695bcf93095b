"""Plan files read back: the best plan for those who launch and simulate it, and the inputs it was made from.

There is one form: what `strata plan train` prints as JSON is what `--save` writes, what `strata export` and
`strata simulate` read, and what `strata explain` shows again (`schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.errors import BadFile, Fault, StrataError, UsageError
from strata.files import Document, read_document
from strata.fleet.fleet import Fleet
from strata.fleet.schema import load_fleet
from strata.training.plan.planned import PlannedDomain, PlannedFleet, PlannedJob
from strata.training.plan.request import inputs_digest, requested_job
from strata.training.plan.schema import PlanEntry, TrainingPlanFile
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan
from strata.workload.schema import load_job


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """The best plan of a file; `inputs` names the files it came from."""

    name: str
    plan: TrainingPlan
    domains: tuple[PlannedDomain, ...]
    job: PlannedJob
    inputs: Mapping[str, str]
    file: TrainingPlanFile


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The fleet and the job of a plan, read again, the request applied. changes: how they differ from then."""

    fleet: Fleet
    job: TrainingJob
    changes: tuple[str, ...]


def read_plan_file(path: str | Path) -> TrainingPlanFile:
    """Read a plan file whole. Raises BadFile with all faults and their places.

    A file without plans reads: it is the answer that nothing fits.
    """
    return checked_plan_file(read_document(path))


def plan_file_of(data: Mapping[str, Any], *, source: str) -> TrainingPlanFile:
    """Check what was kept elsewhere than in a file, as `read_plan_file` does."""
    return checked_plan_file(Document(source, data, {}))


def read_plan(path: str | Path) -> SavedPlan:
    """Read the best plan of a file. Raises BadFile with all faults and their places, also where there is none."""
    return best_plan(read_document(path))


def best_plan(document: Document) -> SavedPlan:
    """Return the best plan of a file that was read, as `read_plan` does."""
    file = checked_plan_file(document)
    if not file.plans:
        fault = document.fault(("plans",), "no plan fitted when this was written")
        raise BadFile([fault], hint=f"strata explain {document.path}")
    best = file.plans[0]
    return SavedPlan(best.name, best.plan.plan, tuple(file.fleet.domains), file.job, file.inputs, file)


def reload_inputs(file: TrainingPlanFile) -> PlanInputs:
    """Read again what a plan was made from. Raises UsageError where it names no files or they cannot be read."""
    again = "strata plan train FLEET JOB --save plan.json"
    if not {"fleet", "job"} <= file.inputs.keys():
        raise UsageError(f"{file.source}: the plan does not name its fleet and job files", hint=again)
    names = file.inputs["fleet"], file.inputs["job"]
    try:
        fleet, job = load_fleet(names[0]), requested_job(load_job(names[1]), file.request)
    except StrataError as error:
        again = f"strata plan train {names[0]} {names[1]} --save plan.json, where these files are"
        problem = f"{file.source} was planned from files that cannot be read: {error}"
        raise UsageError(problem, hint=again) from error
    _, now = inputs_digest(fleet, job)
    changes = []
    if now.fleet != file.digests.fleet:
        changes.append(f"{_whole_name(names[0])} has changed: {_fleet_change(file.fleet, PlannedFleet.of(fleet))}")
    if now.job != file.digests.job:
        changes.append(f"{_whole_name(names[1])} has changed: {_job_change(file.job, PlannedJob.of(job))}")
    return PlanInputs(fleet, job, tuple(changes))


def _whole_name(name: str) -> str:
    """Return a file's name with the folder it was looked for in: another folder may hold another such file."""
    path = Path(name)
    return name if path.is_absolute() or not path.exists() else f"{name} (in {path.resolve().parent})"


def _fleet_change(old: PlannedFleet, new: PlannedFleet) -> str:
    now = {domain.name: domain for domain in new.domains}
    for domain in old.domains:
        if domain.name not in now:
            return f"it has no domain {domain.name}"
        if domain != now[domain.name]:
            return f"{domain.name} is {_devices(now[domain.name])}, and was {_devices(domain)}"
    return "its links, prices or other figures differ"


def _devices(domain: PlannedDomain) -> str:
    return f"{domain.num_devices} {domain.accelerator}, {domain.devices_per_node} a node"


def _job_change(old: PlannedJob, new: PlannedJob) -> str:
    now = new.model_dump()
    for key, was in old.model_dump(exclude={"name", "architecture"}).items():
        if now[key] != was:
            return f"{key} is {now[key]}, and was {was}"
    if old.architecture != new.architecture:
        return "its model is another one"
    return "its goal, limits or layer times differ"


def checked_plan_file(document: Document) -> TrainingPlanFile:
    """Check a document that was read, as `read_plan_file` does."""
    file = document.check(TrainingPlanFile)
    file.read_from(document.path)
    lists = {"plans": file.plans, "front": file.front or []}
    faults = [
        fault
        for key, entries in lists.items()
        for number, entry in enumerate(entries)
        for fault in _relations(document, file, entry.plan, (key, number, "plan"))
    ]
    if faults:
        raise BadFile(faults)
    return file


def _relations(
    document: Document, file: TrainingPlanFile, entry: PlanEntry, where: tuple[str | int, ...]
) -> Iterator[Fault]:
    """Yield what is wrong between values that are right alone."""
    domains = {domain.name: domain for domain in file.fleet.domains}
    for p, pipeline in enumerate(entry.pipelines):
        layer = 0
        for s, stage in enumerate(pipeline.stages):
            here = (*where, "pipelines", p, "stages", s)
            if stage.first_layer != layer:
                message = f"should be {layer}: stages hold consecutive layers, from 0 on"
                yield document.fault((*here, "first_layer"), message)
            layer = stage.first_layer + stage.num_layers
            domain = domains.get(stage.domain)
            if domain is None:
                known = ", ".join(domains)
                yield document.fault((*here, "domain"), f"no domain {stage.domain!r} in `fleet` (known: {known})")
            elif stage.tensor_parallel > domain.devices_per_node:
                message = f"more than the {domain.devices_per_node} devices of a node of {domain.name}"
                yield document.fault((*here, "tensor_parallel"), message)
        if layer != file.job.num_layers:
            message = f"ends after {layer} layers where the job's model has {file.job.num_layers}"
            yield document.fault((*where, "pipelines", p, "stages"), message)
    for name, used in entry.plan.devices().items():
        if name in domains and used > domains[name].num_devices:
            message = f"uses {used} devices of {name}, which has {domains[name].num_devices}"
            yield document.fault((*where, "pipelines"), message)
