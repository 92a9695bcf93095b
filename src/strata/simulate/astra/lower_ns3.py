"""From a plan to a packet-level network: a switch a domain, a link a rank, a link a pair of domains."""

from __future__ import annotations

from strata.decision import Reason
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.astra.lower import (
    Aggregation,
    Lowered,
    Refused,
    Wire,
    common_notes,
    copy_wires,
    memory_bytes_per_s,
    merge,
    refuse_schedules,
    refuse_unequal,
)
from strata.simulate.astra.ns3 import MAX_MESSAGE_BYTES, Cable, Ns3Network
from strata.simulate.astra.program import message_bytes, traces, workers
from strata.simulate.traffic import card_bytes_per_s
from strata.units import show_bytes
from strata.workload.plan import TrainingPlan


def lower_ns3(
    model: StepModel, plan: TrainingPlan, *, aggregation: Aggregation | None = None, links_vary: bool = False
) -> Lowered[Ns3Network]:
    """Return the traces and the network of a plan.

    Domains may be unequal and every pair has its own link; only the two directions of one link must be alike, and
    the links of one domain's ranks. Raises Refused where they are not and no aggregation is named.
    """
    refuse_schedules(plan, links_vary=links_vary)
    refuse_unequal(plan, copies_may_differ=True)
    unequal = len({pipeline.replicas for pipeline in plan.pipelines}) > 1
    work = workers(model, plan, flat=unequal)
    largest = max(
        [size for w in work for size in (w.next_bytes, *(item.size_bytes for item in w.sums))], default=0
    )
    if largest > MAX_MESSAGE_BYTES:
        raise Refused(Reason("astra-message-too-large", "", {"size": show_bytes(largest)}))
    rank_of = {worker.key: rank for rank, worker in enumerate(work)}
    rank_traces, groups = traces(work, rank_of, num_ranks=len(work), num_dims=1)
    switch = {name: len(work) + index for index, name in enumerate(plan.domains)}
    notes = ["each message costs a round trip: ns-3 waits for the acknowledgement"]
    cables = []
    inner = {}
    for name in plan.domains:
        inner[name], note = merge(f"ranks of {name}", _inner(model, plan, name), aggregation)
        notes += [note] if note else []
    cables += [
        Cable(rank_of[w.key], switch[w.domain], inner[w.domain].bandwidth_bytes_per_s,
              inner[w.domain].latency_s / 2) for w in work
    ]  # fmt: skip
    for i, here in enumerate(plan.domains):
        for there in plan.domains[i + 1 :]:
            both = [model.fleet.link(here, there), model.fleet.link(there, here)]
            wires = [Wire(link.bandwidth_bytes_per_s, link.latency_s) for link in both if link]
            if wires:
                wire, note = merge(f"link {here}-{there}", wires, aggregation)
                notes += [note] if note else []
                cables.append(Cable(switch[here], switch[there], wire.bandwidth_bytes_per_s, wire.latency_s))
    if unequal:
        notes.append("pipelines have unequal copies: one ring over all of them sums the gradients")
    network = Ns3Network(len(switch), tuple(cables), rank_traces, groups, memory_bytes_per_s(model, plan))
    labels = tuple(worker.label for worker in work)
    return Lowered(AstraBackend.NS3, network, labels, (*notes, *common_notes(model, plan)))


def _inner(model: StepModel, plan: TrainingPlan, name: str) -> list[Wire]:
    """Return what the ranks of a domain have towards each other; their network card where they never meet."""
    domain, leaving = model.fleet.domain(name), []
    for p, pipeline in enumerate(plan.pipelines):
        times = model.times(plan, pipeline)
        sizes = message_bytes(model, plan, pipeline)
        for s, (size, hop) in enumerate(zip(sizes, times.there, strict=True)):
            if not hop.wan_bytes and pipeline.stages[s].domain == name:
                leaving.append(Wire(size / hop.serial_s, hop.latency_s))
        if pipeline.replicas > 1:
            wires = copy_wires(model, plan, p)
            leaving += [wire for stage, wire in zip(pipeline.stages, wires, strict=True) if stage.domain == name]
    if leaving:
        return leaving
    ranks = max(s.tensor_parallel for item in plan.pipelines for s in item.stages if s.domain == name)
    return [Wire(card_bytes_per_s(domain, ranks), domain.network_latency_s)]
