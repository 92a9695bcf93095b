"""A replay of a serving job on nodes: the live core, and times from the cost model that planners and routers use.

The truth of the replay is the roofline with the job's efficiencies, or as the job was calibrated. The scheduler
starts from the same roofline with the usual ones, and learns from what nodes measure: as it would with real nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from strata.serving.layout import Layout
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.live.events import Planned
from strata.serving.live.instructions import Load, Replan
from strata.serving.live.replan import answer
from strata.serving.live.transition import load_s
from strata.serving.node import Node
from strata.serving.observe import layout_of
from strata.serving.planning.allocation import Pipeline
from strata.serving.replay.engine import Replay, ReplayEnvironment
from strata.serving.replay.fault_events import FaultEvent
from strata.workload.precision import MEMORY_HEADROOM
from strata.workload.requests import Request
from strata.workload.serving_job import ServingJob


def replay_job(
    nodes: Sequence[Node],
    job: ServingJob,
    requests: Iterable[Request],
    *,
    config: SchedulerConfig,
    start_s: float,
    end_s: float,
    fault_events: Iterable[FaultEvent] = (),
    absent: Collection[str] = (),
    notice_s: float = 0.05,
    patience_s: float = float("inf"),
) -> tuple[Replay, Core]:
    """Return a replay that has not run, and the core it drives.

    start_s, end_s: what is measured lies between them; arrivals end at the latter. absent: nodes that are not
    there from the start. notice_s, patience_s: as in `ReplayEnvironment`.
    """
    core, demand, by_id = Core(config, job.model, job.demand), job.demand, {node.node_id: node for node in nodes}
    # The core leaves the usual share of memory free: of what nodes state, the rest is what the job may have.
    share = (1 - job.memory_headroom) / (1 - MEMORY_HEADROOM)
    stated = [replace(node, memory_bytes=share * node.memory_bytes) for node in nodes]

    def lines(stages: Pipeline) -> Layout:
        used = [by_id[stage.node_id] for stage in stages]
        return layout_of(used, (stages,), job.model, demand, derating=job.derating, has_curves=True)

    def plan(wanted: Replan) -> Planned:
        return answer(wanted, job.model, demand, config)

    def reload_s(load: Load, held: Sequence[tuple[int, int]]) -> float:
        return load_s(job.model, load.first, load.end, held, bytes_per_s=config.reload_bytes_per_s)

    around = ReplayEnvironment(
        lines,
        plan,
        reload_s,
        heartbeat_interval_s=config.heartbeat_interval_s,
        notice_s=notice_s,
        patience_s=patience_s,
        ttft_goal_s=demand.ttft_goal_s,
        tpot_goal_s=demand.tpot_goal_s,
        start_s=start_s,
        end_s=end_s,
        context=demand.context,
        step_tokens=job.step_tokens,
    )
    return Replay(core, stated, requests, around, fault_events=fault_events, absent=absent), core
