"""The router's answer with its reasons: of the choice, of every node, and what would help where nothing fits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from strata import units
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import PodDemand
from strata.cluster.scheduling.eligibility import unlabelled, untolerated
from strata.cluster.scheduling.evaluation import Evaluation, evaluate
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Alternative, Decision, Reason, Trust, digest, worst


def explain(evaluation: Evaluation, *, clock: Callable[[], float] = time.perf_counter) -> Decision[Placement]:
    """Return a choice with every node's reason; nothing is chosen again, and only relaxations are tried.

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
    alternatives += verdicts(evaluation)
    state = hashlib.sha256(index.kind.tobytes() + index.free_bytes.tobytes() + index.free_share.tobytes())
    names = [[profile.name, profile.image] for profile in evaluation.profiles]
    return Decision(
        choice.placement,
        tuple(alternatives),
        reasons,
        worst(*trusts) if trusts else Trust.MEASURED,
        digest(claim, names, [node.name for node in index.nodes], state.hexdigest()),
        0,
        clock() - started,
    )


def why_waiting(evaluation: Evaluation) -> Reason:
    """Return why a gang has no place: it waits for consent to another card, or fits nowhere."""
    claim, choice = evaluation.claim, evaluation.choice
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
    best = choice.placement.score if choice.placement else 0.0
    refused = {refusal.model: refusal.reason for refusal in choice.refusals}
    room: dict[int, int] = {}
    single: dict[int, float] = {}
    demand_of = {demand.model: demand for demand in choice.demands}
    for demand in choice.demands:
        fit = evaluation.fit(demand)
        pods = np.where(fit.is_open, fit.pods, 0).tolist()
        room.update(zip(fit.rows.tolist(), pods, strict=True))
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
                reasons.append(_full(index, row, claim, demand_of[model]))
            elif choice.placement is None or (single[row] > best and room[row] < claim.pods):
                data = {"room": room[row], "pods": claim.pods, "level": claim.group_level or "any"}
                reasons.append(Reason("room-for-fewer", node.name, data))
            else:
                cost["score"] = max(single[row], cost.get("score", 0.0))
                beside = {"score": single[row], "best": best, "objective": "placement"}
                reasons.append(Reason("scores-lower", node.name, beside))
        yield Alternative(node.name, cost, tuple(reasons))


def _full(index: Index, row: int, claim: Claim, demand: PodDemand) -> Reason:
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


def relaxations(evaluation: Evaluation) -> tuple[Reason, ...]:
    """Return what would help a gang that fits nowhere, the smallest change of the job first."""
    index, claim, profiles, choice = evaluation.index, evaluation.claim, evaluation.profiles, evaluation.choice
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
            fits = evaluate(index, replace(claim, pods=middle), profiles).choice
            low, high = (middle, high) if fits.placement or fits.offer else (low, middle)
        if low:
            reasons.append(Reason("fits-fewer-pods", claim.name, {"pods": low, "asked": claim.pods}))
    if not reasons and choice.demands:
        fewest = min(choice.demands, key=lambda demand: (demand.devices, demand.model))
        data = {"count": fewest.devices * claim.pods, "model": fewest.model, "pods": claim.pods}
        reasons.append(Reason("needs-free-devices", claim.name, data))
    return tuple(reasons)


def _clean(index: Index) -> int:
    """Return the number of the empty set of taints, -1 where every node has some."""
    return index.taint_sets.index(()) if () in index.taint_sets else -1
