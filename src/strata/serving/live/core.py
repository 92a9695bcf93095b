"""The scheduler: one event and the time in, instructions out. No clock, no thread, no socket.

Whoever drives it (the gateway, the simulator, a test) does what the instructions say and reports what came of
it. Same events at the same times: same instructions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from strata.decision import Reason
from strata.serving.live import events
from strata.serving.live.absence import Absence
from strata.serving.live.arrangement import Arrangement
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.handover import HandOver, hand_over
from strata.serving.live.in_flight import InFlightRequests
from strata.serving.live.instructions import Dispatch, EvictNode, Instruction, RejectJoin, Replan
from strata.serving.live.members import Members
from strata.serving.live.metrics import MetricsCollector
from strata.serving.live.rollout import LivePipeline, PipelinePhase, Rollout
from strata.serving.live.transition import DRAIN_S, fits_both
from strata.serving.node import Node
from strata.serving.planning.allocation import Pipeline, Stage
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

SETTLE_S: Final = 0.5
"""Nodes that join within so long of each other are planned for together."""
COOL_DOWN: Final = 0.1
"""Share of the horizon between two re-plans where no node came or went."""
LOAD_PATIENCE: Final = 10.0
"""Times what reading its layers is expected to take that a node may need, beside the heartbeat timeout."""


class Core:
    """One model served by a cluster of nodes.

    demand: what plans are made for. learns: by what requests turn out to be, once there have been some.
    plan_reasons: of the last plan, what it was made for among them.
    """

    def __init__(self, config: SchedulerConfig, model: ModelInfo, demand: Demand, *, learns: bool = False) -> None:
        self.config, self.model = config, model
        self.metrics = MetricsCollector()
        self._assumed, self._learns = demand, learns
        self._arrangement = Arrangement(model, demand)
        self._members = Members(config.heartbeat_timeout, interval_s=config.heartbeat_interval_s)
        self._rollout = Rollout(self._fits_both)
        self._requests = InFlightRequests(config, self._rollout, self.metrics, hidden_bytes=model.hidden_bytes)
        self._now_s: float | None = None
        self._plan_version = 0
        self._plan_due_s: float | None = None
        self._planned_s: float | None = None
        self._is_planning = False
        self._absence = Absence()
        self.plan_reasons: tuple[Reason, ...] = ()
        self._causes: tuple[Reason, ...] = ()
        self._broken: list[Pipeline] = []

    @property
    def demand(self) -> Demand:
        """What plans are made for now."""
        return self._arrangement.demand

    def handle(self, event: events.Event, now_s: float) -> tuple[Instruction, ...]:
        """Take one event; return what is to be done. A clock that runs backwards stands still instead."""
        now_s = self._advanced(now_s)
        return (*self._handled(event, now_s), *self._settled(now_s))

    def rebalance(self, now_s: float) -> tuple[Instruction, ...]:
        """Ask for a new plan now, whatever the load."""
        now_s = self._advanced(now_s)
        self._want_plan(now_s)
        return tuple(self._settled(now_s))

    def next_wake_s(self, now_s: float) -> float | None:
        """Return when a `Tick` is due at the latest; None where nothing can happen by itself."""
        due = [] if self._plan_due_s is None or self._is_planning else [self._plan_due_s]
        if len(self._members) or len(self._requests):
            due.append(now_s + self.config.heartbeat_interval_s)
            due += [at for at in (self._requests.wake_s(), self._absence.wake_s()) if at and at > now_s]
        return max(now_s, min(due)) if due else None

    def incarnation(self, node_id: str) -> int | None:
        """Return the life of a node that is in; None where it is not."""
        return self._members[node_id].incarnation if node_id in self._members else None

    def desired(self, node_id: str) -> tuple[tuple[int, int, int], ...]:
        """Return what a node should hold: (version, first, end)."""
        return self._rollout.desired(node_id)

    def peers(self, node_id: str) -> dict[str, str]:
        """Return the addresses a node should measure its distance to."""
        return {node.node_id: node.url for node in self._members.nodes() if node.url and node.node_id != node_id}

    def serving(self) -> tuple[Pipeline, ...]:
        """Return the pipelines that take requests."""
        return tuple(pipeline.stages for pipeline in self._rollout.in_phase(PipelinePhase.SERVING))

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes as they are now, with their loads."""
        nodes = []
        for node in self._members.nodes():
            if server := self._arrangement.servers.get(node.node_id):
                running, tokens = self._requests.router.load(node.node_id)
                node = replace(
                    node,
                    running=running,
                    slots=server.slots,
                    kv_tokens_used=tokens,
                    kv_tokens=server.kv_tokens,
                    decode_s=server.token_s(max(running, 1)),
                    prefill_s_per_token=server.prefill.per_unit_s,
                )
            nodes.append(node)
        return tuple(nodes)

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Return where a request went and why; None for one that was never heard of, or long ago."""
        timeline = self._requests.timeline(request_id)
        if timeline is None:
            return None
        answer: dict[str, Any] = {"request_id": request_id, "timeline": timeline}
        if (request := self._requests.get(request_id)) and self._now_s is not None:
            answer["paths_now"] = self._requests.router.explain(request.signal, self._now_s)
        return answer

    def hand_over(self, dispatch: Dispatch, *, prompt_tokens: int, generated: int) -> HandOver | None:
        """Return whether a request goes on from what its last attempt has kept, and why; None where nothing is."""
        if dispatch.kept is None or not generated:
            return None
        estimate = hand_over(
            self.model, self._arrangement.layout, dispatch.kept.stages, dispatch.route.stages,
            prompt_tokens=prompt_tokens, generated=generated,
        )  # fmt: skip
        self._requests.note(dispatch.request_id, {"handover": estimate.to_dict()})
        return estimate

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """Return what happened to at most so many requests: those in flight, then those that ended last."""
        return [
            {"request_id": request_id, "timeline": timeline}
            for request_id, timeline in self._requests.recent(limit)
        ]

    def counts(self) -> dict[str, int]:
        """Return the figures for a scrape, without going through the nodes."""
        return {
            "ready": bool(self._rollout.in_phase(PipelinePhase.SERVING)),
            "pipelines": len(self._rollout),
            "nodes": len(self._members),
            "waiting": self._requests.num_waiting,
            "unfinished": len(self._requests),
        }

    def oldest_wait_s(self, now_s: float) -> float:
        """Return how long the request waits that came first of those without a route; 0 where none waits."""
        return self._requests.oldest_wait_s(now_s)

    def status(self) -> dict[str, Any]:
        """Return what serves, what waits and what is planned."""
        counts = self.counts()
        return {
            "model": self.model.model_name,
            "ready": bool(counts["ready"]),
            "pipelines": [
                {
                    "version": pipeline.version,
                    "phase": pipeline.phase.value,
                    "stages": [list(stage) for stage in pipeline.stages],
                    "running": len(pipeline.running),
                }
                for pipeline in self._rollout
            ],
            "nodes": [
                {
                    "id": node.node_id,
                    "running": node.running,
                    "others": self._requests.router.reservations.others_on(node.node_id),
                    "slots": node.slots,
                    "kv_tokens": node.kv_tokens,
                    "load": node.get_current_load(),
                }
                for node in self.nodes()
            ],
            "suspects": self._members.suspects(),
            "requests": {key: counts[key] for key in ("waiting", "unfinished")},
            "is_planning": self._is_planning,
            "planned_for": {key: getattr(self.demand, key) for key in ("batch", "prompt_tokens", "output_tokens")},
            "reasons": [reason.to_dict() for reason in self.plan_reasons],
        }

    def _handled(self, event: events.Event, now_s: float) -> list[Instruction]:
        requests = self._requests
        match event:
            case events.Join():
                return self._join(event, now_s)
            case events.Leave(node_id, incarnation):
                if self._members.is_current(node_id, incarnation):
                    return self._evict(node_id, Reason("node-left", subject=node_id), now_s, keeps=True)
            case events.Heartbeat():
                return self._heartbeat(event, now_s)
            case events.Loaded(node_id, incarnation, version):
                if self._members.is_current(node_id, incarnation):
                    self._arrangement.check()
                    return self._rollout.loaded(node_id, version, now_s)
            case events.Arrive(request):
                return requests.arrive(request, now_s)
            case events.FirstToken(request_id, attempt):
                requests.first_token(request_id, attempt, now_s)
            case events.Finished(request_id, attempt, generated):
                self._members.trust(requests.finish(request_id, attempt, generated, now_s))
            case events.Failed():
                return self._failed(event, now_s)
            case events.Cancelled(request_id):
                return requests.cancel(request_id, now_s)
            case events.Planned():
                return self._planned(event, now_s)
            case events.Tick():
                return self._tick(now_s)
        return []

    def _join(self, event: events.Join, now_s: float) -> list[Instruction]:
        node = event.node
        verdict = self._members.join(node, event.incarnation, now_s)
        if isinstance(verdict, Reason):
            return [RejectJoin(node.node_id, event.incarnation, verdict)]
        if verdict == "known":
            return []
        out = list[Instruction]()
        if verdict == "restarted":
            out = self._lose(node.node_id, now_s)
            self._arrangement.calibration.forget(node.node_id)
        self.metrics.count_join(node.node_id)
        self._arrangement.observe(node.node_id, event.samples)
        self._welcome(node, now_s)
        return out

    def _welcome(self, node: Node, now_s: float) -> None:
        """Give a node work: a whole engine serves at once, layers are laid onto others with the next plan."""
        if node.model:
            self._rollout.serve((Stage(node.node_id, 0, self.model.num_layers),), now_s, is_fixed=True)
            self._arrangement.check()
        else:
            self._want_plan(now_s + SETTLE_S)

    def _heartbeat(self, event: events.Heartbeat, now_s: float) -> list[Instruction]:
        node_id = event.node_id
        was_suspect = node_id in self._members and self._members[node_id].is_suspect
        refused = self._members.heartbeat(event, now_s)
        if refused:
            return [RejectJoin(node_id, event.incarnation, refused)]
        member = self._members[node_id]
        if member.is_suspect:
            return self._lose(node_id, now_s)
        if was_suspect:
            self._welcome(member.node, now_s)
        self._arrangement.hear(event, member.node)
        self._requests.router.note_others(node_id, event.num_others)
        # Later nodes of a route may not have heard of the request yet: only the first can have lost it.
        ours = {r for pipeline in self._rollout.on_node(node_id) for r in pipeline.running}
        later = {r for r in ours if not self._requests.starts_on(r, node_id)}
        lost = ours.intersection(self._requests.router.reconcile(node_id, event.running | later, now_s))
        return self._requests.take_back(lost, Reason("node-forgot", subject=node_id), now_s)

    def _failed(self, event: events.Failed, now_s: float) -> list[Instruction]:
        out = self._requests.break_off(
            event.request_id, event.attempt, event.generated, now_s, is_blamed=event.node_id is not None
        )
        if out is None:
            return []
        if event.node_id is not None and event.node_id in self._members:
            out += self._suspect(event.node_id, now_s)
        return out

    def _suspect(self, node_id: str, now_s: float) -> list[Instruction]:
        """Lay a node's layers elsewhere; it is not out, and a later heartbeat clears it."""
        self._members.suspect(node_id, now_s)
        return self._lose(node_id, now_s)

    def _planned(self, event: events.Planned, now_s: float) -> list[Instruction]:
        if event.version != self._plan_version:
            return []
        self._is_planning, self._broken, self.plan_reasons = False, [], event.reasons
        here = {node.node_id for node in self._members.nodes()}
        # Nodes may have gone while the plan was made; that has made another one due.
        plan = [p for p in event.pipelines if here.issuperset(stage.node_id for stage in p)]
        self._arrangement.check()
        return self._rollout.adopt(plan, now_s)

    def _tick(self, now_s: float) -> list[Instruction]:
        out: list[Instruction] = []
        for node_id in self._members.silent(now_s):
            data = {"seconds": self.config.heartbeat_timeout}
            out += self._evict(node_id, Reason("node-silent", subject=node_id, data=data), now_s)
        for pipeline in self._rollout.in_phase(PipelinePhase.LOADING):
            if now_s - pipeline.since_s > (limit_s := self._load_limit_s(pipeline)):
                for node_id in sorted(name for name in pipeline.missing if name in self._members):
                    reason = Reason("load-too-slow", subject=node_id, data={"seconds": round(limit_s)})
                    out += self._evict(node_id, reason, now_s)
        if self._rollout.in_phase(PipelinePhase.WAITING):
            for pipeline in self._rollout.in_phase(PipelinePhase.DRAINING):
                if now_s - pipeline.since_s > DRAIN_S:
                    reason = Reason("makes-room")
                    out += self._requests.take_back(pipeline.running, reason, now_s, keeps=True)
        self._arrangement.renew()
        self._watch_load(now_s)
        return out

    def _load_limit_s(self, pipeline: LivePipeline) -> float:
        """Return how long a pipeline may load before those it waits for must join anew, and others go on."""
        most_bytes = max(float(self.model.weight_bytes[s.first : s.end].sum()) for s in pipeline.stages)
        return self.config.heartbeat_timeout + LOAD_PATIENCE * most_bytes / self.config.reload_bytes_per_s

    def _watch_load(self, now_s: float) -> None:
        serving = [node for node in self.nodes() if node.slots]
        for node in serving:
            usage = {"slots": node.running / node.slots, "kv": node.kv_tokens_used / max(node.kv_tokens, 1)}
            usage |= self._members[node.node_id].usage
            self.metrics.collect_resource_usage(node.node_id, usage)
        load = sum(node.get_current_load() for node in serving) / len(serving) if serving else 0.0
        cool_s = COOL_DOWN * self.config.request_arrival_horizon
        if self._planned_s is not None and now_s - self._planned_s <= cool_s:
            return
        unforeseen = self._arrangement.unforeseen(self._members.nodes())
        if load > self.config.rebalance_threshold or self._demanded(now_s) != self.demand or unforeseen:
            self._causes = () if unforeseen is None else (unforeseen,)
            self._want_plan(now_s)

    def _demanded(self, now_s: float) -> Demand:
        if not self._learns:
            return self.demand
        pipelines = len(self._rollout.wanted())
        return self._requests.traffic.demand(self._assumed, self.demand, pipelines=pipelines, now_s=now_s)

    def _evict(self, node_id: str, reason: Reason, now_s: float, *, keeps: bool = False) -> list[Instruction]:
        self._members.remove(node_id)
        out = [EvictNode(node_id, reason), *self._lose(node_id, now_s, keeps=keeps)]
        self._arrangement.calibration.forget(node_id)
        self.metrics.forget(node_id)
        return out

    def _lose(self, node_id: str, now_s: float, *, keeps: bool = False) -> list[Instruction]:
        """Take a node's pipelines out; what ran there goes elsewhere, before anything that came later.

        keeps: it finishes what it has, and may hand over what is cached there.
        """
        lost, out = self._rollout.lose(node_id, now_s)
        # A request may run on several: its stages can be shared, or be stitched from two pipelines.
        hit = {request_id for pipeline in lost for request_id in pipeline.running}
        out += self._requests.take_back(hit, Reason("node-lost", subject=node_id), now_s, keeps=keeps)
        if lost:
            self._arrangement.check()
            self._broken += [p.stages for p in lost if p.phase is not PipelinePhase.DRAINING and not p.is_fixed]
            self._want_plan(now_s)
        return out

    def _want_plan(self, due_s: float) -> None:
        self._plan_due_s = due_s if self._plan_due_s is None else min(self._plan_due_s, due_s)

    def _plan(self, now_s: float) -> Replan:
        wanted = [pipeline for pipeline in self._rollout.wanted() if not pipeline.is_fixed]
        causes, self._causes = self._causes, ()
        self._plan_version += 1
        self._is_planning, self._plan_due_s, self._planned_s = True, None, now_s
        self._arrangement.renew(demand=self._demanded(now_s))
        nodes = tuple(self._members.nodes())
        self._arrangement.plan_for(nodes)
        return Replan(
            self._plan_version,
            nodes,
            current=tuple(pipeline.stages for pipeline in wanted),
            reserved_tokens=tuple(self._requests.kv_tokens(pipeline.running) for pipeline in wanted),
            broken=tuple(self._broken),
            wanted_tokens_per_s=self._requests.traffic.tokens_per_s(now_s),
            horizon_s=self.config.request_arrival_horizon,
            calibration=self._arrangement.calibration.copy(),
            causes=causes,
        )

    def _fits_both(self, node_id: str, ranges: list[tuple[int, int]]) -> bool:
        """Return whether a node is in and can hold several ranges at once."""
        return node_id in self._members and fits_both(self.model, self._members[node_id].node, ranges)

    def _advanced(self, now_s: float) -> float:
        before, timeout_s = self._now_s, self.config.heartbeat_timeout
        now_s = now_s if before is None else max(now_s, before)
        if before is not None and now_s - before > max(2 * self.config.heartbeat_interval_s, timeout_s / 2):
            # Nobody called for long: the process slept or the clock jumped. Heartbeats could not be heard.
            self._members.extend_deadlines(now_s - before)
            self._rollout.extend_deadlines(now_s - before)
        self._now_s = now_s
        self.metrics.at(now_s)
        return now_s

    def _settled(self, now_s: float) -> list[Instruction]:
        """Do what follows any event: pipelines move on, routers learn of them, plans fall due, requests leave."""
        out = self._rollout.advance(now_s) if self._rollout.is_dry() else []
        if self._plan_due_s is not None and now_s >= self._plan_due_s and not self._is_planning:
            out.append(self._plan(now_s))
        self._arrangement.arrange(self._requests, self._rollout, self._members)
        out += self._requests.dispatch(now_s)
        is_here = len(self._rollout) > 0 or self._is_planning or self._plan_due_s is not None
        if self._absence.is_long(is_here, now_s):
            reason = Reason("nobody-serves", data={"nodes": len(self._members)})
            out += self._requests.give_up(reason, now_s)
        return out
