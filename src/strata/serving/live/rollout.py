"""How one plan becomes the next without a pause: new layers load beside the old ones where both fit.

A pipeline waits for nodes that must be emptied first, loads, serves, drains, and is gone. Old pipelines serve
until what replaces them is ready; only where a node cannot hold both are they drained before, and then for one
new pipeline at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from strata.serving.live.instructions import Instruction, Load, Release
from strata.serving.planning.allocation import Pipeline


class PipelinePhase(StrEnum):
    """Where a pipeline is in its life."""

    WAITING = "waiting"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True)
class LivePipeline:
    """One pipeline. `version` names it to the nodes; `missing` are nodes that have not loaded it yet.

    is_wanted: part of the newest plan; one that is not serves until those on its nodes that are do.
    """

    version: int
    stages: Pipeline
    phase: PipelinePhase
    since_s: float
    missing: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    is_wanted: bool = True
    is_fixed: bool = False

    @property
    def node_ids(self) -> list[str]:
        """Its nodes, in the order of their stages."""
        return [stage.node_id for stage in self.stages]


class Rollout:
    """All pipelines there are. `fits_both(node_id, ranges)`: can a node hold several ranges at once?"""

    def __init__(self, fits_both: Callable[[str, list[tuple[int, int]]], bool]) -> None:
        self._fits_both = fits_both
        self._pipelines: dict[int, LivePipeline] = {}
        self._on: dict[str, list[LivePipeline]] = {}
        self._draining: list[LivePipeline] = []
        self._next = 1

    def __getitem__(self, version: int) -> LivePipeline:
        return self._pipelines[version]

    def get(self, version: int) -> LivePipeline | None:
        """Return a pipeline, or None where it is gone."""
        return self._pipelines.get(version)

    def __len__(self) -> int:
        return len(self._pipelines)

    def __iter__(self) -> Iterator[LivePipeline]:
        return iter(list(self._pipelines.values()))

    def in_phase(self, *phases: PipelinePhase) -> list[LivePipeline]:
        """Return the pipelines in some phases, oldest first."""
        return [pipeline for pipeline in self if pipeline.phase in phases]

    def on_node(self, node_id: str) -> list[LivePipeline]:
        """Return the pipelines that have a stage on a node."""
        return list(self._on.get(node_id, ()))

    def wanted(self) -> list[LivePipeline]:
        """Return what serves or will."""
        return self.in_phase(PipelinePhase.WAITING, PipelinePhase.LOADING, PipelinePhase.SERVING)

    def desired(self, node_id: str) -> tuple[tuple[int, int, int], ...]:
        """Return what a node should hold: (version, first, end)."""
        return tuple(
            (pipeline.version, stage.first, stage.end)
            for pipeline in self.on_node(node_id)
            if pipeline.phase is not PipelinePhase.WAITING and not pipeline.is_fixed
            for stage in pipeline.stages
            if stage.node_id == node_id
        )

    def serve(self, stages: Pipeline, now_s: float, *, is_fixed: bool = False) -> LivePipeline:
        """Add a pipeline that serves already; is_fixed: it stays as it is, an engine behind one address."""
        pipeline = self._add(stages, PipelinePhase.SERVING, now_s)
        pipeline.is_fixed = is_fixed
        return pipeline

    def adopt(self, plan: Iterable[Pipeline], now_s: float) -> list[Instruction]:
        """Move towards a plan: pipelines it shares with what is there stay as they are."""
        plan = list(plan)
        out: list[Instruction] = []
        for old in self.wanted():
            if old.is_fixed:
                continue
            old.is_wanted = old.stages in plan
            if old.is_wanted:
                plan.remove(old.stages)
            elif old.phase is not PipelinePhase.SERVING:
                out += self._end(old)
        for stages in plan:
            self._add(stages, PipelinePhase.WAITING, now_s)
        return out + self.advance(now_s)

    def loaded(self, node_id: str, version: int, now_s: float) -> list[Instruction]:
        """Note that a node has loaded a pipeline's layers."""
        pipeline = self._pipelines.get(version)
        if pipeline is None:
            return [Release(node_id, version)]
        if node_id not in pipeline.missing:
            return []  # known already: heartbeats repeat it
        pipeline.missing.remove(node_id)
        return [] if pipeline.missing else self.advance(now_s)

    def lose(self, node_id: str, now_s: float) -> tuple[list[LivePipeline], list[Instruction]]:
        """Take every pipeline of a node out; returns them with what runs on them, and what is to be released."""
        lost, out = self.on_node(node_id), list[Instruction]()
        for pipeline in lost:
            out += [i for i in self._end(pipeline) if not (isinstance(i, Release) and i.node_id == node_id)]
        return lost, out + self.advance(now_s)

    def extend_deadlines(self, gap_s: float) -> None:
        """Count so much time as not passed: it was we who were away."""
        for pipeline in self:
            pipeline.since_s += gap_s

    def is_dry(self) -> bool:
        """Return whether a pipeline that makes room has nothing left to run."""
        return any(not pipeline.running for pipeline in self._draining)

    def advance(self, now_s: float) -> list[Instruction]:
        """Start what can be started, retire what has been replaced, and end what has run dry."""
        out: list[Instruction] = []
        for pipeline in self.in_phase(PipelinePhase.LOADING):
            if not pipeline.missing:
                pipeline.phase, pipeline.since_s = PipelinePhase.SERVING, now_s
        coming = {
            name for new in self.in_phase(PipelinePhase.WAITING, PipelinePhase.LOADING) for name in new.node_ids
        }
        replaced = [
            p for p in self.in_phase(PipelinePhase.SERVING) if not p.is_wanted and not coming & set(p.node_ids)
        ]
        self._drain(replaced, now_s)
        for new in self.in_phase(PipelinePhase.SERVING):
            self._drain([old for old in self._older_on(new) if old.phase is PipelinePhase.SERVING], now_s)
        for old in self.in_phase(PipelinePhase.DRAINING):
            if not old.running:
                out += self._end(old)
        for new in self.in_phase(PipelinePhase.WAITING):
            if not self._crowding(new):
                new.phase, new.since_s = PipelinePhase.LOADING, now_s
                new.missing = set(new.node_ids)
                out += [Load(s.node_id, new.version, s.first, s.end) for s in new.stages]
        # What loads serves nothing yet: to drain another pipeline meanwhile would leave too few.
        emptying = bool(self.in_phase(PipelinePhase.LOADING))
        for new in self.in_phase(PipelinePhase.WAITING):
            crowded = self._crowding(new)
            if not emptying or any(old.phase is PipelinePhase.DRAINING for old in crowded):
                emptying = True
                self._drain([old for old in crowded if old.phase is PipelinePhase.SERVING], now_s)
                for old in crowded:
                    if old.phase is PipelinePhase.DRAINING and not old.running:
                        out += self._end(old)
        if any(isinstance(i, Release) for i in out):
            out += self.advance(now_s)
        return out

    def _older_on(self, new: LivePipeline) -> list[LivePipeline]:
        """Return older pipelines that have other layers on one of its nodes; the same layers are shared."""
        stages = {stage.node_id: stage for stage in new.stages}
        near = {old.version: old for name in stages for old in self._on[name] if old.version < new.version}
        return [old for _, old in sorted(near.items()) if any(stages.get(s.node_id, s) != s for s in old.stages)]

    def _crowding(self, new: LivePipeline) -> list[LivePipeline]:
        """Return older pipelines that must go before the layers of a new one have room."""
        return [old for old in self._older_on(new) if not self._beside(new, old)]

    def _beside(self, new: LivePipeline, old: LivePipeline) -> bool:
        ranges: dict[str, list[tuple[int, int]]] = {}
        for stage in (*new.stages, *old.stages):
            ranges.setdefault(stage.node_id, []).append((stage.first, stage.end))
        return all(self._fits_both(node_id, both) for node_id, both in ranges.items() if len(both) > 1)

    def _drain(self, old: list[LivePipeline], now_s: float) -> None:
        for pipeline in old:
            pipeline.phase, pipeline.since_s = PipelinePhase.DRAINING, now_s
        self._draining += old

    def _add(self, stages: Pipeline, phase: PipelinePhase, now_s: float) -> LivePipeline:
        pipeline = self._pipelines[self._next] = LivePipeline(self._next, stages, phase, now_s)
        for name in dict.fromkeys(pipeline.node_ids):
            self._on.setdefault(name, []).append(pipeline)
        self._next += 1
        return pipeline

    def _end(self, pipeline: LivePipeline) -> list[Instruction]:
        del self._pipelines[pipeline.version]
        for name in set(pipeline.node_ids):
            self._on[name] = [other for other in self._on[name] if other is not pipeline]
            if not self._on[name]:
                del self._on[name]
        self._draining = [other for other in self._draining if other is not pipeline]
        if pipeline.phase is PipelinePhase.WAITING or pipeline.is_fixed:
            return []
        return [Release(node_id, pipeline.version) for node_id in pipeline.node_ids]
