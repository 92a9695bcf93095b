"""The controller at work: it hears, decides while it leads, and acts; many may run, one leads.

Two threads share the cache. One hears, and answers faults; the other schedules, on snapshots. Both hold the lock
only to read or write the cache, never while the API server is asked. So neither a thousand jobs nor an API server
that takes seconds to take one of them keeps a fault waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from strata.cluster.api.actions import Action, Evict, Patch, Ref, event
from strata.cluster.api.applier import Applier, Failure
from strata.cluster.api.jobs import suspension
from strata.cluster.api.kinds import COMPUTE_NODE, NODE, POD, RUNTIME_PROFILE, meta, moment
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.informer import Informer
from strata.cluster.controller.controller import Controller, CyclePolicy
from strata.cluster.controller.healing import HealingPolicy, HealingView, heal, owned
from strata.cluster.controller.isolation_state import IsolationState, states_of
from strata.cluster.controller.sub_health import SubHealthReport, Window
from strata.cluster.kueue.admission_checks import AdmissionChecks
from strata.cluster.kueue.flavors import node_labels
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Reason
from strata.net.metrics import SECONDS, Counter, Histogram, Registry, read_gauge, render

log = logging.getLogger(__name__)

IDLE_S: Final = 5.0
"""A turn is made so often even where nothing is heard: times pass too."""
GAP_S: Final = 0.1
"""Between two turns, however much is heard."""
REST: Final = 10.0
"""Healing looks at all nodes, of which thousands publish something every second: it takes a tenth of the time."""
HEALED: Final = frozenset({NODE, COMPUTE_NODE, RUNTIME_PROFILE})
"""What healing looks at; of the rest it only asks who holds a device that is broken."""
LOOKS: Final = 30
"""How often slow devices are looked for within the window they are judged by."""


class ControllerMetrics:
    """What the controller counts: its own thread writes, the server's thread reads."""

    def __init__(self) -> None:
        self.registry = new = Registry()
        self.http = Counter("strata_http_requests_total", "HTTP requests by status.", ["code"], registry=new)
        self.failures = Counter(
            "strata_controller_failures_total", "Actions that were not done.", ["action", "what"], registry=new
        )
        self.turns = Histogram(
            "strata_controller_turn_seconds", "To decide and act once.", ["what"], buckets=SECONDS, registry=new
        )
        self.now = dict.fromkeys(NOW, 0.0)
        for name, text in NOW.items():
            read_gauge(new, f"strata_controller_{name}", text, (), self._read(name))

    def show(self, **now: float) -> None:
        """Let the gauges tell of this."""
        self.now |= now

    def render(self) -> str:
        """Return the page that Prometheus scrapes."""
        return render(self.registry)

    def _read(self, name: str) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {(): self.now[name]}


NOW: Final = {
    "leads": "1 while this one leads.",
    "waiting_gangs": "Jobs and pods of ours without a place.",
    "placed_gangs": "Gangs that hold places.",
    "isolated_nodes": "Nodes that are out for their devices.",
    "isolation_waits_nodes": "Nodes that should be out, and the budget has no room.",
    "silent_nodes": "Nodes whose agent was not heard of.",
    "unreadable_objects": "Objects of ours that cannot be read.",
}


