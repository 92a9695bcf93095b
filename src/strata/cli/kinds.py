"""The kinds of files strata reads: one table, each module imported only when its kind is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from strata.errors import BadFile, UsageError
from strata.names import closest

if TYPE_CHECKING:
    from strata.files import Document, FileModel


@dataclass(frozen=True, slots=True)
class Kind:
    """What reads and checks one kind of file, and the model of its keys, both as `module:name`.

    beyond: what checks it against the files it came from, where it came from some.
    """

    loader: str
    file_model: str
    text: str
    beyond: str = ""

    def check(self, path: str) -> str:
        """Check a file of this kind whole; return what could not be checked. Raises BadFile with every fault."""
        _imported(self.loader)(path)
        return str(_imported(self.beyond)(path)) if self.beyond else ""

    def model(self) -> type[FileModel]:
        """Return the pydantic model of the file."""
        model: type[FileModel] = _imported(self.file_model)
        return model


KINDS: Final[Mapping[str, Kind]] = {
    "Fleet": Kind(
        "strata.fleet.schema:load_fleet",
        "strata.fleet.schema:FleetFile",
        "The hardware: domains of accelerators, links between them.",
    ),
    "TrainingJob": Kind(
        "strata.workload.schema:load_job",
        "strata.workload.job_entries:TrainingJobFile",
        "What is to be trained, how it may be, and what counts as good.",
    ),
    "TrainingPlan": Kind(
        "strata.training.plan.planfile:read_plan_file",
        "strata.training.plan.schema:TrainingPlanFile",
        "Where and how a job runs, as `strata plan train` wrote it.",
        "strata.training.plan.given:check_plan_file",
    ),
    "TrainingLayout": Kind(
        "strata.training.plan.layout:load_layout",
        "strata.training.plan.layout:TrainingLayoutFile",
        "A plan in a few degrees, written by hand to be judged.",
    ),
    "HiPpoTraining": Kind(
        "strata.learning.schema:load_learning",
        "strata.learning.schema:HiPpoTrainingFile",
        "The settings that `strata learn train --config` takes.",
    ),
    "RuntimeProfile": Kind(
        "strata.cluster.api.profile_schema:load_profile",
        "strata.cluster.api.profile_schema:ProfileFile",
        "What a pod needs to run on one kind of accelerator.",
    ),
    "ServingJob": Kind(
        "strata.workload.serving_schema:load_serving_job",
        "strata.workload.serving_schema:ServingJobFile",
        "What is to be served, how much of it, and how fast.",
    ),
    "ServingPlan": Kind(
        "strata.serving.planning.planfile:read_serving_plan",
        "strata.serving.planning.planfile:ServingPlanFile",
        "Which node holds which layers, as `strata plan serve` wrote it.",
    ),
}

_KINDLESS: Final = {"topology": "Fleet"}
"""Files without `kind:` that a key tells: the network file of design brief 001."""


def kind_named(name: str) -> Kind:
    """Return a kind of file. Raises UsageError saying which was probably meant."""
    if name not in KINDS:
        raise UsageError(_unknown(name), hint="`strata schema` lists the kinds")
    return KINDS[name]


def kind_of(document: Document) -> str:
    """Return the name of a document's kind. Raises BadFile where it has none or one nobody reads."""
    keys = document.data if isinstance(document.data, Mapping) else {}
    if "kind" not in keys:
        for key, name in _KINDLESS.items():
            if key in keys:
                return name
        raise BadFile([document.fault((), f"no `kind:` at the top (known: {', '.join(KINDS)})")])
    name = str(keys["kind"])
    if name not in KINDS:
        raise BadFile([document.fault(("kind",), _unknown(name))])
    return name


def _unknown(name: str) -> str:
    close = closest(name, KINDS, cutoff=0.5)
    return f"no kind {name!r} (" + (f"did you mean {close!r}?)" if close else f"known: {', '.join(KINDS)})")


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
