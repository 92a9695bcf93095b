"""A training plan: where each layer runs, how often it is copied, and in which order microbatches flow.

TrainingPlan ── one or more pipelines; more than one means data parallel between them
└── Pipeline ── a chain of stages, in `replicas` identical copies (data parallel inside its domains)
    └── Stage ── consecutive layers on `tensor_parallel` devices of one domain
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

from strata.workload.job import ContextExchange, Recompute, Schedule
from strata.workload.pins import Pins


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers [first_layer, first_layer + num_layers) on `tensor_parallel` devices of `domain`, per copy.

    `context_parallel` as many of each split the sequence between them: a stage has tensor × context devices.
    `warmup`: forwards in flight before the first backward; 1F1B keeps `warmup + 1` activations.
    `recompute_layers`: where the plan recomputes in full, the first so many do; None is all.
    """

    domain: str
    first_layer: int
    num_layers: int
    tensor_parallel: int
    warmup: int = 0
    context_parallel: int = 1
    recompute_layers: int | None = None

    def holding(self, first_layer: int, num_layers: int) -> Stage:
        """Return the stage with other layers; searches ask so often that `dataclasses.replace` is too slow."""
        return Stage(
            self.domain, first_layer, num_layers, self.tensor_parallel, self.warmup, self.context_parallel,
            self.recompute_layers,
        )  # fmt: skip

    @property
    def num_devices(self) -> int:
        """Devices of one copy."""
        return self.tensor_parallel * self.context_parallel


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A chain of stages in `replicas` copies; each copy works through `microbatches` per step.

    samples: how many all copies work through together, where the microbatches have room for more (None: they are
    full). Copies get equal shares, the first ones one more, and a copy's last microbatch is short. It takes as
    long as a whole one: its tensors are padded.
    """

    stages: tuple[Stage, ...]
    replicas: int
    microbatches: int
    samples: int | None = None

    @property
    def domains(self) -> tuple[str, ...]:
        """Domains in pipeline order, each once per visit."""
        seen: list[str] = []
        for stage in self.stages:
            if not seen or seen[-1] != stage.domain:
                seen.append(stage.domain)
        return tuple(seen)

    def devices(self) -> dict[str, int]:
        """Devices used per domain, all copies together."""
        used: dict[str, int] = {}
        for stage in self.stages:
            used[stage.domain] = used.get(stage.domain, 0) + stage.num_devices * self.replicas
        return used

    def with_microbatches(self, count: int) -> Pipeline:
        """Return the pipeline whose copies work through so many, no more of which are in flight.

        A warm-up that fewer microbatches had cut short falls strictly again from stage to stage, as 1F1B needs.
        """
        stages, depth = list[Stage](), -1
        for stage in reversed(self.stages):
            depth = max(depth + 1, stage.warmup)
            stages.append(replace(stage, warmup=min(depth, count - 1)))
        return replace(self, stages=tuple(reversed(stages)), microbatches=count)

    def with_copies(self, replicas: int, samples: int, *, microbatch_size: int) -> Pipeline:
        """Return so many copies that share out samples, in as few microbatches as can be."""
        each = -(-samples // (replicas * microbatch_size))
        is_full = replicas * each * microbatch_size == samples
        pipeline = self.with_microbatches(each)
        return replace(pipeline, replicas=replicas, samples=None if is_full else samples)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How one training job runs. `local_steps` > 1 is DiLoCo: gradients cross domains every H steps.

    zero_stage: 1 shards the optimizer's state between copies, 2 gradients too, 3 weights too (FSDP).
    expert_parallel: so many neighbouring copies (context ranks counted) share one set of routed experts.
    activation_offload: the share of kept activations that waits in the host's memory for its backward.
    shard_group: under stage 3, so many neighbouring copies share one set of shards (HSDP); None is all of them.
    """

    pipelines: tuple[Pipeline, ...]
    microbatch_size: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: Recompute = Recompute.NONE
    zero_stage: int = 0
    gradient_compression: float = 1.0
    local_steps: int = 1
    virtual_stages: int = 1
    shard_group: int | None = None
    context_exchange: ContextExchange = ContextExchange.RING
    expert_parallel: int = 1
    activation_offload: float = 0.0

    def state_shards(self, pipeline: Pipeline) -> int:
        """Return between how many devices that hold the same weights ZeRO shards what it shards."""
        if not self.zero_stage:
            return 1
        return self.shard_group or pipeline.replicas * min(map(attrgetter("context_parallel"), pipeline.stages))

    @property
    def refinements(self) -> tuple[str, ...]:
        """What the plan does that no trace can say."""
        context = any(stage.context_parallel > 1 for pipeline in self.pipelines for stage in pipeline.stages)
        there = {
            "context parallelism": context,
            "expert parallelism": self.expert_parallel > 1,
            "activation offload": self.activation_offload > 0,
        }
        return tuple(name for name, is_there in there.items() if is_there)

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains used, in order of first use."""
        return tuple(dict.fromkeys(name for pipeline in self.pipelines for name in pipeline.domains))

    @property
    def kind(self) -> str:
        """One of single, pp, dp, nested; `+diloco` where gradients cross domains every H steps."""
        crosses = any(len(set(pipeline.domains)) > 1 for pipeline in self.pipelines)
        if len(self.pipelines) == 1:
            return "pp" if crosses else "single"
        return ("nested" if crosses else "dp") + ("+diloco" if self.local_steps > 1 else "")

    def devices(self) -> dict[str, int]:
        """Devices used per domain."""
        used: dict[str, int] = {}
        for pipeline in self.pipelines:
            for name, count in pipeline.devices().items():
                used[name] = used.get(name, 0) + count
        return used

    @property
    def num_devices(self) -> int:
        """Devices used in all domains."""
        return sum(self.devices().values())

    @property
    def recomputed_layers(self) -> tuple[int, int]:
        """Of the layers of all pipelines, how many are computed again in full, and how many there are."""
        stages = [stage for pipeline in self.pipelines for stage in pipeline.stages]
        again = 0
        if self.recompute is Recompute.FULL:
            again = sum(
                s.num_layers if s.recompute_layers is None else min(s.recompute_layers, s.num_layers)
                for s in stages
            )
        return again, sum(stage.num_layers for stage in stages)

    def held_layers(self, pipeline: Pipeline) -> tuple[tuple[range, ...], ...]:
        """Return the layers of each chunk of each stage of one of its pipelines, [S][v].

        Interleaved, the model runs through all stages once a chunk (arXiv 2104.04473 §2.2), so a stage's layers
        lie in v places, whatever its `first_layer`: its transformer layers are shared out evenly. The first chunk
        of the first stage has the embedding too and the last of the last stage the head: these get no layer that
        is left over. Under DualPipeV the model runs down the stages and back up, and the first has both.
        """
        if self.schedule is Schedule.DUAL_PIPE_V:
            return _folded_layers([stage.num_layers for stage in pipeline.stages])
        if self.virtual_stages == 1:
            return tuple((range(s.first_layer, s.first_layer + s.num_layers),) for s in pipeline.stages)
        counts = [stage.num_layers for stage in pipeline.stages]
        counts[0] -= 1
        counts[-1] -= 1
        each = self.virtual_stages
        sizes = [[count // each + (c < count % each) for c in range(each)] for count in counts]
        sizes[0].reverse()
        sizes[0][0] += 1
        sizes[-1][-1] += 1
        chunks: list[list[range]] = [[] for _ in counts]
        first = 0
        for c in range(each):
            for s, size in enumerate(sizes):
                chunks[s].append(range(first, first + size[c]))
                first += size[c]
        return tuple(map(tuple, chunks))

    def samples(self, pipeline: Pipeline) -> int:
        """Return the samples of a step that one of its pipelines works through."""
        full = pipeline.replicas * pipeline.microbatches * self.microbatch_size
        return full if pipeline.samples is None else pipeline.samples

    @property
    def num_samples(self) -> int:
        """Samples of a step."""
        return sum(self.samples(pipeline) for pipeline in self.pipelines)

    def with_samples(self, global_batch: int) -> TrainingPlan:
        """Return the plan that works through no more than a batch: last microbatches are short where they must be.

        First each pipeline's last microbatches give up all but a sample a copy, in the order of the pipelines;
        what is still too much, the largest pipelines give up, down to a sample a copy.
        """
        rooms = [self.samples(replace(pipeline, samples=None)) for pipeline in self.pipelines]
        excess = sum(rooms) - global_batch
        if excess <= 0:
            return self
        samples = list(rooms)
        largest_first = sorted(range(len(rooms)), key=lambda i: -rooms[i])
        for at, keeps in (
            *((i, rooms[i] - p.replicas * (self.microbatch_size - 1)) for i, p in enumerate(self.pipelines)),
            *((i, self.pipelines[i].replicas) for i in largest_first),
        ):
            back = max(0, min(excess, samples[at] - keeps))
            samples[at], excess = samples[at] - back, excess - back
        pipelines = tuple(
            replace(pipeline, samples=count if count < room else None)
            for pipeline, count, room in zip(self.pipelines, samples, rooms, strict=True)
        )
        return replace(self, pipelines=pipelines)

    def keeps(self, pins: Pins) -> bool:
        """Whether the plan has every size that a job fixes."""
        sizes = {
            "tensor": {stage.tensor_parallel for pipeline in self.pipelines for stage in pipeline.stages},
            "pipeline": {len(pipeline.stages) for pipeline in self.pipelines},
            "data": {sum(pipeline.replicas for pipeline in self.pipelines)},
            "microbatch": {self.microbatch_size},
            "context": {stage.context_parallel for pipeline in self.pipelines for stage in pipeline.stages},
            "expert": {self.expert_parallel},
            "virtual_stages": {self.virtual_stages},
        }
        if not all(sizes[name] == {size} for name, size in pins.sizes.items()):
            return False
        held = {
            (name, count)
            for pipeline in self.pipelines
            for name, count in Counter(stage.domain for stage in pipeline.stages).items()
        }
        return pins.stages is None or held == set(pins.stages)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; `from_dict` reads it back."""
        # YAML knows no enums.
        enums = {"schedule", "recompute", "context_exchange"}
        data: dict[str, Any] = {k: str(v) if k in enums else v for k, v in asdict(self).items()}
        for pipeline in data["pipelines"]:
            if pipeline["samples"] is None:
                del pipeline["samples"]
            for stage in pipeline["stages"]:
                if stage["recompute_layers"] is None:
                    del stage["recompute_layers"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainingPlan:
        """Read what `to_dict` wrote. Raises KeyError, TypeError or ValueError on another shape."""
        of_all = data.get("recompute_layers")  # where it was written once for all stages
        pipelines = tuple(
            Pipeline(
                tuple(
                    Stage(**{**stage, "recompute_layers": _first(stage.get("recompute_layers"), of_all)})
                    for stage in item["stages"]
                ),
                item["replicas"],
                item["microbatches"],
                item.get("samples"),
            )
            for item in data["pipelines"]
        )
        rest = {key: value for key, value in data.items() if key not in ("pipelines", "recompute_layers")}
        rest["schedule"], rest["recompute"] = Schedule(rest["schedule"]), Recompute(rest["recompute"])
        rest["context_exchange"] = ContextExchange(rest.get("context_exchange", ContextExchange.RING))
        return cls(pipelines=pipelines, **rest)


def _folded_layers(counts: list[int]) -> tuple[tuple[range, ...], ...]:
    """Return the layers of both chunks of each stage, the first one's embedding and head beside equal halves."""
    ends = [1] + [0] * (len(counts) - 1)
    later = [(count - 2 * end) // 2 + end for count, end in zip(counts, ends, strict=True)]
    first, chunks = 0, []
    for size in (*(count - back for count, back in zip(counts, later, strict=True)), *later[::-1]):
        chunks.append(range(first, first + size))
        first += size
    return tuple((chunks[s], chunks[-1 - s]) for s in range(len(counts)))


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
