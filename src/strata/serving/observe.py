"""Snapshots for planners and routers: nodes of a fleet, the pool they make, and the layout of some pipelines.

Times come from one cost model: the roofline of `simulate/inference`, corrected by what nodes were measured to
take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Reason
from strata.fleet.fleet import Domain, Fleet
from strata.serving.expected import curve_of, expected_terms, step_curves
from strata.serving.layout import FAR, HopTable, Layout, Line, StageServer, decode_steps
from strata.serving.node import Node
from strata.serving.planning.allocation import Pipeline, Stage
from strata.serving.planning.pool import KvRoom, LayerCapacity, NodePool, PoolNode
from strata.serving.planning.service import SPARE, ServiceGoals
from strata.simulate.inference.calibration import Calibration, Phase
from strata.simulate.inference.memory import kv_tokens, room
from strata.simulate.inference.roofline import Terms, parts_of
from strata.simulate.kernel_rates import InferenceShares
from strata.simulate.memory import FIXED_BYTES
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand, Derating, ServingRatios

ASSUMED_BANDWIDTH_BYTES_PER_S: Final = 1e9 / 8
"""Of a hop nobody has measured: 1 Gbit/s."""
_USUAL: Final = Derating()


def group_ids(domain: Domain, size: int) -> list[list[str]]:
    """Return the ids of the tensor-parallel groups of each node: `domain/0`, where it is cut `domain/0.0` on."""
    parts = domain.devices_per_node // size
    return [
        [f"{domain.name}/{i}"] if parts == 1 else [f"{domain.name}/{i}.{part}" for part in range(parts)]
        for i in range(domain.num_nodes)
    ]


def nodes_of(fleet: Fleet, *, groups: Mapping[str, int] | None = None) -> tuple[Node, ...]:
    """Return the nodes of a fleet, `domain/0` and on; all devices of one work as one tensor-parallel node.

    groups: devices that work as one in the domains whose nodes are cut; each group is then a node of its own,
    which shares its machine's network with the others and reaches them as devices reach each other. Domains that
    cannot serve are left out (`unusable`). Hops are the domain's own network inside it, the link across; a message
    also passes both ends' network. Domains without a link between them are out of reach.
    """
    usable = [domain for domain in fleet.domains if _fault(domain) is None]
    sizes = {domain.name: (groups or {}).get(domain.name, domain.devices_per_node) for domain in usable}
    ids = {domain.name: group_ids(domain, sizes[domain.name]) for domain in usable}
    shared = [
        replace(
            domain,
            network_bandwidth_bytes_per_s=domain.network_bandwidth_bytes_per_s
            * (sizes[domain.name] / domain.devices_per_node),
        )
        for domain in usable
    ]
    nodes = []
    for domain in shared:
        card, devices = domain.accelerator, sizes[domain.name]
        # One mapping for all nodes of a domain: what they see of the others is the same.
        hops = {dest.name: _hop(fleet, domain, dest) for dest in shared}
        latency_s = {name: hops[dest][0] for dest, machines in ids.items() for name in chain(*machines)}
        bandwidth = {name: hops[dest][1] for dest, machines in ids.items() for name in chain(*machines)}
        inside = domain.intra_latency_s, domain.intra_bandwidth_bytes_per_s
        nodes += [
            Node(
                name,
                devices * (card.fp16_flops or 0.0),
                memory_bytes=devices * card.memory_bytes,
                fixed_bytes=devices * FIXED_BYTES,
                fp8_capability=devices * (card.fp8_flops or 0.0),
                memory_bandwidth_bytes_per_s=devices * (card.memory_bandwidth_bytes_per_s or 0.0),
                region=domain.region or domain.name,
                hop_s=latencies,
                trust=card.trust,
                bandwidth_bytes_per_s=bandwidths,
                num_devices=devices,
                intra_bandwidth_bytes_per_s=domain.intra_bandwidth_bytes_per_s,
                intra_latency_s=domain.intra_latency_s,
                shares=InferenceShares.of(card),
                accelerator=card.name,
            )
            for machine in ids[domain.name]
            for latencies, bandwidths in [
                (latency_s, bandwidth)
                if len(machine) == 1
                else (latency_s | dict.fromkeys(machine, inside[0]), bandwidth | dict.fromkeys(machine, inside[1]))
            ]
            for name in machine
        ]
    return tuple(nodes)


def unusable(fleet: Fleet) -> dict[str, Reason]:
    """Return the domains that cannot serve, and why: what is not known is not made up."""
    return {domain.name: fault for domain in fleet.domains if (fault := _fault(domain))}


def pool_of(
    nodes: Sequence[Node],
    model: ModelInfo,
    demand: Demand,
    *,
    calibration: Calibration | None = None,
    derating: Derating = _USUAL,
    held: Mapping[str, tuple[int, int]] | None = None,
) -> NodePool:
    """Return the pool for layer allocation: times of one decode step of the demanded batch at its mean context.

    A node holds so many layers that the KV memory of the whole batch, each sequence at its end, fits beside
    them. Whole backends (`Node.model`), and nodes where the model's layers stay together (`ModelInfo.is_whole`),
    hold all layers or none; a node whose memory or rates are not known, none.
    Prompts and goals are in `service`. held: layers that nodes have ready, which decides between equal plans.
    """
    steps, fixed, prompts = _times(nodes, model, demand, derating, calibration)
    usable = np.array([node.usable_bytes(derating.memory_headroom) for node in nodes], dtype=float)
    most = room(model, usable, batch=demand.batch, tokens=demand.kv_tokens)
    rooms = np.stack(most, axis=1)
    pool_nodes = [
        PoolNode(node.node_id, tuple(prefix), head_s, _capacity(node, layers, model))
        for node, prefix, head_s, layers in zip(
            nodes, _prefixes(steps).tolist(), steps[:, -1].tolist(), rooms.tolist(), strict=True
        )
    ]
    service = ServiceGoals(
        tuple(map(tuple, _prefixes(prompts).tolist())),
        _hops(nodes, demand.prompt_tokens * model.hidden_bytes),
        tuple(map(tuple, _prefixes(fixed).tolist())),
        demand.batch / max(demand.output_tokens, 1),
        demand.ttft_goal_s,
        demand.tpot_goal_s,
        SPARE * demand.rate_per_s * demand.output_tokens or np.inf,
    )
    hops = _hops(nodes, demand.batch * model.hidden_bytes)
    kv = KvRoom(
        tuple(float("inf") if node.model else float(free) for node, free in zip(nodes, usable, strict=True)),
        tuple(np.asarray(model.weight_bytes_before, dtype=float).tolist()),
        (0.0, *np.cumsum(model.kv_bytes(demand.kv_tokens)).tolist()),
        model.embedding_bytes,
        model.head_bytes,
        model.tied_bytes,
        derating.sequences,
    )
    return NodePool.of(pool_nodes, model.num_layers, demand.batch, hops, service=service, held=held, kv=kv)


def work_s(
    nodes: Sequence[Node], model: ModelInfo, demand: Demand, *, calibration: Calibration | None = None
) -> Floats:
    """Return how long the whole model would keep each node in a decode step of the demanded batch [N]: what was
    measured, else what is expected, the prompts that a step carries included.
    """
    steps, _, prompts = _times(nodes, model, demand, _USUAL, calibration)
    work: Floats = steps.sum(axis=1) + demand.batch / max(demand.output_tokens, 1) * prompts.sum(axis=1)
    return work


def layout_of(
    nodes: Sequence[Node],
    pipelines: Sequence[Pipeline],
    model: ModelInfo,
    demand: Demand,
    *,
    calibration: Calibration | None = None,
    derating: Derating = _USUAL,
    has_curves: bool = False,
) -> Layout:
    """Return what routers decide on: a server for each stage, and the hops between the nodes.

    Decode lines are exact for one sequence and for the demanded batch, at its mean context; prefill lines for one
    token and for the demanded prompt. A whole backend (`Node.model`) is a pipeline of its own, listed or not; what
    it says of its own slots and KV memory is believed. has_curves: whether servers know steps of any number of
    sequences and cached tokens, which measurements of single nodes do not correct.
    """
    by_id = {node.node_id: node for node in nodes}
    listed = {stage.node_id for stages in pipelines for stage in stages}
    alone = [node.node_id for node in nodes if node.model and node.node_id not in listed]
    everything = (*pipelines, *((Stage(node_id, 0, model.num_layers),) for node_id in alone))
    stages = list(dict.fromkeys(stage for pipeline in everything for stage in pipeline))
    used = [by_id[stage.node_id] for stage in stages]
    decode, prefill = expected_terms(used, model, demand, derating)
    steps_s = step_curves(used, model, derating) if has_curves else None
    servers = []
    for i, (node, stage) in enumerate(zip(used, stages, strict=True)):
        steps, prompts = _row(decode, i), _row(prefill, i)
        if calibration is not None:
            steps = calibration.fit(node.node_id, "decode", steps).terms
            prompts = calibration.fit(node.node_id, "prefill", prompts).terms
        tokens = kv_tokens(
            model,
            node.usable_bytes(derating.memory_headroom),
            stage.first,
            stage.end,
            request_tokens=max(demand.kv_tokens, 1),
        )
        if node.model:
            tokens = node.kv_tokens or tokens or (node.slots or demand.batch) * demand.kv_tokens
        slots = min(derating.sequences, tokens // max(demand.kv_tokens, 1))
        servers.append(
            StageServer(
                *stage,
                decode=_line(steps, stage, model.num_layers, demand.context),
                prefill=_line(prompts, stage, model.num_layers, 0.0),
                slots=(node.slots or slots) if node.model else slots,
                kv_tokens=tokens,
                curve=None if steps_s is None else curve_of(steps_s[:, i], steps, stage, model.num_layers),
                request_s=derating.ratios.get(node.accelerator, ServingRatios()).request_s,
                step_sequences=node.step_sequences,
            )
        )
    far = Line(FAR.fixed_s, model.hidden_bytes / ASSUMED_BANDWIDTH_BYTES_PER_S)
    return Layout(model.num_layers, tuple(servers), everything, _Hops(nodes, model.hidden_bytes), far)


def _fault(domain: Domain) -> Reason | None:
    card = domain.accelerator
    if domain.num_nodes < 1:
        return Reason("no-accelerators", subject=domain.name, data={"domain": domain.name})
    figures = {
        "FP16 rate": card.fp16_flops,
        "memory bandwidth": card.memory_bandwidth_bytes_per_s,
        "memory": card.memory_bytes,
    }
    missing = [name for name, value in figures.items() if not value]
    if missing:
        data = {"figure": " and ".join(missing), "accelerator": card.name}
        return Reason("figure-missing", subject=domain.name, data=data)
    return None


def _hop(fleet: Fleet, source: Domain, dest: Domain) -> tuple[float, float]:
    """Return the one-way latency and the bandwidth of one message between nodes of two domains."""
    bandwidth = [d.network_bandwidth_bytes_per_s for d in (source, dest) if d.network_bandwidth_bytes_per_s > 0]
    if source is dest:
        return source.network_latency_s, min(bandwidth, default=ASSUMED_BANDWIDTH_BYTES_PER_S)
    link = fleet.link(source.name, dest.name)
    if link is None:
        return np.inf, ASSUMED_BANDWIDTH_BYTES_PER_S
    return link.latency_s, min([*bandwidth, link.bandwidth_bytes_per_s])


def _row(terms: Terms, i: int) -> Terms:
    """Return the terms of one node."""
    return Terms(terms.fixed_s[i], terms.per_unit_s[i], terms.per_unit_context_s[i], terms.units, terms.context)


def _times(
    nodes: Sequence[Node], model: ModelInfo, demand: Demand, derating: Derating, calibration: Calibration | None
) -> tuple[Floats, Floats, Floats]:
    """Return seconds [N, parts] of decode steps of the demanded batch, what of them any number of sequences takes,
    and of one prompt.
    """
    decode, prefill = expected_terms(nodes, model, demand, derating)
    decode, prefill = (
        _fitted(nodes, decode, "decode", calibration),
        _fitted(nodes, prefill, "prefill", calibration),
    )
    # What a step takes whatever it holds, as often as a node takes steps for so many.
    more_steps = np.array([decode_steps(demand.batch, node.step_sequences) - 1 for node in nodes])
    again = more_steps[:, np.newaxis] * decode.fixed_s
    steps = decode.at(decode.units, decode.context) + again
    return steps, decode.fixed_s + again, prefill.at(prefill.units, 0.0)


def _fitted(nodes: Sequence[Node], terms: Terms, phase: Phase, calibration: Calibration | None) -> Terms:
    """Return the terms [N, parts] of what was measured of a node, else of what is expected."""
    if calibration is None:
        return terms
    fitted = terms._replace(**{name: getattr(terms, name).copy() for name in terms._fields[:3]})
    for i, node in enumerate(nodes):
        fit = calibration.fit(node.node_id, phase, _row(terms, i))
        if fit.count:
            for all_s, one_s in zip(fitted[:3], fit.terms[:3], strict=True):
                all_s[i] = one_s
    return fitted


def _prefixes(parts: Floats) -> Floats:
    """Return prefix sums over layers, the head left out [N, L + 1]."""
    before = np.zeros_like(parts)
    np.cumsum(parts[:, :-1], axis=1, out=before[:, 1:])
    return before


def _line(terms: Terms, stage: Stage, num_layers: int, context: float) -> Line:
    parts = parts_of(num_layers, stage.first, stage.end)
    per_unit_s = terms.per_unit_s[parts].sum() + terms.per_unit_context_s[parts].sum() * context
    return Line(float(terms.fixed_s[parts].sum()), float(per_unit_s))


def _capacity(node: Node, rooms: list[int], model: ModelInfo) -> LayerCapacity:
    if node.model:
        return LayerCapacity(0, 0, 0, model.num_layers)
    if node.compute_capability <= 0 or node.memory_bandwidth_bytes_per_s <= 0:
        return LayerCapacity(0, 0, 0, 0)
    if model.is_whole:
        return LayerCapacity(0, 0, 0, model.num_layers if rooms[-1] == model.num_layers else 0)
    return LayerCapacity(*rooms)


def _links(nodes: Sequence[Node]) -> tuple[Floats, Floats]:
    """Return latencies [N, N], nan where neither end knows any, and bandwidths [N, N]."""
    latency = _figures(nodes, [node.hop_s for node in nodes])
    bandwidth = _figures(nodes, [node.bandwidth_bytes_per_s for node in nodes])
    bandwidth[np.isnan(bandwidth)] = ASSUMED_BANDWIDTH_BYTES_PER_S
    return np.where(np.isnan(latency), latency.T, latency), bandwidth


def _hops(nodes: Sequence[Node], message_bytes: float) -> Floats:
    """Return [N, N] seconds of one message. What was measured one way only is taken for the way back."""
    latency, bandwidth = _links(nodes)
    latency[np.isnan(latency)] = FAR.fixed_s
    hops: Floats = latency + message_bytes / bandwidth
    np.fill_diagonal(hops, 0.0)
    return hops


def _figures(nodes: Sequence[Node], figures: Sequence[Mapping[str, float]]) -> Floats:
    """Return what nodes say of each other [N, N], nan where they do not; like nodes often share one mapping."""
    names = [node.node_id for node in nodes]
    matrix, rows = np.full((len(nodes), len(nodes)), np.nan), dict[int, int]()
    for i, figure in enumerate(figures):
        same = rows.setdefault(id(figure), i)
        if same < i:
            matrix[i] = matrix[same]
        elif figure:
            matrix[i] = np.fromiter(map(figure.get, names, repeat(np.nan)), dtype=float, count=len(names))
    return matrix


class _Hops(HopTable):
    """The hops between all nodes, over tokens passed on, each worked out when asked for: N nodes have N^2."""

    def __init__(self, nodes: Sequence[Node], token_bytes: float) -> None:
        self._nodes, self._token_bytes = nodes, token_bytes
        self._index = {node.node_id: i for i, node in enumerate(nodes)}
        self._table: Floats | None = None

    def lines(self, sources: Sequence[str], dests: Sequence[str]) -> Floats:
        """Return fixed and per-unit seconds of all pairs [2, S, D]; nan for those that are not there."""
        if self._table is None:
            latency, bandwidth = _links(self._nodes)
            per_token = np.where(np.isnan(latency), np.nan, self._token_bytes / bandwidth)
            self._table = np.stack((latency, per_token))
        rows, columns = ([self._index[name] for name in names] for names in (sources, dests))
        hops: Floats = self._table[:, np.array(rows, dtype=int)[:, None], np.array(columns, dtype=int)[None, :]]
        return hops

    def get(self, pair: tuple[str, str], default: Line) -> Line:
        """Return the hop of a directed pair."""
        # A node that is leaving is known by what the others measured.
        source, dest = (self._nodes[i] if (i := self._index.get(name)) is not None else None for name in pair)
        latency_s = source.hop_s.get(pair[1]) if source else None
        if latency_s is None:
            latency_s = dest.hop_s.get(pair[0]) if dest else None
        if latency_s is None:
            return default
        of_source = source.bandwidth_bytes_per_s if source else {}
        bandwidth = of_source.get(pair[1], ASSUMED_BANDWIDTH_BYTES_PER_S)
        return Line(latency_s, self._token_bytes / bandwidth)
