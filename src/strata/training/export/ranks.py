"""Which process runs which part of a plan: the rank map all launch files share.

Devices are laid out as the cost model assumes (`simulate/traffic.py`): copy by copy, stage by stage, the ranks
of a stage on consecutive devices of one node. Ranks then number the devices node by node, domains in plan order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import lcm
from typing import Any, TypeAlias

from strata.errors import UsageError
from strata.training.plan.planfile import SavedPlan
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class RankLayout:
    """A plan and what numbering its devices takes of the fleet."""

    plan: TrainingPlan
    num_devices: Mapping[str, int]
    devices_per_node: Mapping[str, int]
    accelerator: Mapping[str, str]

    @classmethod
    def of(cls, saved: SavedPlan) -> RankLayout:
        """Return the layout of a plan file."""
        return cls(
            saved.plan,
            {domain.name: domain.num_devices for domain in saved.domains},
            {domain.name: domain.devices_per_node for domain in saved.domains},
            {domain.name: domain.accelerator for domain in saved.domains},
        )


@dataclass(frozen=True, slots=True)
class Rank:
    """One process and its device: number `local_rank` of node `node` of `domain`.

    `copy` is the data-parallel index inside the pipeline, `context_rank` the part of the sequence. chunks: first
    and last layer of each, the last one inclusive: as many as the plan has virtual stages. One without layers ends
    before it begins.
    """

    rank: int
    domain: str
    node: int
    local_rank: int
    pipeline: int
    copy: int
    stage: int
    context_rank: int
    tensor_rank: int
    chunks: tuple[tuple[int, int], ...]

    @property
    def device(self) -> tuple[str, int, int]:
        """Domain, node and device: where the process runs, whatever its number."""
        return self.domain, self.node, self.local_rank


@dataclass(frozen=True, slots=True)
class DataGroup:
    """Ranks that sum their gradients of some layers: shard `shard` of `num_shards` of each tensor, all copies.

    Pipelines may be cut at other layers and tensors into other shards; a group covers what its ranks all hold.
    """

    first_layer: int
    last_layer: int
    shard: int
    num_shards: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankMap:
    """All ranks in order, and the process groups they form.

    tensor_groups: the ranks of one stage of one copy and part of the sequence. pipeline_groups: one rank of each
    stage of a copy, first stage first. data_groups: the ranks that sum gradients.
    """

    ranks: tuple[Rank, ...]
    tensor_groups: tuple[tuple[int, ...], ...]
    pipeline_groups: tuple[tuple[int, ...], ...]
    data_groups: tuple[DataGroup, ...]

    @property
    def num_layers(self) -> int:
        """Layers of the model, embedding and head included."""
        return 1 + max(rank.chunks[-1][1] for rank in self.ranks)

    def nodes(self) -> dict[tuple[str, int], tuple[Rank, ...]]:
        """Return the ranks of each (domain, node), nodes and devices in order; the position is the node rank."""
        order = {name: index for index, name in enumerate(dict.fromkeys(rank.domain for rank in self.ranks))}
        by_node: dict[tuple[str, int], tuple[Rank, ...]] = {}
        for rank in sorted(self.ranks, key=lambda rank: (order[rank.domain], rank.node, rank.local_rank)):
            by_node[rank.domain, rank.node] = (*by_node.get((rank.domain, rank.node), ()), rank)
        return by_node

    def renumbered(self, order: Sequence[int]) -> RankMap:
        """Return the same processes on the same devices with other numbers: `order[new]` is the old rank."""
        new = {old: rank for rank, old in enumerate(order)}
        assert len(new) == len(self.ranks), "an order names every rank once"

        def groups(old: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(new[rank] for rank in group) for group in old)

        return RankMap(
            tuple(replace(self.ranks[old], rank=rank) for rank, old in enumerate(order)),
            groups(self.tensor_groups),
            groups(self.pipeline_groups),
            tuple(replace(group, ranks=tuple(new[rank] for rank in group.ranks)) for group in self.data_groups),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, as in `ranks.json`."""
        return {"world_size": len(self.ranks), "num_layers": self.num_layers, **asdict(self)}


