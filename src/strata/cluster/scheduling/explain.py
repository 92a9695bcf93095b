"""The router's answer with its reasons: of the choice, of every node, and what would help where nothing fits."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from strata import units
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import PodDemand
from strata.cluster.scheduling.eligibility import unlabelled, untolerated
from strata.cluster.scheduling.evaluation import Evaluation, evaluate
from strata.cluster.scheduling.host import PodRequests, show_amount
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.snapshot import NodeState, Placement
from strata.decision import Alternative, Decision, Reason, Trust, digest, worst

_MOST_SHARES: Final = 16
"""Pods of a node among which it is looked for what each may request."""


def explain(
    evaluation: Evaluation, *, most: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> Decision[Placement]:
    """Return a choice with every node's reason; nothing is chosen again, and only relaxations are tried.

    most: of so many nodes, where that is enough; among thousands every node's takes longer than the choice did.

    The choice is None where the gang fits nowhere, and where it would fit on other cards and the job wants to be
    asked (`substitution-wanted`; the offer is the first alternative).
    """
    started = clock()
    index, claim, choice = evaluation.index, evaluation.claim, evaluation.choice
    alternatives: list[Alternative[Placement]] = []
    trusts = [index.nodes[row.node].fingerprint.trust for row in index.rows[:1]]
    if choice.placement is not None and choice.demand is not None:
        reasons = _chosen(choice.placement, choice.demand)
        trusts.append(choice.demand.trust)
    elif choice.offer is not None and choice.demand is not None:
        wanted = why_waiting(evaluation)
        reasons = (wanted, *_chosen(choice.offer, choice.demand))
        cost = {"score": choice.offer.score}
        alternatives.append(Alternative(f"on {choice.offer.model}", cost, (wanted,), choice.offer))
        trusts.append(choice.demand.trust)
    else:
        reasons = (why_waiting(evaluation), *relaxations(evaluation))
    nodes = tuple(islice(verdicts(evaluation), most)) if claim.pods else ()
    others = 0 if not claim.pods else len(index.nodes) - (len(choice.placement.nodes) if choice.placement else 0)
    state = hashlib.sha256(index.kind.tobytes() + index.free_bytes.tobytes() + index.free_share.tobytes())
    names = [[profile.name, profile.image] for profile in evaluation.profiles]
    return Decision(
        choice.placement,
        (*alternatives, *nodes),
        reasons,
        worst(*trusts) if trusts else Trust.MEASURED,
        digest(claim, names, [node.name for node in index.nodes], state.hexdigest()),
        0,
        clock() - started,
        others - len(nodes),
    )


def why_waiting(evaluation: Evaluation) -> Reason:
    """Return why a gang has no place: it waits for consent to another card, fits nowhere, or has no pods."""
    claim, choice = evaluation.claim, evaluation.choice
    if not claim.pods:
        return Reason("no-pods", claim.name)
    if choice.offer is not None and choice.demand is not None:
        wanted = f"{claim.devices or 1}x {claim.accelerator}"
        data = {"offer": f"{choice.demand.devices}x {choice.demand.model}", "wanted": wanted}
        return Reason("substitution-wanted", claim.name, {**data, "profile": choice.demand.profile.name})
    return Reason("gang-fits-nowhere", claim.name, {"pods": claim.pods, "nodes": len(evaluation.index.nodes)})


def _chosen(placement: Placement, demand: PodDemand) -> tuple[Reason, ...]:
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


def verdicts(evaluation: Evaluation) -> Iterator[Alternative[Placement]]:
    """Yield every node that was not chosen, and why."""
    index, claim, choice = evaluation.index, evaluation.claim, evaluation.choice
    chosen = {pod.node for pod in choice.placement.pods} if choice.placement else set()
    offered = {pod.node for pod in choice.offer.pods} if choice.offer else set()
    best = placed.score if (placed := choice.placement or choice.offer) else 0.0
    refused = {refusal.model: refusal.reason for refusal in choice.refusals}
    room: dict[int, int] = {}
    has_devices: dict[int, bool] = {}
    single: dict[int, float] = {}
    demand_of = {demand.model: demand for demand in choice.demands}
    for demand in choice.demands:
        fit = evaluation.fit(demand)
        pods = np.where(fit.is_open, fit.pods, 0).tolist()
        room.update(zip(fit.rows.tolist(), pods, strict=True))
        has_devices.update(zip(fit.rows.tolist(), (fit.devices > 0).tolist(), strict=True))
        single.update(zip(fit.rows.tolist(), fit.score.tolist(), strict=True))
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
                reasons += _full(index, row, claim, demand_of[model], has_devices=has_devices[row])
            elif node.name in offered and choice.offer and model == choice.offer.model:
                reasons.append(replace(why_waiting(evaluation), subject=node.name))
            elif placed is None or (room[row] < claim.pods and (choice.offer or single[row] > best)):
                data = {"room": room[row], "pods": claim.pods, "level": claim.group_level or "any"}
                reasons.append(Reason("room-for-fewer", node.name, data))
            else:
                cost["score"] = max(single[row], cost.get("score", 0.0))
                beside = {"score": single[row], "best": best, "objective": "placement"}
                reasons.append(Reason("scores-lower", node.name, beside))
        yield Alternative(node.name, cost, tuple(reasons))


def _full(index: Index, row: int, claim: Claim, demand: PodDemand, *, has_devices: bool) -> Iterator[Reason]:
    """Yield why not even one pod fits on a row."""
    node = index.nodes[index.rows[row].node]
    if node.is_silent:
        yield Reason("agent-silent", node.name, {})
        return
    if not node.is_schedulable:
        yield Reason("node-closed", node.name, {})
        return
    if taint := untolerated(node.taints, (*demand.profile.tolerations, *claim.where.tolerations)):
        yield Reason("node-tainted", node.name, {"taint": taint})
        return
    if label := unlabelled(node, demand.profile, claim):
        yield Reason("node-unlabelled", node.name, {"label": label})
        return
    if not has_devices:
        yield _without_devices(index, row, demand)
    for reason in _shortages(node, demand.requests):
        if has_devices or reason.data["resource"] != demand.profile.resource:
            yield reason


def _shortages(node: NodeState, requests: PodRequests) -> Iterator[Reason]:
    """Yield what a node has too little of for one pod, in all or now."""
    for name, amount in requests.amounts.items() if node.allocatable is not None else ():
        total = (node.allocatable or {}).get(name, 0)
        free = max(0, total - node.requested.amounts.get(name, 0))
        if amount > free:
            need, left, whole = (show_amount(name, value) for value in (amount, free, total))
            data = {"resource": name, "need": need, "free": left, "total": whole}
            yield Reason("request-exceeds-node" if amount > total else "node-resources-busy", node.name, data)
    for port in sorted(requests.ports & node.requested.ports):
        data = {"resource": f"host port {port}", "need": "1", "free": "0", "total": "1"}
        yield Reason("node-resources-busy", node.name, data)


def _without_devices(index: Index, row: int, demand: PodDemand) -> Reason:
    node = index.nodes[index.rows[row].node]
    kind = index.kinds.kinds[index.kind[row]]
    total = len(index.rows[row].devices)
    unwell = total - kind.usable.bit_count()
    if demand.devices > total:
        return Reason(
            "request-exceeds-node", node.name, {"resource": demand.model, "need": demand.devices, "total": total}
        )
    free = kind.free.bit_count()
    data = {"free": free, "total": total, "need": demand.devices}
    withheld = _well_withheld(index, row)
    if withheld and free + withheld >= demand.devices:
        return Reason("devices-withheld", node.name, {**data, "withheld": withheld})
    if demand.memory_bytes is not None:
        there = index.free_share[row] >= 0
        data = {
            "need": units.show_bytes(demand.memory_bytes),
            "share": demand.cores_share or 0.0,
            "most": units.show_bytes(float(index.free_bytes[row][there].max()) if there.any() else 0.0),
            "most_share": float(index.free_share[row][there].max()) if there.any() else 0.0,
        }
        return Reason("fraction-busy", node.name, data)
    if total - unwell < demand.devices or free + _idle_unwell(index, row) >= demand.devices:
        return Reason("devices-unhealthy", node.name, {**data, "unwell": unwell, "limit": index.min_health})
    return Reason("devices-busy", node.name, data)


def _idle_unwell(index: Index, row: int) -> int:
    """Return how many devices of a row nobody holds that are not well."""
    node, usable = index.nodes[index.rows[row].node], index.kinds.kinds[index.kind[row]].usable
    idle = {place for place, share in enumerate(node.free_share) if share >= 1.0} | node.withheld
    return sum(not usable >> bit & 1 and place in idle for bit, place in enumerate(index.rows[row].devices))


def _well_withheld(index: Index, row: int) -> int:
    """Return how many well devices of a row nobody holds and the node's device plugin does not offer."""
    withheld, usable = index.nodes[index.rows[row].node].withheld, index.kinds.kinds[index.kind[row]].usable
    return sum(usable >> bit & 1 and place in withheld for bit, place in enumerate(index.rows[row].devices))


