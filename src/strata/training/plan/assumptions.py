"""Which inputs of a plan nobody measured, and what measuring each would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from strata.decision import Trust, worst
from strata.fleet.accelerator import Accelerator
from strata.fleet.fleet import NETWORK_BANDWIDTH
from strata.simulate.traffic import links_used
from strata.training.plan.exact.problem import Problem
from strata.units import show_bandwidth
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class Assumption:
    """An input that is not measured: what was taken for it, how far to trust that, and how to measure it."""

    input: str
    value: str
    trust: Trust
    measure: str

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {**asdict(self), "trust": str(self.trust)}


def assumptions(problem: Problem, plan: TrainingPlan) -> tuple[Assumption, ...]:
    """Return the inputs of a plan that are not measured, in the order of what measuring them usually changes."""
    times, places = _layer_times(problem, plan), (*_domains(problem, plan), *_links(problem, plan))
    return (*times, *places, *_tokens(plan))


def _layer_times(problem: Problem, plan: TrainingPlan) -> Iterator[Assumption]:
    cards: dict[Accelerator, Trust] = {}
    for stage in {(s.domain, s.tensor_parallel): s for p in plan.pipelines for s in p.stages}.values():
        domain = problem.fleet.domain(stage.domain)
        layers = problem.model.layers(domain, stage.tensor_parallel, plan.microbatch_size, plan.recompute)
        if layers is not None:
            card = domain.accelerator
            cards[card] = worst(layers.trust, cards.get(card, Trust.MEASURED))
    spec = problem.job.spec
    how = f"strata profile {problem.job.model_name or 'MODEL'}"
    if spec is not None and not spec.can_be_profiled:
        how = "strata calibrate LOG"
    for card, trust in cards.items():
        if trust is not Trust.MEASURED:
            is_emulated = problem.job.precision == "bf16" and not card.has_bf16
            value = "from FLOPs of fp16: it has no units for bf16" if is_emulated else "from FLOPs"
            yield Assumption(f"layer times on {card.name}", value, trust, how)


def _domains(problem: Problem, plan: TrainingPlan) -> Iterator[Assumption]:
    alike: dict[float, list[str]] = {}
    for name, used in plan.devices().items():
        domain = problem.fleet.domain(name)
        if (free := domain.num_free_devices) is not None and free < used:
            value = f"{used}, of which {free} were free when it was discovered"
            yield Assumption(f"free devices of {name}", value, Trust.ASSUMED, "strata fleet discover")
        if NETWORK_BANDWIDTH in domain.assumed:
            alike.setdefault(domain.network_bandwidth_bytes_per_s, []).append(name)
    for bandwidth, names in alike.items():
        value, how = f"{show_bandwidth(bandwidth)} a node", "nccl-tests between two nodes"
        yield Assumption(f"network inside {', '.join(names)}", value, Trust.ASSUMED, how)


def _links(problem: Problem, plan: TrainingPlan) -> Iterator[Assumption]:
    used = [link for pipeline in plan.pipelines for link in links_used(problem.fleet, pipeline)]
    if len(plan.pipelines) > 1:
        used += [link for pair, link in problem.fleet.links.items() if {*pair} <= {*plan.domains}]
    guessed = [link for link in dict.fromkeys(used) if link.trust is not Trust.MEASURED]
    if guessed:
        trust = worst(*(link.trust for link in guessed))
        count = f"{len(guessed)} links" if len(guessed) > 1 else "a link"
        names = ", ".join(dict.fromkeys(link.source for link in guessed))
        yield Assumption(f"{count} between {names}", "as given", trust, "iperf3 and ping")


def _tokens(plan: TrainingPlan) -> Iterator[Assumption]:
    if plan.local_steps > 1:
        how = "the loss of a trial run both ways"
        yield Assumption("extra tokens of DiLoCo", f"of H={plan.local_steps}, from papers", Trust.ASSUMED, how)
