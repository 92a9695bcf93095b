"""The router's answer with its reasons: of the choice, of every node, and what would help where nothing fits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from strata import units
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import Demand
from strata.cluster.scheduling.fraction import fraction_values
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.router import Choice, choose, open_rows, unlabelled, untolerated
from strata.cluster.scheduling.scoring import W_FIT, W_NEAR, values
from strata.cluster.scheduling.snapshot import Cluster, Placement
from strata.decision import Alternative, Decision, Reason, Trust, digest, worst


def route(
    cluster: Cluster,
    claim: Claim,
    profiles: Sequence[RuntimeProfile],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Decision[Placement]:
    """Return where a gang goes on a snapshot, and every node's reason.

    The choice is None where the gang fits nowhere, and where it would fit on other cards and the job wants to be
    asked (`substitution-wanted`; the offer is the first alternative).
    """
    return decide(Index.of(cluster), claim, profiles, clock=clock)


def decide(
    index: Index,
    claim: Claim,
    profiles: Sequence[RuntimeProfile],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Decision[Placement]:
    """Return `route`'s answer on an index."""
    started = clock()
    choice = choose(index, claim, profiles)
    alternatives: list[Alternative[Placement]] = []
    trusts = [index.nodes[row.node].fingerprint.trust for row in index.rows[:1]]
    if choice.placement is not None and choice.demand is not None:
        reasons = _chosen(choice.placement, choice.demand)
        trusts.append(choice.demand.trust)
    elif choice.offer is not None and choice.demand is not None:
        wanted = _wanted(claim, choice.demand)
        reasons = (wanted, *_chosen(choice.offer, choice.demand))
        cost = {"score": choice.offer.score}
        alternatives.append(Alternative(f"on {choice.offer.model}", cost, (wanted,), choice.offer))
        trusts.append(choice.demand.trust)
    else:
        nowhere = Reason("gang-fits-nowhere", claim.name, {"pods": claim.pods, "nodes": len(index.nodes)})
        reasons = (nowhere, *relaxations(index, claim, profiles, choice))
    alternatives += verdicts(index, claim, choice)
    state = hashlib.sha256(index.kind.tobytes() + index.free_bytes.tobytes() + index.free_share.tobytes())
    names = [[profile.name, profile.image] for profile in profiles]
    return Decision(
        choice.placement,
        tuple(alternatives),
        reasons,
        worst(*trusts) if trusts else Trust.MEASURED,
        digest(claim, names, [node.name for node in index.nodes], state.hexdigest()),
        0,
        clock() - started,
    )


def _chosen(placement: Placement, demand: Demand) -> tuple[Reason, ...]:
    data = {
        "pods": len(placement.pods),
        "devices": placement.devices_per_pod,
        "model": placement.model,
        "nodes": len({pod.node for pod in placement.pods}),
        "level": placement.level,
        "score": placement.score,
    }
    reasons = [Reason("gang-placed", demand.profile.name, data), *demand.reasons]
    if not placement.can_p2p and placement.devices_per_pod * len(placement.pods) > 1:
        reasons.append(Reason("no-peer-access", placement.model, {}))
    return tuple(reasons)


def _wanted(claim: Claim, demand: Demand) -> Reason:
    wanted = f"{claim.devices or 1}x {claim.accelerator}"
    data = {"offer": f"{demand.devices}x {demand.model}", "wanted": wanted, "profile": demand.profile.name}
    return Reason("substitution-wanted", claim.name, data)


def verdicts(index: Index, claim: Claim, choice: Choice) -> Iterator[Alternative[Placement]]:
    """Yield every node that was not chosen, and why."""
    chosen = {pod.node for pod in choice.placement.pods} if choice.placement else set()
    best = choice.placement.score if choice.placement else 0.0
    refused = {refusal.model: refusal.reason for refusal in choice.refusals}
    room: dict[int, int] = {}
    single: dict[int, float] = {}
    demand_of = {demand.model: demand for demand in choice.demands}
    for demand in choice.demands:
        rows = index.rows_of_model[demand.model]
        if demand.memory_bytes is None:
            value = values(index, demand.devices)[index.kind[rows]]
            many = np.isfinite(value[:, 1:]).sum(axis=1)
            one = value[:, 1] if value.shape[1] > 1 else np.full(len(rows), -np.inf)
        else:
            each = fraction_values(
                index, rows, memory_bytes=demand.memory_bytes, cores_share=demand.cores_share or 0.0
            )
            many, one = np.isfinite(each).sum(axis=1), each.max(axis=1)
        is_open = open_rows(index, rows, demand.profile, claim)
        for row, pods, worth, may in zip(rows.tolist(), many.tolist(), one.tolist(), is_open, strict=True):
            room[row] = pods if may else 0
            single[row] = W_NEAR + worth + W_FIT * demand.fit
    for number, node in enumerate(index.nodes):
        if node.name in chosen:
            continue
        rows_here = index.rows_of_node[number]
        if not rows_here:
            yield Alternative(node.name, {}, (Reason("no-devices", node.name, {}),))
            continue
        reasons: list[Reason] = []
        cost: dict[str, float] = {}
        for row in rows_here:
            model = index.rows[row].model
            if model in refused:
                reasons.append(replace(refused[model], subject=node.name))
            elif room[row] == 0:
                reasons.append(_full(index, row, claim, demand_of[model]))
            elif choice.placement is None or (single[row] > best and room[row] < claim.pods):
                data = {"room": room[row], "pods": claim.pods, "level": claim.group_level or "any"}
                reasons.append(Reason("room-for-fewer", node.name, data))
            else:
                cost["score"] = max(single[row], cost.get("score", 0.0))
                beside = {"score": single[row], "best": best, "objective": "placement"}
                reasons.append(Reason("scores-lower", node.name, beside))
        yield Alternative(node.name, cost, tuple(reasons))


