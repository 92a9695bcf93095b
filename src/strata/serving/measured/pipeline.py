"""The pipeline that a log of requests is of: a fleet's nodes, all devices of one working as one."""

from __future__ import annotations

from strata.errors import Infeasible, UsageError
from strata.fleet.fleet import Fleet
from strata.serving.layout import Layout
from strata.serving.node import Node
from strata.serving.observe import layout_of, nodes_of, pool_of
from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import Pipeline
from strata.workload.serving_job import ServingJob


class MeasuredPipeline:
    """Nodes and stages of the pipeline, and the accelerator whose times are measured. source: names the fleet.

    Raises Infeasible where there is no pipeline, UsageError where there are several, or several accelerators.
    """

    def __init__(self, fleet: Fleet, job: ServingJob, *, source: str) -> None:
        self.nodes: tuple[Node, ...] = nodes_of(fleet)
        allocation = allocate(pool_of(self.nodes, job.model, job.demand, derating=job.derating), job.strategy)
        if not allocation.pipelines:
            why = "; ".join(map(str, allocation.reasons)) or "there are no nodes"
            raise Infeasible(f"{job.name} cannot be served on {source}: {why}")
        self.stages: Pipeline = allocation.pipelines[0]
        used = {stage.node_id for stages in allocation.pipelines for stage in stages}
        kinds = {node.accelerator for node in self.nodes if node.node_id in used}
        if len(allocation.pipelines) > 1 or len(kinds) > 1:
            text = f"{source} makes {len(allocation.pipelines)} pipelines, of {', '.join(sorted(kinds))}"
            hint = "the nodes of one pipeline, with one kind of accelerator, and a log of its requests"
            raise UsageError(f"{text}: a log is compared with one", hint=hint)
        (self.accelerator,) = kinds

    def layout(self, job: ServingJob) -> Layout:
        """Return the pipeline's layout by the calibration of a job."""
        used = [node for node in self.nodes if node.node_id in {stage.node_id for stage in self.stages}]
        return layout_of(used, (self.stages,), job.model, job.demand, derating=job.derating, has_curves=True)
