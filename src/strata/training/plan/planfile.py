"""Plan files: a plan, what it was made for and what it promises, in one file that `strata export` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strata.errors import BadFile, Fault
from strata.files import API_VERSION, Document, read_document, write_json
from strata.training.plan.schema import PlanAnswer, PlanEntry, PlanFile
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class PlannedDomain:
    """What launching needs to know of a domain."""

    name: str
    accelerator: str
    num_devices: int
    devices_per_node: int


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The job a plan is for. `num_layers` counts the embedding and the head; None where not known."""

    name: str
    model: str
    num_layers: int
    sequence_length: int
    global_batch: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    num_heads: int | None = None
    hidden_size: int | None = None


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan as a file holds it. `report` is a StepReport's JSON form; `inputs` names the files it came from."""

    name: str
    plan: TrainingPlan
    fleet: str
    domains: tuple[PlannedDomain, ...]
    job: PlannedJob
    report: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form, which `read_plan` reads back."""
        return {
            "apiVersion": API_VERSION,
            "kind": "TrainingPlan",
            "name": self.name,
            "plan": self.plan.to_dict(),
            "report": dict(self.report),
            "fleet": {"name": self.fleet, "domains": [asdict(domain) for domain in self.domains]},
            "job": asdict(self.job),
            "inputs": dict(self.inputs),
        }


def save_plan(path: str | Path, saved: SavedPlan) -> None:
    """Write a plan file atomically."""
    write_json(path, saved.to_dict())


def read_plan(path: str | Path) -> SavedPlan:
    """Read a plan file, or the first plan of what `strata plan train -o json` printed.

    Raises BadFile with all faults and their places, also where layers are missing or devices are too few.
    """
    document = read_document(path)
    where: tuple[str | int, ...]
    if isinstance(document.data, dict) and "plans" in document.data:
        answer = document.check(PlanAnswer)
        first, fleet, job, inputs = answer.plans[0], answer.fleet, answer.job, answer.inputs
        name, entry, report, where = first.name or job.name, first.plan, first.report, ("plans", 0, "plan")
    else:
        file = document.check(PlanFile)
        fleet, job, inputs = file.fleet, file.job, file.inputs
        name, entry, report, where = file.name, file.plan, file.report, ("plan",)
    saved = SavedPlan(
        name=name,
        plan=TrainingPlan.from_dict(entry.model_dump()),
        fleet=fleet.name,
        domains=tuple(PlannedDomain(**domain.model_dump()) for domain in fleet.domains),
        job=PlannedJob(**job.model_dump()),
        report=report,
        inputs=inputs,
    )
    faults = list(_relations(document, saved, entry, where))
    if faults:
        raise BadFile(faults)
    return saved


def _relations(
    document: Document, saved: SavedPlan, entry: PlanEntry, where: tuple[str | int, ...]
) -> Iterator[Fault]:
    """Yield what is wrong between values that are right alone."""
    domains = {domain.name: domain for domain in saved.domains}
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
        if layer != saved.job.num_layers:
            message = f"ends after {layer} layers where the job's model has {saved.job.num_layers}"
            yield document.fault((*where, "pipelines", p, "stages"), message)
    for name, used in saved.plan.devices().items():
        if name in domains and used > domains[name].num_devices:
            message = f"uses {used} devices of {name}, which has {domains[name].num_devices}"
            yield document.fault((*where, "pipelines"), message)
