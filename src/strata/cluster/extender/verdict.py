"""What a scheduler extender says of nodes for one pod: which it may go to, and how good they are.

A pod whose place is decided goes there; a pod that asks for something is judged by the router; any other passes
everywhere and scores 0. Nothing is written: simulations and retries may ask as often as they like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.cluster.api.annotations import has_claim
from strata.cluster.api.kinds import Object, annotations_of, meta, name_of, namespace_of
from strata.cluster.api.placement_annotation import PLACEMENT, decode, place_of
from strata.cluster.api.pod_claims import claim_of_pod
from strata.cluster.scheduling.evaluation import FITS, TOKENS, evaluate
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile

ELSEWHERE: Final = "placed-elsewhere"
SAID: Final = (*TOKENS, ELSEWHERE)
"""What may be said of a node; `FITS` is first."""

RESOLVABLE: Final = frozenset({"devices-busy"})
"""What preempting other pods may change; of all else schedulers are told not to try."""

_FITS, _ELSEWHERE, _UNKNOWN = SAID.index(FITS), SAID.index(ELSEWHERE), SAID.index("no-devices")


@dataclass(frozen=True, slots=True)
class NodeVerdicts:
    """What is said of nodes for one pod.

    number: of a node. token, score: by number, the last of all other nodes; a number of `SAID`, and the score by
    `scoring`, 0 where the pod may not go.
    """

    token: Ints
    score: Floats
    number: Mapping[str, int] = field(default_factory=dict)

    def numbers(self, names: Sequence[str]) -> Ints:
        """Return the places of some nodes in `token` and `score`."""
        return np.fromiter(map(self.number.get, names, repeat(-1)), dtype=np.int64, count=len(names))


ANYWHERE: Final = NodeVerdicts(np.array([_FITS]), np.zeros(1))
NOWHERE: Final = NodeVerdicts(np.array([_UNKNOWN]), np.zeros(1))


def judge(index: Index, pod: Object, profiles: Sequence[RuntimeProfile]) -> NodeVerdicts:
    """Return what is said of all nodes for a pod. Raises BadFile for what it asks that cannot be read."""
    annotations = annotations_of(pod)
    if PLACEMENT in annotations:
        placement = decode(annotations[PLACEMENT], where=f"pod {namespace_of(pod)}/{name_of(pod)}")
        place = place_of(pod, placement)
        nodes = placement.nodes if place is None else (place.node,)
        number = {node: position for position, node in enumerate(nodes)}
        return NodeVerdicts(
            np.array([*[_FITS] * len(nodes), _ELSEWHERE]), np.array([*[1.0] * len(nodes), 0.0]), number
        )
    if not has_claim(annotations):
        return ANYWHERE
    token, score = evaluate(index, claim_of_pod(pod), profiles).nodes
    return NodeVerdicts(np.append(token, _UNKNOWN), np.append(score, 0.0), index.node_number)


def sort_nodes(verdict: NodeVerdicts, names: Sequence[str]) -> dict[str, list[str]]:
    """Return nodes by what is said of them, each list in the order of `names`; `FITS` is always there."""
    tokens = verdict.token[verdict.numbers(names)]
    count = np.bincount(tokens, minlength=len(SAID)).tolist()
    present_tokens = [token for token in range(len(SAID)) if count[token] or token == _FITS]
    return {SAID[token]: list(compress(names, (tokens == token).tolist())) for token in present_tokens}


def points(verdict: NodeVerdicts, names: Sequence[str], *, most: int) -> list[int]:
    """Return whole points from 1 to `most` for nodes that fit, by the rank of their score among `names`.

    Equal scores (to 1e-9) get equal points and a better one never fewer; the best have `most` points, and nobody
    else has, however close. Nodes that do not fit, and all nodes of a pod that asks for nothing, have 0.
    """
    rounded = np.round(verdict.score[verdict.numbers(names)], 9)
    fitting = rounded > 0
    whole_points = np.zeros(len(names), dtype=np.int64)
    if fitting.any():
        distinct, order = np.unique(rounded[fitting], return_inverse=True)
        last = len(distinct) - 1
        whole_points[fitting] = most + (most - 1) * (order - last) // max(last, 1)
    return whole_points.tolist()


class Judge:
    """`judge`, from memory where the pod and the index are those of the question before.

    So prioritize after filter costs no second look, nor do Volcano's questions node by node.
    """

    def __init__(self) -> None:
        self._last: tuple[Index, Sequence[RuntimeProfile], Object, NodeVerdicts] | None = None

    def __call__(self, index: Index, pod: Object, profiles: Sequence[RuntimeProfile]) -> NodeVerdicts:
        """Return the verdict. Raises BadFile."""
        last, about = self._last, meta(pod)
        if last is None or last[0] is not index or last[2] != about or last[1] != profiles:
            last = self._last = (index, profiles, about, judge(index, pod, profiles))
        return last[3]
