"""A node as the router sees it, of what the API server and its agent say of it and what pods hold there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from strata.cluster.api.kinds import Object, is_true, meta
from strata.cluster.api.pod_requests import amounts_of
from strata.cluster.cache.allocation import Use, free_of
from strata.cluster.scheduling.host import PodRequests, sum_of
from strata.cluster.scheduling.index import MIN_HEALTH
from strata.cluster.scheduling.snapshot import NodeState
from strata.fleet.fingerprint import Fingerprint

RDMA_LABELS: Final = ("ai.compute/rdma-group", "network.topology.nvidia.com/leaf")
RACK_LABELS: Final = ("ai.compute/rack", "network.topology.nvidia.com/spine")
"""Node labels that say who reaches whom fast: ours, then those of NVIDIA's topology discovery."""


def node_state(
    node: Object,
    fingerprint: Fingerprint,
    *,
    agent_status: Mapping[str, Any],
    uses: Sequence[Use],
    bound: Iterable[PodRequests],
    vendors: Mapping[str, str],
    is_closed: bool,
) -> NodeState:
    """Return a node as the router sees it.

    agent_status: of its ComputeNode. uses: what pods hold of its devices, bound: what those bound to it request.
    vendors: by a resource that counts their devices. is_closed: we let no new pods in, since its agent is silent.
    """
    spec, labels = node.get("spec") or {}, meta(node).get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    free = free_of(fingerprint, uses, vendors=vendors, allocatable=allocatable, min_health=MIN_HEALTH)
    return NodeState(
        fingerprint,
        free.bytes,
        free.share,
        labels=dict(labels),
        taints=tuple(_taint(taint) for taint in spec.get("taints") or ()),
        is_schedulable=not is_closed and not spec.get("unschedulable") and is_true(node, "Ready"),
        rdma_group=_first(labels, RDMA_LABELS) or str(agent_status.get("rdmaGroup") or ""),
        rack=_first(labels, RACK_LABELS) or str(agent_status.get("rack") or ""),
        allocatable=amounts_of(allocatable),
        requested=sum_of([*bound, *(use.requests for use in uses)]),
        withheld=free.withheld,
        is_silent=is_closed,
    )


def may_fit_more(before: NodeState, after: NodeState) -> bool:
    """Return whether a pod that did not fit on a node might now."""

    def eligibility(node: NodeState) -> tuple[object, ...]:
        well = tuple(device.health for device in node.fingerprint.devices)
        return node.labels, node.taints, node.is_schedulable, well

    if before.allocatable != after.allocatable or before.requested.ports - after.requested.ports:
        return True
    now_requested = after.requested.amounts
    if any(now_requested.get(name, 0) < amount for name, amount in before.requested.amounts.items()):
        return True
    free = zip(before.free_bytes + before.free_share, after.free_bytes + after.free_share, strict=True)
    return any(is_now > was for was, is_now in free) or eligibility(before) != eligibility(after)


def _taint(taint: Mapping[str, Any]) -> str:
    return f"{taint.get('key', '')}={taint.get('value') or ''}:{taint.get('effect', '')}"


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")
