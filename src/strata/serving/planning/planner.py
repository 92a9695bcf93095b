"""Plan the serving of a job on a fleet: pipelines, what they give, what else was considered, and the reasons.

observe: nodes and pool of a Fleet and a ServingJob. decide: `plan_serving`, a pure function of them and a clock.
explain: the Decision inside the answer. act: `export/` writes what launches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strata.clock import Clock
from strata.decision import Alternative, Decision, Reason, Trust, digest
from strata.files import API_VERSION
from strata.fleet.fleet import Fleet
from strata.serving.observe import group_ids, nodes_of, pool_of, unusable
from strata.serving.planning import unused
from strata.serving.planning.allocate import Strategy, allocate
from strata.serving.planning.allocation import Allocation, goodput
from strata.serving.planning.estimate import Estimate, estimates
from strata.serving.planning.goal import Goal, Weighing
from strata.serving.planning.groups import best_groups, why_cut
from strata.serving.planning.planfile import PlannedFleet, PlannedNode, PlannedService, ServingPlan
from strata.serving.planning.pool import NodePool
from strata.serving.planning.relax import smallest
from strata.serving.planning.unused import Unused
from strata.units import show_time
from strata.workload.serving_job import ServingJob

STRATEGIES: Final[tuple[Strategy, ...]] = ("auto", "dp", "greedy")
OBJECTIVES: Final = {
    "both": "tokens/s against decode time",
    "goodput": "tokens/s within the goals",
    "throughput": "tokens/s",
    "latency": "decode time",
}
WORTH_SAYING: Final = 0.005
"""Differences below this share are not a reason."""
FIGURES: Final = (
    "tokens_per_s", "decode_s", "ttft_s", "requests_per_s", "goodput_per_s", "link_share", "usd_per_hour",
    "cost_usd_per_mtoken", "goodput_usd_per_mtoken",
)  # fmt: skip
AGES_S: Final = 1e9
NEXT_TO_NONE: Final = 1e-9
WAITS: Final = 0.3
"""Share of a token's time on links from which the network is said to set the pace."""


