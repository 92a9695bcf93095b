"""Plans whose domains deliver the share of a job that they hold devices for, as far as that costs no time.

A plan is as fast as its slowest part, so a planner leaves it to chance which of the others has less to do: a
domain may compute 22 % of a job with 29 % of its devices. Here layers and samples are spread by devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from strata.workload.job import TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan


def work_shares(job: TrainingJob, plan: TrainingPlan) -> dict[str, float]:
    """Return the share of a step's FLOPs that each domain of a plan computes."""
    done: dict[str, float] = dict.fromkeys(plan.domains, 0.0)
    for pipeline in plan.pipelines:
        for stage, chunks in zip(pipeline.stages, plan.held_layers(pipeline), strict=True):
            flops = sum(float(job.layers.forward_flops[list(chunk)].sum()) for chunk in chunks)
            done[stage.domain] += flops * plan.samples(pipeline)
    total = sum(done.values())
    return {name: flops / total for name, flops in done.items()}


def unevenness(job: TrainingJob, plan: TrainingPlan) -> float:
    """Return the largest |share of devices - share of FLOPs| of a domain."""
    return max(abs(away) for away in _away(job, plan).values())


def balanced(
    job: TrainingJob, plan: TrainingPlan, *, fits: Callable[[TrainingPlan], bool]
) -> Iterator[TrainingPlan]:
    """Yield plans over the same devices that are more even and fit, however fast they are: one of each way."""
    if len(plan.domains) < 2 or plan.shard_group is not None or plan.expert_parallel > 1:
        return
    had = unevenness(job, plan)
    for way in _ways(job, plan, fits):
        if way.num_samples == job.global_batch and unevenness(job, way) < had - 1e-9 and fits(way):
            yield way


def _ways(job: TrainingJob, plan: TrainingPlan, fits: Callable[[TrainingPlan], bool]) -> Iterator[TrainingPlan]:
    if len(plan.pipelines) == 1:
        steps = list(_layers_moved(job, plan))
        yield from [way for way in reversed(steps) if fits(way)][:1]
        return
    yield by_devices(plan, job.global_batch)
    degrees = Counter(pipeline.stages[0].tensor_parallel for pipeline in plan.pipelines)
    if len(degrees) > 1 and all(len(pipeline.stages) == 1 for pipeline in plan.pipelines):
        yield by_devices(_of_degree(plan, degrees.most_common(1)[0][0]), job.global_batch)


def by_devices(plan: TrainingPlan, global_batch: int) -> TrainingPlan:
    """Return the plan whose pipelines work through samples by their devices, in as few microbatches as can be."""
    sizes = [sum(pipeline.devices().values()) for pipeline in plan.pipelines]
    exact = [global_batch * size / sum(sizes) for size in sizes]
    samples = [max(int(part), pipeline.replicas) for part, pipeline in zip(exact, plan.pipelines, strict=True)]
    while sum(samples) < global_batch:
        samples[max(range(len(sizes)), key=lambda i: exact[i] - samples[i])] += 1
    pipelines = tuple(
        pipeline.with_copies(pipeline.replicas, count, microbatch_size=plan.microbatch_size)
        for pipeline, count in zip(plan.pipelines, samples, strict=True)
    )
    return replace(plan, pipelines=pipelines)


def _of_degree(plan: TrainingPlan, degree: int) -> TrainingPlan:
    """Return the plan of single stages with one tensor-parallel degree, where that takes the same devices."""

    def changed(pipeline: Pipeline) -> Pipeline:
        stage = pipeline.stages[0]
        ranks = pipeline.replicas * stage.tensor_parallel
        if ranks % degree:
            return pipeline
        return replace(
            pipeline, stages=(replace(stage, tensor_parallel=degree),), replicas=ranks // degree, samples=None
        )

    return replace(plan, pipelines=tuple(map(changed, plan.pipelines)))


def _layers_moved(job: TrainingJob, plan: TrainingPlan) -> Iterator[TrainingPlan]:
    """Yield a plan of one pipeline with more and more layers moved between domains, each time more even.

    No stage gets larger than the largest of its domain.
    """
    had = unevenness(job, plan)
    while plan.virtual_stages == 1:
        away = _away(job, plan)
        moved = _moved(plan, min(away, key=away.__getitem__), max(away, key=away.__getitem__))
        if moved is None or (now := unevenness(job, moved)) >= had - 1e-9:
            return
        yield moved
        plan, had = moved, now


def _moved(plan: TrainingPlan, giver: str, taker: str) -> TrainingPlan | None:
    """Return the plan with a layer of one domain moved to another; None where no stage of that can be larger."""
    pipeline = plan.pipelines[0]
    counts = [stage.num_layers for stage in pipeline.stages]
    own = {name: [i for i, stage in enumerate(pipeline.stages) if stage.domain == name] for name in (giver, taker)}
    # The first and the last stage hold embeddings and the head: what they lack of layers they need for them.
    room = [i for i in own[taker] if 0 < i < len(counts) - 1 and counts[i] < max(counts[k] for k in own[taker])]
    most = max(own[giver], key=lambda i: counts[i])
    if not room or counts[most] < 2:
        return None
    counts[most] -= 1
    counts[min(room, key=lambda i: counts[i])] += 1
    stages, first = list[Stage](), 0
    for stage, count in zip(pipeline.stages, counts, strict=True):
        again = stage.recompute_layers
        again = None if again is None else min(again, count)
        stages.append(replace(stage, first_layer=first, num_layers=count, recompute_layers=again))
        first += count
    return replace(plan, pipelines=(replace(pipeline, stages=tuple(stages)),))


def _away(job: TrainingJob, plan: TrainingPlan) -> Mapping[str, float]:
    """Return the share of devices less the share of FLOPs, by domain."""
    done, devices = work_shares(job, plan), plan.devices()
    return {name: devices[name] / plan.num_devices - done[name] for name in done}
