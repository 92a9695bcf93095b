"""A scheduler's questions answered, from JSON to JSON: kube-scheduler's two and Volcano's two, by one router."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata.cluster.api.kinds import Object
from strata.cluster.extender import verdict as extender
from strata.cluster.extender import volcano, wire
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.errors import BadFile


class Handlers:
    """`index` and `profiles` are called for each question. Methods raise UsageError where it is none."""

    def __init__(self, index: Callable[[], Index], profiles: Callable[[], Sequence[RuntimeProfile]]) -> None:
        self._index, self._profiles, self._judge = index, profiles, extender.Judge()

    def filter(self, body: bytes) -> bytes:
        """Answer an ExtenderArgs by an ExtenderFilterResult."""
        args = wire.read_args(wire.decode(body))
        try:
            verdict = self._verdict(args.pod)
        except BadFile as error:
            return wire.filter_refusal(error)
        return wire.filter_result(extender.sort_nodes(verdict, args.names), args)

    def prioritize(self, body: bytes) -> bytes:
        """Answer an ExtenderArgs by a HostPriorityList, which has no place for an error: filter told it before."""
        args = wire.read_args(wire.decode(body))
        try:
            verdict = self._verdict(args.pod)
        except BadFile:
            verdict = extender.NOWHERE
        return wire.host_priorities(args.names, extender.points(verdict, args.names, most=wire.MOST))

    def predicate(self, body: bytes) -> bytes:
        """Answer Volcano's PredicateRequest."""
        pod, node = volcano.read_predicate(wire.decode(body))
        try:
            return wire.encode(volcano.predicate(self._verdict(pod), node))
        except BadFile as error:
            return wire.encode(volcano.refuse_predicate(error))

    def node_order(self, body: bytes) -> bytes:
        """Answer Volcano's PrioritizeRequest."""
        pod, names = volcano.read_prioritize(wire.decode(body))
        try:
            return wire.encode(volcano.prioritize(self._verdict(pod), names))
        except BadFile as error:
            return wire.encode(volcano.refuse_prioritize(error))

    def _verdict(self, pod: Object) -> extender.NodeVerdicts:
        return self._judge(self._index(), pod, self._profiles())