@dataclass(frozen=True)
class ServingAnswer:
    """The Decision, and what is behind it; where nothing fits, `plan` has no pipelines and `estimate` is None."""

    decision: Decision[ServingPlan]
    plan: ServingPlan
    allocation: Allocation
    estimate: Estimate | None
    unused: tuple[Unused, ...]

    @property
    def is_good_enough(self) -> bool:
        """Whether there is a plan that keeps the job's goals at the rate it states."""
        return self.estimate is not None and self.estimate.is_good_enough

    def to_dict(self, job: ServingJob, *, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Return the stable JSON of `strata plan serve`, also the plan file; `inputs` names fleet and job.

        bound_tokens_per_s and gap are of the stages alone (`bound.py`), before KV memory limits them.
        """
        decision, allocation, estimate = self.decision, self.allocation, self.estimate
        figures: dict[str, Any] | None = None
        if estimate is not None:
            figures = {
                **{name: getattr(estimate, name) for name in FIGURES},
                "stages_tokens_per_s": sum(
                    job.demand.batch / max(stage.stage_s for stage in pipeline.stages)
                    for pipeline in estimate.pipelines
                ),
                "bound_tokens_per_s": allocation.bound_tokens_per_s,
                "gap": None if allocation.gap is None else max(0.0, allocation.gap),
                "trust": str(estimate.trust),
                "batch": job.demand.batch,
                "flops_efficiency": job.flops_efficiency,
                "bandwidth_efficiency": job.bandwidth_efficiency,
                "efficiencies_trust": str(
                    estimate.trust if estimate.trust is Trust.CALIBRATED else job.efficiencies_trust
                ),
            }
        return {
            **self.plan.model_copy(update={"inputs": dict(inputs)}).to_dict(),
            "figures": figures,
            "reasons": [reason.to_dict() for reason in decision.reasons],
            "alternatives": [item.to_dict() for item in decision.alternatives],
            "unused": [left_out.to_dict() for left_out in self.unused],
            "trust": str(decision.trust),
            "inputs_digest": decision.inputs_digest,
            "seed": decision.seed,
            "search_s": decision.elapsed_s,
        }


def plan_serving(
    fleet: Fleet,
    job: ServingJob,
    *,
    clock: Clock,
    strategy: Strategy = "auto",
    goal: Goal = Goal.BOTH,
    time_limit_s: float = math.inf,
    is_stopped: Callable[[], bool] = lambda: False,
) -> ServingAnswer:
    """Return the plan of a strategy, with the other strategies beside it. No plan is a Decision, never an error.

    `auto` takes another strategy's plan where that is worth more. `is_stopped` (an interrupt) ends the search: the
    best plan so far is the answer.
    """
    started = clock()
    groups = best_groups(fleet, job, goal)
    nodes = nodes_of(fleet, groups=groups.sizes)
    pool = pool_of(nodes, job.model, job.demand, derating=job.derating)

    def is_over() -> bool:
        return is_stopped() or clock() - started > time_limit_s

    def ticking() -> float:
        # To the search an interrupt is time running out, however much there is.
        return clock() - started + (AGES_S if is_stopped() else 0.0)

    allocations: dict[Strategy, Allocation] = {}
    for name in sorted(STRATEGIES, key=lambda other: other != strategy):
        if not allocations or not is_over():
            left_s = -1.0 if is_stopped() else min(max(0.0, time_limit_s - (clock() - started)), AGES_S / 2)
            allocations[name] = allocate(pool, name, goal=goal, time_limit_s=left_s, clock=ticking)
    values = {name: _value(pool, goal, outcome) for name, outcome in allocations.items()}
    chosen = max(values, key=lambda name: values[name]) if strategy == "auto" else strategy
    if not values[chosen] > values[strategy] + WORTH_SAYING:
        chosen = strategy
    allocation = allocations[chosen]
    elapsed_s = clock() - started
    stopped = [Reason("time-limit", data={"elapsed": show_time(elapsed_s), "evaluated": len(allocations)})]
    reasons: list[Reason] = []
    estimate = None
    left_out: tuple[Unused, ...] = ()
    if allocation.pipelines:
        estimate = estimates(fleet, nodes, pool, allocation.pipelines, job)
        left_out = tuple(unused.why_unused(fleet, nodes, pool, allocation, goal, job))
        data = {"objective": OBJECTIVES[str(goal)], "considered": len(allocations)}
        cut = why_cut(fleet, groups)
        reasons = [Reason("chosen", data=data), *cut, *_mixed(fleet, estimate), *_character(estimate)]
    else:
        refusals = [reason for reason in allocation.reasons if reason.token != "time-limit"]
        reasons = [*unusable(fleet).values(), *(refusals if nodes else ()), *smallest(fleet, job)]
    plan = _plan(fleet, job, estimate, chosen, goal, groups.sizes)
    reasons += _granted(fleet, job, plan)
    if len(allocations) < len(STRATEGIES) or any(reason.token == "time-limit" for reason in allocation.reasons):
        reasons += stopped
    decision = Decision(
        choice=plan if allocation.pipelines else None,
        alternatives=tuple(_alternatives(pool, allocations, chosen, stopped)),
        reasons=tuple(reasons),
        trust=Trust.ASSUMED if estimate is None else estimate.trust,
        inputs_digest=digest(repr(fleet), job, strategy, str(goal)),
        seed=0,
        elapsed_s=clock() - started,
    )
    return ServingAnswer(decision, plan, allocation, estimate, left_out)


def _value(pool: NodePool, goal: Goal, allocation: Allocation) -> float:
    """Return what an allocation is worth, as the search weighs it; goodput where that is the goal."""
    performance = allocation.performance
    if not allocation.pipelines:
        return -math.inf
    has_goals = pool.service is not None and pool.service.has_goals
    rate = (
        (goodput(pool, allocation.pipelines) or NEXT_TO_NONE) if goal is Goal.GOODPUT else performance.tokens_per_s
    )
    weighing = Weighing.of(Goal.BOTH if goal is Goal.GOODPUT and not has_goals else goal)
    return weighing.value(rate, rate * performance.decode_s)


def _plan(
    fleet: Fleet, job: ServingJob, estimate: Estimate | None, strategy: Strategy, goal: Goal,
    sizes: Mapping[str, int],
) -> ServingPlan:  # fmt: skip
    demand, model = job.demand, job.model
    return ServingPlan(
        apiVersion=API_VERSION,
        kind="ServingPlan",
        name=f"{job.name} on {fleet.name}",
        strategy=strategy,
        goal=goal,
        routing=job.routing,
        pipelines=() if estimate is None else estimate.pipelines,
        fleet=PlannedFleet(name=fleet.name, nodes=tuple(_nodes(fleet, sizes))),
        job=PlannedService(
            name=job.name,
            model=model.model_name,
            num_layers=model.num_layers,
            prompt_tokens=demand.prompt_tokens,
            output_tokens=demand.output_tokens,
            weights=job.weights,
            kv=job.kv,
            memory_headroom=job.memory_headroom,
            num_heads=model.num_attention_heads,
            context_limit=job.context_limit,
            is_whole=model.is_whole,
            kv_heads=model.kv_heads,
            notes=model.notes,
        ),
    )


def _nodes(fleet: Fleet, sizes: Mapping[str, int]) -> Iterator[PlannedNode]:
    for domain in fleet.domains:
        card, size = domain.accelerator, sizes.get(domain.name, domain.devices_per_node)
        for machine in group_ids(domain, size):
            for part, name in enumerate(machine):
                yield PlannedNode(
                    id=name,
                    domain=domain.name,
                    accelerator=card.name,
                    num_devices=size,
                    vendor=card.vendor,
                    first_device=part * size if len(machine) > 1 else None,
                )


def _mixed(fleet: Fleet, estimate: Estimate) -> Iterator[Reason]:
    """Yield that some pipelines join devices of several vendors."""
    vendor = {domain.name: domain.accelerator.vendor for domain in fleet.domains}  # "" is not known: no other one
    mixed = [
        vendors
        for pipeline in estimate.pipelines
        if len(vendors := {vendor[stage.node.rpartition("/")[0]] for stage in pipeline.stages} - {""}) > 1
    ]
    if mixed:
        data = {
            "count": len(mixed),
            "total": len(estimate.pipelines),
            "vendors": " and ".join(sorted(set().union(*mixed))),
        }
        yield Reason("vendor-mix", data=data)


def _granted(fleet: Fleet, job: ServingJob, plan: ServingPlan) -> Iterator[Reason]:
    """Yield what the plan takes for granted: devices that were in use, a longer context than the model's."""
    for name, used in plan.devices().items():
        free = fleet.domain(name).num_free_devices
        if free is not None and free < used:
            yield Reason("devices-in-use", subject=name, data={"used": used, "free": free})
    if 0 < job.model.context_limit < job.demand.kv_tokens:
        yield Reason("beyond-context", data={"limit": job.model.context_limit, "asked": job.demand.kv_tokens})


def _character(estimate: Estimate) -> Iterator[Reason]:
    """Yield what limits the plan, and the goals it misses."""
    if estimate.link_share >= WAITS:
        yield Reason("network-bound", data={"share": estimate.link_share})
    if estimate.tightest is not None:
        slots, need, share = estimate.tightest
        yield Reason("kv-bound", data={"slots": slots, "need": need, "share": share})
    yield from estimate.missed


def _alternatives(
    pool: NodePool, allocations: dict[Strategy, Allocation], chosen: Strategy, stopped: list[Reason]
) -> Iterator[Alternative[ServingPlan]]:
    for name in STRATEGIES:
        if name == chosen:
            continue
        if name not in allocations:
            yield Alternative(name, {}, tuple(stopped))
            continue
        other = allocations[name]
        if not other.pipelines:
            yield Alternative(name, {"num_pipelines": 0}, other.reasons)
            continue
        cost = {
            "num_pipelines": len(other.pipelines),
            "num_nodes": sum(map(len, other.pipelines)),
            "tokens_per_s": other.performance.tokens_per_s,
            "decode_s": other.performance.decode_s,
        }
        yield Alternative(name, cost, tuple(_why_not(pool, other, allocations[chosen])))


def _why_not(pool: NodePool, other: Allocation, best: Allocation) -> Iterator[Reason]:
    """Say in what another allocation is worse; where it is better too, how much."""
    served, most = goodput(pool, other.pipelines) or 0.0, goodput(pool, best.pipelines) or 0.0
    tokens = other.performance.tokens_per_s / best.performance.tokens_per_s
    decode = other.performance.decode_s / best.performance.decode_s
    differs = [abs(ratio - 1) > WORTH_SAYING for ratio in (tokens, decode)]
    if served < most * (1 - WORTH_SAYING) and pool.service is not None and pool.service.has_goals:
        yield Reason("less-goodput", data={"ratio": served / most})
    if differs[0]:
        yield Reason("fewer-tokens", data={"ratio": tokens})
    if differs[1]:
        yield Reason("slower-decode", data={"factor": decode})
    if not any(differs):
        yield Reason("same-plan")