def _full(index: Index, row: int, claim: Claim, demand: Demand) -> Reason:
    """Return why not even one pod fits on a row."""
    node = index.nodes[index.rows[row].node]
    if not node.is_schedulable:
        return Reason("node-closed", node.name, {})
    if taint := untolerated(node.taints, (*demand.profile.tolerations, *claim.where.tolerations)):
        return Reason("node-tainted", node.name, {"taint": taint})
    if label := unlabelled(node, demand.profile, claim):
        return Reason("node-unlabelled", node.name, {"label": label})
    kind = index.kinds.kinds[index.kind[row]]
    total = len(index.rows[row].devices)
    unwell = total - kind.usable.bit_count()
    if demand.memory_bytes is not None:
        there = index.free_share[row] >= 0
        data = {
            "need": units.show_bytes(demand.memory_bytes),
            "share": demand.cores_share or 0.0,
            "most": units.show_bytes(float(index.free_bytes[row][there].max()) if there.any() else 0.0),
            "most_share": float(index.free_share[row][there].max()) if there.any() else 0.0,
        }
        return Reason("fraction-busy", node.name, data)
    free = kind.free.bit_count()
    if unwell and free + unwell >= demand.devices:
        data = {"unwell": unwell, "total": total, "limit": index.min_health, "need": demand.devices}
        return Reason("devices-unhealthy", node.name, data)
    return Reason("devices-busy", node.name, {"free": free, "total": total, "need": demand.devices})


def relaxations(
    index: Index, claim: Claim, profiles: Sequence[RuntimeProfile], choice: Choice
) -> tuple[Reason, ...]:
    """Return what would help a gang that fits nowhere, the smallest change of the job first."""
    found: list[Reason] = []

    def try_(changed: Claim, what: str, value: str, *, on: Index = index) -> None:
        other = choose(on, changed, profiles)
        if other.placement is not None:
            nodes = len({pod.node for pod in other.placement.pods})
            data = {"what": what, "value": value, "model": other.placement.model, "nodes": nodes}
            found.append(Reason("fits-if", claim.name, data))

    if claim.group_level:
        try_(replace(claim, group_level=""), "within", "any")
    if claim.accelerator and claim.substitution == "never":
        try_(replace(claim, substitution="allow"), "substitution", "allow")
    closed = ~index.is_open | (index.taint_set != _clean(index))
    if closed.any():
        opened = replace(
            index, is_open=np.ones_like(index.is_open), taint_set=np.full_like(index.taint_set, _clean(index))
        )
        if _clean(index) >= 0:
            try_(claim, "closed and tainted nodes", "used", on=opened)
    if claim.pods > 1:
        low, high = 0, claim.pods
        while high - low > 1:
            middle = (low + high) // 2
            fits = choose(index, replace(claim, pods=middle), profiles)
            low, high = (middle, high) if fits.placement or fits.offer else (low, middle)
        if low:
            found.append(Reason("fits-fewer-pods", claim.name, {"pods": low, "asked": claim.pods}))
    if not found and choice.demands:
        fewest = min(choice.demands, key=lambda demand: (demand.devices, demand.model))
        data = {"count": fewest.devices * claim.pods, "model": fewest.model, "pods": claim.pods}
        found.append(Reason("needs-free-devices", claim.name, data))
    return tuple(found)


def _clean(index: Index) -> int:
    """Return the number of the empty set of taints, -1 where every node has some."""
    return index.taint_sets.index(()) if () in index.taint_sets else -1