def relaxations(evaluation: Evaluation) -> tuple[Reason, ...]:
    """Return what would help a gang that fits nowhere, the smallest change of the job first."""
    index, claim, profiles, choice = evaluation.index, evaluation.claim, evaluation.profiles, evaluation.choice
    if not claim.pods:
        return ()
    reasons: list[Reason] = []

    def try_(changed: Claim, what: str, value: str, *, on: Index = index) -> None:
        other = evaluate(on, changed, profiles).choice
        if other.placement is not None:
            nodes = len({pod.node for pod in other.placement.pods})
            data = {"what": what, "value": value, "model": other.placement.model, "nodes": nodes}
            reasons.append(Reason("fits-if", claim.name, data))

    if claim.group_level:
        try_(replace(claim, group_level=""), "within", "any")
    if claim.accelerator and claim.substitution == "never":
        try_(replace(claim, substitution="allow"), "substitution", "allow")
    if claim.requests.amounts:
        reasons += _smaller_requests(evaluation)
    if not index.is_open.all() or any(index.taint_sets):
        is_open, none = np.ones_like(index.is_open), np.zeros_like(index.taint_set)
        opened = replace(index, is_open=is_open, taint_set=none, taint_sets=((),))
        try_(claim, "every closed or tainted node", "open to it", on=opened)
    if claim.pods > 1:
        low, high = 0, claim.pods
        while high - low > 1:
            middle = (low + high) // 2
            fits = evaluate(index, replace(claim, pods=middle), profiles).choice
            low, high = (middle, high) if fits.placement or fits.offer else (low, middle)
        if low:
            reasons.append(Reason("fits-fewer-pods", claim.name, {"pods": low, "asked": claim.pods}))
    if not reasons and choice.demands:
        portless = replace(claim, requests=PodRequests(claim.requests.amounts))
        alone = evaluate(index.emptied(), portless, profiles).choice
        if place := alone.placement or alone.offer:
            data = {"count": place.devices_per_pod * claim.pods, "model": place.model, "pods": claim.pods}
            reasons.append(Reason("needs-free-devices", claim.name, data))
        else:
            reasons.append(Reason("cluster-too-small", claim.name, {"nodes": len(index.nodes)}))
    return tuple(reasons)


