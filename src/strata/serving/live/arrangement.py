"""What routers reckon with: the layout of what serves, made anew when that changes, or what its nodes take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from strata.decision import Reason
from strata.serving.layout import Layout, StageServer
from strata.serving.live.events import Heartbeat
from strata.serving.live.in_flight import InFlightRequests
from strata.serving.live.members import Members
from strata.serving.live.rollout import PipelinePhase, Rollout
from strata.serving.node import Node
from strata.serving.observe import layout_of, work_s
from strata.serving.planning.allocation import Stage
from strata.serving.wire import StepSample
from strata.simulate.inference.calibration import Calibration
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

NEWS: Final = 0.1
"""Relative change of a node's times that routers are told of: to arrange them anew for less would not pay."""
HOP_NEWS_S: Final = 1e-3
"""Change of a hop below which it is the clock's noise, or decides nothing."""
UNFORESEEN: Final = 1.5
"""Times that nodes may have changed against each other since a plan before it is made anew (assumed). What slows
all of them alike leaves the best layout as it was.
"""


class Arrangement:
    """The layout routers have now, and the measurements it is made from. demand: what it is reckoned for."""

    def __init__(self, model: ModelInfo, demand: Demand) -> None:
        self.model, self.demand = model, demand
        self.calibration = Calibration()
        self.layout = Layout(model.num_layers)
        self.servers: dict[str, StageServer] = {}
        self._versions: tuple[int, ...] | None = ()
        self._is_checked, self._has_news = True, False
        self._planned_s: dict[str, float] = {}

    def check(self) -> None:
        """Note that other pipelines may serve now."""
        self._is_checked = False

    def renew(self, *, demand: Demand | None = None) -> None:
        """Have the layout made anew, where there are news or it is for another demand."""
        if demand is not None and demand != self.demand:
            self.demand, self._has_news = demand, True
        if self._has_news:
            self._versions, self._is_checked, self._has_news = None, False, False

    def observe(self, node_id: str, samples: Iterable[StepSample]) -> None:
        """Take what layers took on a node."""
        for sample in samples:
            self.calibration.observe(
                node_id, sample.phase, first=sample.first, end=sample.end,
                units=sample.units, context=sample.context, seconds=sample.seconds,
            )  # fmt: skip

    def hear(self, heartbeat: Heartbeat, node: Node) -> None:
        """Take what a node measured; times far from those that routers reckon with are news."""
        self.observe(heartbeat.node_id, heartbeat.samples)
        server = self.servers.get(heartbeat.node_id)
        if server is None:
            return
        for name, hop_s in heartbeat.hop_s.items():
            known_s = self.layout.hop(heartbeat.node_id, name).fixed_s
            is_far_off = abs(hop_s - known_s) > max(HOP_NEWS_S, NEWS * known_s)
            self._has_news |= is_far_off and name in self.servers
        if heartbeat.samples:
            # Fitted here, one node at a time: the tick that arranges all of them finds it done.
            alone = (Stage(heartbeat.node_id, server.first, server.end),)
            (now,) = layout_of([node], [alone], self.model, self.demand, calibration=self.calibration).servers
            for new, known, units in (
                (now.decode, server.decode, self.demand.batch),
                (now.prefill, server.prefill, self.demand.prompt_tokens),
            ):
                self._has_news |= abs(new.at(units) - known.at(units)) > NEWS * known.at(units)

    def plan_for(self, nodes: Sequence[Node]) -> None:
        """Note what a plan made now knows of its nodes."""
        self._planned_s = self._work_s(nodes)

    def unforeseen(self, nodes: Sequence[Node]) -> Reason | None:
        """Return which node takes most unlike what the last plan was made for, where those that serve have changed
        against each other.
        """
        serving = [node for node in nodes if node.node_id in self.servers and node.node_id in self._planned_s]
        now_s = self._work_s(serving)
        changes = {name: work_s / self._planned_s[name] for name, work_s in now_s.items()}
        if not changes or max(changes.values()) <= UNFORESEEN * min(changes.values()):
            return None
        node_id = max(sorted(changes), key=lambda name: abs(math.log(changes[name])))
        return Reason("times-unforeseen", subject=node_id, data={"times": changes[node_id]})

    def _work_s(self, nodes: Sequence[Node]) -> dict[str, float]:
        times_s = work_s(nodes, self.model, self.demand, calibration=self.calibration).tolist()
        return {node.node_id: time_s for node, time_s in zip(nodes, times_s, strict=True) if 0 < time_s < math.inf}

    def arrange(self, requests: InFlightRequests, rollout: Rollout, members: Members) -> None:
        """Arrange the router for what serves, unless it is already."""
        if self._is_checked:
            return
        serving = rollout.in_phase(PipelinePhase.SERVING)
        versions, self._is_checked = tuple(pipeline.version for pipeline in serving), True
        if versions == self._versions:
            return
        self._versions = versions
        used = [members[name].node for pipeline in serving for name in pipeline.node_ids]
        pipelines = tuple(pipeline.stages for pipeline in serving)
        self.layout = layout_of(used, pipelines, self.model, self.demand, calibration=self.calibration)
        requests.arrange(self.layout, {name: p.version for p in serving for name in p.node_ids})
        self.servers = {server.node_id: server for server in self.layout.servers}
