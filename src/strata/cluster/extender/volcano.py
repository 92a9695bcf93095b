"""The same router in the form of Volcano's extender plugin, which asks about tasks, one node at a time.

`predicate` is asked once for every pair of task and node, both sent whole, so it is dear on thousands of nodes:
let Volcano's own `predicates` plugin count the vendor's resources first. A session's snapshot (`onSessionOpen`) is
not needed, as the nodes are watched.

References
----------
volcano-sh/volcano pkg/scheduler/plugins/extender/{argument,extender}.go, pkg/scheduler/api/types.go (codes),
docs/user-guide/how_to_use_extender.md; read at ed72c7c8 (1.16.0-alpha.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strata.cluster.api.kinds import Object
from strata.cluster.extender.verdict import RESOLVABLE, NodeVerdicts, points, sort_nodes
from strata.cluster.extender.wire import MESSAGES, one_line
from strata.cluster.scheduling.evaluation import FITS
from strata.errors import BadFile, UsageError

UNSCHEDULABLE: Final = 2
UNRESOLVABLE: Final = 3
"""Codes of a status: preemption may help, or will not."""

MOST: Final = 100
"""As many points as nodes get from Volcano's own plugins at weight 1."""


def read_predicate(request: Any) -> tuple[Object, str]:
    """Return the pod and the node's name of a PredicateRequest. Raises UsageError for what is none."""
    return _pod(request), _name(_mapping(request).get("node"))


def read_prioritize(request: Any) -> tuple[Object, list[str]]:
    """Return the pod and the nodes' names of a PrioritizeRequest. Raises UsageError for what is none."""
    nodes = _mapping(request).get("nodes")
    if not isinstance(nodes, list):
        raise UsageError("nodes is not a list")
    return _pod(request), [_name(node) for node in nodes]


def predicate(verdict: NodeVerdicts, node: str) -> dict[str, Any]:
    """Return the PredicateResponse, whose `status` is a message, empty where the task may go to the node."""
    (token,) = (token for token, some in sort_nodes(verdict, [node]).items() if some)
    if token == FITS:
        return {"status": "", "code": 0}
    return {"status": MESSAGES[token], "code": UNSCHEDULABLE if token in RESOLVABLE else UNRESOLVABLE}


def prioritize(verdict: NodeVerdicts, names: list[str]) -> dict[str, Any]:
    """Return the PrioritizeResponse, 0 for a node that does not fit."""
    scores = points(verdict, names, most=MOST)
    return {"nodeScore": dict(zip(names, map(float, scores), strict=True)), "errorMessage": ""}


def refuse_predicate(error: BadFile) -> dict[str, Any]:
    """Return the PredicateResponse for a task whose annotations cannot be read."""
    return {"status": one_line(error), "code": UNRESOLVABLE}


def refuse_prioritize(error: BadFile) -> dict[str, Any]:
    """Return the PrioritizeResponse for a task whose annotations cannot be read."""
    return {"nodeScore": {}, "errorMessage": one_line(error)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _pod(request: Any) -> Object:
    """Return a TaskInfo's pod; it and NodeInfo have no JSON tags, so Go's names."""
    pod = _mapping(_mapping(request).get("task")).get("Pod")
    if not isinstance(pod, Mapping):
        raise UsageError("no task with a Pod is given")
    return pod


def _name(node: Any) -> str:
    name = _mapping(node).get("Name")
    if not isinstance(name, str):
        raise UsageError("a node without a Name")
    return name