def rank_map(layout: RankLayout) -> RankMap:
    """Return who runs what. Raises UsageError for plans that do not fit their nodes."""
    if layout.plan.virtual_stages > 1 and any(len(pipeline.stages) < 2 for pipeline in layout.plan.pipelines):
        raise UsageError(
            f"a pipeline of one stage has nothing to interleave with: virtual_stages {layout.plan.virtual_stages}",
            hint="virtual_stages: 1",
        )
    places = _place(layout)
    domains = {name: index for index, name in enumerate(layout.plan.domains)}
    ranks = tuple(
        replace(rank, rank=number)
        for number, rank in enumerate(sorted(places, key=lambda r: (domains[r.domain], r.node, r.local_rank)))
    )
    stages: _Stages = {}
    for rank in sorted(ranks, key=lambda r: (r.pipeline, r.copy, r.stage, r.context_rank, r.tensor_rank)):
        key = (rank.pipeline, rank.copy, rank.stage, rank.context_rank)
        stages[key] = (*stages.get(key, ()), rank.rank)
    return RankMap(
        ranks, tuple(stages.values()), tuple(_chains(layout.plan, stages)), tuple(_sums(layout.plan, stages))
    )


def _place(layout: RankLayout) -> list[Rank]:
    """Return all ranks, not yet numbered, each on its device."""
    taken = dict.fromkeys(layout.plan.domains, 0)
    places = []
    for p, pipeline in enumerate(layout.plan.pipelines):
        chunks = [
            tuple((held.start, held.stop - 1) for held in stage) for stage in layout.plan.held_layers(pipeline)
        ]
        for copy in range(pipeline.replicas):
            for s, stage in enumerate(pipeline.stages):
                size = layout.devices_per_node[stage.domain]
                if stage.tensor_parallel > size:
                    raise UsageError(
                        f"{stage.domain}: a stage of {stage.tensor_parallel} devices does not fit a node of {size}"
                    )
                for c in range(stage.context_parallel):
                    start = taken[stage.domain]
                    if start % size + stage.tensor_parallel > size:
                        start += -start % size  # tensor ranks never span nodes: devices left over stay idle
                    taken[stage.domain] = start + stage.tensor_parallel
                    places += [
                        Rank(-1, stage.domain, *divmod(start + t, size), p, copy, s, c, t, chunks[s])
                        for t in range(stage.tensor_parallel)
                    ]
    for domain, devices in taken.items():
        if devices > layout.num_devices[domain]:
            raise UsageError(
                f"{domain}: the plan's stages take {devices} devices of {layout.num_devices[domain]}: "
                f"none may span nodes of {layout.devices_per_node[domain]}"
            )
    return places


_Stages: TypeAlias = dict[tuple[int, int, int, int], tuple[int, ...]]
"""The tensor ranks of each (pipeline, copy, stage, context rank)."""


def _chains(plan: TrainingPlan, stages: _Stages) -> list[tuple[int, ...]]:
    """Return the chains of ranks: as many per copy as the widest stage has; narrower stages are in several."""
    return [
        tuple(
            stages[p, copy, s, part * stage.context_parallel // parts][chain * stage.tensor_parallel // width]
            for s, stage in enumerate(pipeline.stages)
        )
        for p, pipeline in enumerate(plan.pipelines)
        for width in (max(stage.tensor_parallel for stage in pipeline.stages),)
        for parts in (max(stage.context_parallel for stage in pipeline.stages),)
        for copy in range(pipeline.replicas)
        for part in range(parts)
        for chain in range(width)
    ]


def _sums(plan: TrainingPlan, stages: _Stages) -> list[DataGroup]:
    """Return the groups that sum gradients: layers cut wherever any pipeline is, shards as fine as any stage's."""
    held = [plan.held_layers(pipeline) for pipeline in plan.pipelines]
    cuts = sorted({chunk.start for stages in held for stage in stages for chunk in stage if chunk})
    ends = [*cuts[1:], sum(stage.num_layers for stage in plan.pipelines[0].stages)]
    groups = []
    for first, end in zip(cuts, ends, strict=True):
        holders = []
        for p, pipeline in enumerate(plan.pipelines):
            s = next(s for s, chunks in enumerate(held[p]) if any(first in chunk for chunk in chunks))
            holders.append((p, s, pipeline.stages[s]))
        shards = lcm(*(stage.tensor_parallel for _, _, stage in holders))
        for shard in range(shards):
            ranks = tuple(
                stages[p, copy, s, part][shard * stage.tensor_parallel // shards]
                for p, s, stage in holders
                for copy in range(plan.pipelines[p].replicas)
                for part in range(stage.context_parallel)
            )
            groups.append(DataGroup(first, end - 1, shard, shards, ranks))
    return groups
