"""A plan over measured profiles, in the form case files write it: stages of runs of equal replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class ReplicaRun(NamedTuple):
    """`num_replicas` neighbouring replicas of one stage: the same accelerator, tensor parallelism and zone."""

    gpu: str
    tp: int
    zone: str
    num_replicas: int


@dataclass(frozen=True, slots=True)
class BenchmarkStage:
    """Layers `first`..`last`, both included, held by every replica of `runs`, in ring order."""

    first: int
    last: int
    runs: tuple[ReplicaRun, ...]

    @property
    def num_replicas(self) -> int:
        """Return the data-parallel degree."""
        return sum(run.num_replicas for run in self.runs)


@dataclass(frozen=True, slots=True)
class BenchmarkPlan:
    """Microbatch size in samples and the pipeline; replica j of a stage talks to replica j of the next."""

    mbs: int
    stages: tuple[BenchmarkStage, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the form of the case files."""
        return {
            "mbs": self.mbs,
            "stages": [
                {"layers": [stage.first, stage.last], "replicas": [list(run) for run in stage.runs]}
                for stage in self.stages
            ],
        }

    def gpus_used(self) -> dict[tuple[str, str], int]:
        """Return how many accelerators the plan takes, by (zone, gpu)."""
        used: dict[tuple[str, str], int] = {}
        for stage in self.stages:
            for run in stage.runs:
                used[run.zone, run.gpu] = used.get((run.zone, run.gpu), 0) + run.tp * run.num_replicas
        return used


def plan_from_dict(data: Any) -> BenchmarkPlan:
    """Read the form of the case files. Raises ValueError (with a sentence) for anything else."""
    try:
        plan = BenchmarkPlan(
            int(data["mbs"]),
            tuple(
                BenchmarkStage(int(stage["layers"][0]), int(stage["layers"][1]), _runs(stage["replicas"]))
                for stage in data["stages"]
            ),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a plan of stages and replicas ({error})") from None
    if not plan.stages or any(stage.num_replicas != plan.stages[0].num_replicas for stage in plan.stages):
        raise ValueError("every stage of a plan needs the same number of replicas")
    counts = [run.num_replicas for stage in plan.stages for run in stage.runs]
    if plan.mbs < 1 or min(counts, default=0) < 1:
        raise ValueError("a plan needs at least one replica and one sample a microbatch")
    return plan


def _runs(rows: Sequence[Any]) -> tuple[ReplicaRun, ...]:
    return tuple(ReplicaRun(str(gpu), int(tp), str(zone), int(count)) for gpu, tp, zone, count in rows)