class Manager:
    """is_leader: asked before every turn and every action. healer, placer: one for each thread.

    checkpoint_of, saved_s: as of the controller.
    """

    def __init__(
        self,
        informer: Informer,
        healer: Applier,
        placer: Applier,
        *,
        is_leader: Callable[[], bool],
        policy: HealingPolicy,
        window: Window,
        checkpoint_of: Callable[[str], str] = lambda folder: "",
        saved_s: Callable[[str], float | None] = lambda folder: None,
        cycle_policy: CyclePolicy | None = None,
        admission_checks: AdmissionChecks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.informer, self.is_leader, self.healer, self.placer = informer, is_leader, healer, placer
        self.controller = Controller(
            informer.cache,
            placer.do,
            informer.lock,
            cycle_policy or CyclePolicy(),
            checkpoint_of=checkpoint_of,
            saved_s=saved_s,
        )
        for applier in (healer, placer):
            applier.may_act, applier.failed = is_leader, self._failed
        self.policy, self.admission_checks, self.clock = policy, admission_checks, clock
        self.meters = ControllerMetrics()
        self.stopped = threading.Event()
        self._window, self._sub_health, self._looked_s = window, SubHealthReport(), float("-inf")
        self._marks: dict[str, IsolationState] | None = None
        self._uids: dict[str, str] = {}
        self._moves: dict[str, Placement | None] = {}
        self._healed_s, self._healing_s = float("-inf"), 0.0
        self._has_looked, self._is_due = threading.Event(), threading.Event()

    def hear(self) -> None:
        """Hear and answer faults until stopped."""
        is_changed = True
        while not self.stopped.wait(GAP_S):
            heard = self.informer.pump(0.5)
            is_changed |= self._has_looked.is_set() or not heard.isdisjoint(HEALED) or bool(heard and self._moves)
            if not self._may_act():
                # Another leads, and changes what this one remembers.
                self._marks, is_changed = None, True
                self.meters.show(leads=0.0)
                continue
            is_first = self._marks is None
            if is_first or self.clock() - self._healed_s >= (REST * self._healing_s if is_changed else IDLE_S):
                is_changed = False
                self._has_looked.clear()
                self.heal()
                self._is_due.set()
            if heard:
                self._is_due.set()

    def let_go(self) -> None:
        """Let jobs go until stopped, whenever anything was heard; look for slow devices all along."""
        while not self.stopped.is_set():
            is_due = self._is_due.wait(0.5)
            if not self._may_act():
                self.stopped.wait(GAP_S)
                continue
            if is_due:
                self._is_due.clear()
                if self.place():
                    self._is_due.set()
            # A heartbeat that says nothing else new may have a probe in it.
            self._look()

    def heal(self) -> None:
        """Answer the faults there are, once."""
        now_s, begun, begun_s = self.clock(), time.perf_counter(), time.thread_time()
        cache = self.informer.cache
        with self.informer.lock:
            actions = [*self._healed(cache, now_s), *owned(cache.nodes, cache.compute_nodes)]
            if self.admission_checks:
                actions += node_labels(cache.nodes, cache.fingerprints, cache.profiles)
            self.meters.show(
                leads=1.0, placed_gangs=len(cache.gangs.placements), unreadable_objects=len(cache.faults)
            )
        self._healing_s = time.thread_time() - begun_s
        self.healer.do(actions)
        self._healed_s = self.clock()
        self.meters.turns.labels("heal").observe(time.perf_counter() - begun)

    def place(self) -> bool:
        """Move what has to, and schedule what waits, once; return whether there is more to do at once."""
        now_s, begun = self.clock(), time.perf_counter()
        cache, lock, stamp = self.informer.cache, self.informer.lock, moment(now_s)
        with lock:
            moves = [action for gang in self._moves for action in self._moved(cache, gang, stamp)]
        self.placer.do(moves)
        if self.admission_checks:
            self.admission_checks.cycle(cache, now_s, apply=self.placer.do, stamp=stamp, lock=lock)
        is_more = self.controller.cycle(now_s, stamp=stamp)
        self.meters.show(waiting_gangs=self.controller.waiting)
        self.meters.turns.labels("place").observe(time.perf_counter() - begun)
        return is_more

    def _healed(self, cache: ClusterCache, now_s: float) -> list[Action]:
        uids = {name: str(meta(node).get("uid") or "") for name, node in cache.nodes.items()}
        actions: list[Action] = []
        if self._marks is None:
            self._marks, events = states_of(cache.nodes, now_s)
            actions += events
        else:
            # A node that was made anew under its old name is another.
            same = {name for name in self._marks if uids.get(name) == self._uids.get(name)}
            self._marks = {name: self._marks[name] for name in same}
        self._uids = uids
        view = HealingView(
            cache.nodes,
            cache.compute_nodes,
            cache.fingerprints,
            self.informer.received_s,
            cache.holds,
            self._sub_health,
        )
        healing = heal(view, self._marks, now_s, policy=self.policy)
        self._marks = dict(healing.states)
        self._moves = {gang: cache.gangs.placement_of(gang) for gang in healing.moves}
        self.meters.show(
            isolated_nodes=sum(state.standing.is_isolated for state in healing.states.values()),
            isolation_waits_nodes=len(healing.waiting),
            silent_nodes=len(healing.silent),
        )
        return [*actions, *healing.actions]

    def _may_act(self) -> bool:
        return not self.informer.unready() and self.is_leader()

    def _moved(self, cache: ClusterCache, gang: str, stamp: str) -> Iterator[Action]:
        """Hold a gang back whose devices are broken: it is routed again once its pods are gone."""
        if cache.gangs.placement_of(gang) != self._moves[gang]:
            return  # it has another by now
        job = cache.jobs.get(gang)
        if job is None:
            for key in cache.gangs.pods_of(gang):
                namespace, _, name = key.partition("/")
                yield Evict(Ref(POD, name, namespace))
            return
        reason = Reason("gang-moved", job.ref.name, {})
        if job.is_queued and self.admission_checks is not None:
            # Kueue would only let it go again.
            yield from self.admission_checks.moved(cache, gang, str(reason), stamp=stamp)
        elif job.runs:
            # With its version, so that it is done and told once, whatever the watch still has to say.
            yield Patch(job.ref, suspension(job.obj, wanted=True), resource_version=job.version)
            yield event(job.ref, reason, is_warning=True)

    def _look(self) -> None:
        """Look for slow devices where it is time to.

        With tens of thousands of devices it takes most of a second; nodes publish more rarely than it is done.
        """
        now_s = self.clock()
        if now_s - self._looked_s < self._window.window_s / LOOKS:
            return
        with self.informer.lock:
            cache, fresh = self.informer.cache, self.informer.fresh & self.informer.cache.fingerprints.keys()
            heard = [(cache.fingerprints[name], self.informer.received_s[name]) for name in fresh]
            holds = cache.holds() if heard else {}
            self.informer.fresh.clear()
        gangs: dict[str, dict[int, str]] = {}
        for gang, by_node in holds.items():
            for node, places in by_node.items():
                gangs.setdefault(node, {}).update(dict.fromkeys(places, gang))
        for fingerprint, received_s in heard:
            self._window.add(fingerprint, received_s, gangs.get(fingerprint.node, {}))
        before, self._sub_health, self._looked_s = self._sub_health, self._window.look(now_s), now_s
        if before.slow != self._sub_health.slow:
            self._has_looked.set()

    def _failed(self, failure: Failure) -> None:
        action, error = failure.action, failure.error
        self.meters.failures.labels(type(action).__name__.lower(), failure.what).inc()
        log.warning("%s of %s: %s (%s)", type(action).__name__, action.ref, error, failure.what)
