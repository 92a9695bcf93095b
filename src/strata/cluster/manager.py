"""The controller at work: it hears, decides while it leads, and acts; many may run, one leads.

A turn is short: what is broken is answered first, and jobs are placed for at most `TURN_S`, so that a fault that
is heard meanwhile does not wait for a thousand jobs. What a turn did not get to the next one finds again.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from strata.cluster import jobs, kinds
from strata.cluster.act import Actor, Failure
from strata.cluster.actions import Action, Note, Patch, Ref, Remove
from strata.cluster.book import Book
from strata.cluster.controller import Controller
from strata.cluster.crd.compute_claim import pascal
from strata.cluster.healing import Policy, View, heal, owned, stamp
from strata.cluster.kinds import annotations_of, meta, name_of
from strata.cluster.live import Live
from strata.cluster.placed import GANG
from strata.cluster.queued import Queued
from strata.cluster.standing import Mark, marks_of
from strata.cluster.waiting import is_queued, ref_of
from strata.cluster.window import Looked, Window
from strata.decision import Reason
from strata.prometheus import Registry

log = logging.getLogger(__name__)

IDLE_S: Final = 5.0
"""A turn is made so often even where nothing is heard: times pass too."""
TURN_S: Final = 0.25
LOOKS: Final = 30
"""How often slow devices are looked for within the window they are judged by."""


class Meters:
    """What the controller counts. Its thread writes, the server's reads: one lock for all."""

    def __init__(self) -> None:
        self.registry = new = Registry()
        self.lock = threading.Lock()
        self.http = new.counter("strata_http_requests_total", "HTTP requests by status.", ["code"])
        self.failures = new.counter(
            "strata_controller_failures_total", "Actions that were not done.", ["action", "what"]
        )
        self.turns = new.histogram("strata_controller_turn_seconds", "To decide and act once.")
        self.now = dict.fromkeys(NOW, 0.0)
        for name, text in NOW.items():
            new.gauge(f"strata_controller_{name}", text, (), self._read(name))

    def show(self, **now: float) -> None:
        """Let the gauges tell of this."""
        with self.lock:
            self.now |= now

    def render(self) -> str:
        """Return the page that Prometheus scrapes."""
        with self.lock:
            return self.registry.render()

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
    """is_leader: asked before every turn and every action. queued: what Kueue asks, None where it is not there."""

    def __init__(
        self,
        live: Live,
        actor: Actor,
        controller: Controller,
        *,
        is_leader: Callable[[], bool],
        policy: Policy,
        window: Window,
        queued: Queued | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.live, self.actor, self.controller, self.is_leader = live, actor, controller, is_leader
        self.policy, self.queued, self.clock = policy, queued, clock
        self.meters = Meters()
        self.stopped = threading.Event()
        self._window, self._looked, self._looked_s = window, Looked(), float("-inf")
        self._marks: dict[str, Mark] | None = None
        self._uids: dict[str, str] = {}
        self._turned_s = float("-inf")

    def run(self) -> None:
        """Make turns until stopped."""
        has_news = True
        while not self.stopped.is_set():
            has_news = self.live.pump(0.5) or has_news
            if self._unready() or not self.is_leader():
                # Another leads, and changes what this one remembers.
                self._marks, has_news = None, True
                self.meters.show(leads=0.0)
            elif has_news or self.clock() - self._turned_s >= IDLE_S:
                has_news = self.turn() or self._look()

    def turn(self) -> bool:
        """Decide and act once; return whether there is more to do at once."""
        now_s, begun = self.clock(), time.perf_counter()
        book = self.live.book
        actions = itertools.chain(
            self._healed(book, now_s),
            self.queued.step(book, now_s, stamp=stamp(now_s)) if self.queued else (),
            self.controller.step(book, now_s, stamp=stamp(now_s)),
            owned(book.nodes, book.compute_nodes),
        )
        is_cut = False

        def until_late() -> Iterator[Action]:
            nonlocal is_cut
            for action in actions:
                if not self.is_leader():
                    return
                yield action
                if time.perf_counter() - begun > TURN_S:
                    is_cut = True
                    return

        failures = self.actor.do(until_late())
        for failure in failures:
            self._failed(failure)
        self._turned_s = self.clock()
        self.meters.show(
            leads=1.0,
            waiting_gangs=self.controller.waiting,
            placed_gangs=len(book.placements),
            unreadable_objects=len(book.faults),
        )
        with self.meters.lock:
            self.meters.turns.observe(time.perf_counter() - begun)
        return is_cut

    def _healed(self, book: Book, now_s: float) -> Iterator[Action]:
        uids = {name: str(meta(node).get("uid") or "") for name, node in book.nodes.items()}
        if self._marks is None:
            self._marks, notes = marks_of(book.nodes, now_s)
            yield from notes
        else:
            # A node that was made anew under its old name is another.
            same = {name for name in self._marks if uids.get(name) == self._uids.get(name)}
            self._marks = {name: self._marks[name] for name in same}
        self._uids = uids
        view = View(
            book.nodes, book.compute_nodes, book.fingerprints, self.live.received_s, book.placements, self._looked
        )
        healing = heal(view, self._marks, now_s, policy=self.policy)
        self._marks = dict(healing.marks)
        self.meters.show(
            isolated_nodes=sum(mark.standing.is_isolated for mark in healing.marks.values()),
            isolation_waits_nodes=len(healing.waiting),
            silent_nodes=len(healing.silent),
        )
        yield from healing.actions
        for gang in healing.moves:
            yield from self._moved(book, gang, now_s)

    def _unready(self) -> str:
        return self.live.unready() or (self.queued.unready() if self.queued else "")

    def _moved(self, book: Book, gang: str, now_s: float) -> Iterator[Action]:
        """Hold a gang back whose devices are broken: it is routed anew once its pods are gone."""
        obj = book.jobs.get(gang)
        if obj is None:
            for key in book.pods_of(gang):
                namespace, _, name = key.partition("/")
                yield Remove(Ref(kinds.POD, name, namespace), "evict")
            return
        kind = jobs.kind_of(obj)
        assert kind is not None, "only kinds with suspend are kept"
        ref, reason = ref_of(obj, kind), Reason("gang-moved", name_of(obj), {})
        if is_queued(obj) and self.queued is not None:
            # Kueue would only let it go again.
            yield from self.queued.moved(gang, str(reason), stamp=stamp(now_s))
        elif not jobs.is_suspended(obj) and not jobs.is_finished(obj):
            # With its version, so that it is done and told once, whatever the watch still has to say.
            version = str(meta(obj).get("resourceVersion") or "")
            yield Patch(ref, jobs.suspension(obj, wanted=True), resource_version=version)
            yield Note(ref, pascal(reason.token), str(reason), is_warning=True)

    def _look(self) -> bool:
        """Look for slow devices where it is time to; return whether any were found, or are well again.

        Between turns: with tens of thousands of devices it takes most of a second.
        """
        book, now_s = self.live.book, self.clock()
        for name in self.live.fresh & book.fingerprints.keys():
            self._window.add(book.fingerprints[name], self.live.received_s[name])
        self.live.fresh.clear()
        if now_s - self._looked_s < self._window.window_s / LOOKS:
            return False
        before, self._looked, self._looked_s = self._looked, self._window.look(now_s), now_s
        return before.slow != self._looked.slow

    def _failed(self, failure: Failure) -> None:
        action = failure.action
        with self.meters.lock:
            self.meters.failures.inc(action=type(action).__name__.lower(), what=failure.what)
        log.warning("%s of %s: %s (%s)", type(action).__name__, action.ref, failure.error, failure.what)
        # Without an answer it may have been done, or still be: its places are held until it shows, or their time.
        if isinstance(action, Patch) and 400 <= failure.error.status < 500:
            self.live.book.forget(_gang_of(self.live.book, action.ref))


def _gang_of(book: Book, ref: Ref) -> str:
    """Return the gang of a job or a gated pod; that of a pod with a generated name is not called after it."""
    pod = book.gated.get(f"{ref.namespace}/{ref.name}") if ref.kind == kinds.POD else None
    return str(ref) if pod is None else annotations_of(pod).get(GANG) or str(ref)