def _smaller_requests(evaluation: Evaluation) -> Iterator[Reason]:
    """Yield how much of one resource a pod might request to fit; of all together, where no single one helps."""
    index, claim, profiles = evaluation.index, evaluation.claim, evaluation.profiles
    amounts = claim.requests.amounts

    def placed(requests: PodRequests) -> Placement | None:
        return evaluate(index, replace(claim, requests=requests), profiles).choice.placement

    def with_(name: str, amount: int) -> Placement | None:
        return placed(PodRequests({**amounts, name: amount}, claim.requests.ports))

    def fits_if(placement: Placement, what: str, value: str) -> Reason:
        data = {"what": what, "value": value, "model": placement.model, "nodes": len(placement.nodes)}
        return Reason("fits-if", claim.name, data)

    least = {name: amount if name == "pods" else 0 for name, amount in amounts.items()}
    if (without := placed(PodRequests(least))) is None:
        return
    is_explained = False
    for name, amount in amounts.items():
        if name == "pods" or not amount or with_(name, 0) is None:
            continue
        left = index.unrequested[index.resources.get(name, -1)]
        # The most a pod may have is what some node has left, for some number of pods.
        shares = np.unique(np.concatenate([left // pods for pods in range(1, min(claim.pods, _MOST_SHARES) + 1)]))
        values = [0, *shares[(shares > 0) & (shares < amount)].tolist()]
        most = values[bisect_left(values, True, lo=1, key=lambda value: with_(name, value) is None) - 1]
        placement = with_(name, most)
        assert placement is not None, "it was looked for"
        yield fits_if(
            placement,
            f"a pod's request of {show_amount(name, amount)} {name}",
            f"at most {show_amount(name, most)}",
        )
        is_explained = True
    if claim.requests.ports and (placement := placed(PodRequests(amounts))) is not None:
        yield fits_if(placement, f"host port {', '.join(sorted(claim.requests.ports))}", "not asked for")
    elif not is_explained:
        some = ((name, amount) for name, amount in amounts.items() if amount and name != "pods")
        if whole := ", ".join(f"{show_amount(name, amount)} {name}" for name, amount in some):
            yield fits_if(without, f"what a pod requests ({whole})", "less")
