"""How fast the router is: filter and prioritize for one pod, and whole gangs, while the cluster changes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from strata.cluster.api.annotations import PREFIX
from strata.cluster.extender.handlers import Handlers
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index, released
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement


class PlacementTimes(NamedTuple):
    """Seconds of each filter with its prioritize, from JSON to JSON, and of each gang's placement.

    extender_cpu_s, extender_wall_s: by both clocks. gang_s: CPU, with the update of the index. placed: gangs.
    """

    extender_cpu_s: tuple[float, ...]
    extender_wall_s: tuple[float, ...]
    gang_s: tuple[float, ...]
    placed: int


def pace(
    index: Index,
    claims: Sequence[Claim],
    profiles: Sequence[RuntimeProfile],
    *,
    cpu: Callable[[], float],
    wall: Callable[[], float],
) -> PlacementTimes:
    """Answer for every claim once: as an extender for its first pod, then place the gang whole.

    What fits is kept; gangs leave in their order once one does not fit, so the cluster stays nearly full.
    """
    extender: list[tuple[float, float]] = []
    gangs: list[float] = []
    running: deque[Placement] = deque()
    names = [node.name for node in index.nodes]
    placed = 0
    handlers = Handlers(lambda: index, lambda: profiles)
    for claim in claims:
        pod = pod_of(claim)
        body = question(pod, names)
        started = cpu(), wall()
        answer = handlers.filter(body)
        filtered = cpu() - started[0], wall() - started[1]
        body = question(pod, json.loads(answer)["NodeNames"])
        started = cpu(), wall()
        handlers.prioritize(body)
        extender.append((filtered[0] + cpu() - started[0], filtered[1] + wall() - started[1]))
        began = cpu()
        placement = evaluate(index, claim, profiles).choice.placement
        if placement is not None:
            index = index.placed(placement)
        gangs.append(cpu() - began)
        if placement is not None:
            placed += 1
            running.append(placement)
        elif running:
            index = index.with_nodes(released(index, running.popleft()))
    return PlacementTimes(
        tuple(cpu_s for cpu_s, _ in extender), tuple(wall_s for _, wall_s in extender), tuple(gangs), placed
    )


def pod_of(claim: Claim) -> dict[str, Any]:
    """Return a pod that asks for what one pod of a claim by devices, or by a fraction of one, does."""
    requirements: Mapping[str, str] = {"devices": str(claim.devices or 1)}
    if claim.is_fractional:
        cores = 100 * (claim.cores_share or 0.0)
        requirements = {"fractional": "true", "vram": f"{claim.memory_bytes / 2**20:g}Mi", "cores": f"{cores:g}"}
    annotations = {PREFIX + key: value for key, value in requirements.items()}
    metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.name, "annotations": annotations}
    container = {"name": "main", "image": "image", "resources": {"requests": {"cpu": "4", "memory": "16Gi"}}}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def question(pod: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return an ExtenderArgs with names only."""
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
