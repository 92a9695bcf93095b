"""The API server followed into a cache: one thread a kind listens, one reads what they heard.

A node whose agent has not been heard of for `STALE_S`, by our own clock, gets no new gangs: nobody knows how its
devices are. Whether the machine is alive is the kubelet's business.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from strata.cluster.api import kinds
from strata.cluster.api.client import Api
from strata.cluster.api.kinds import ObjectKind, name_of, namespace_of
from strata.cluster.api.watch import Listed, News, Watcher, WatchEvent
from strata.cluster.cache.cache import WATCHED, ClusterCache
from strata.fleet.fingerprint import Fingerprint

STALE_S: Final = 360.0
"""Two heartbeats of the agent, and an API server that is away for a minute."""

_PUMP_S: Final = 0.5
_LOOK_S: Final = 5.0


def steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since the epoch that goes on from now, however the machine's own is set."""
    ours = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ahead_s = time.time() - time.clock_gettime(ours)
    return lambda: ahead_s + time.clock_gettime(ours)


class Informer:
    """A cache that follows an API server. Hold `lock` while reading `cache`; an index taken from it may be kept.

    received_s: when each node's agent was heard of last. fresh: nodes heard of since somebody cleared it.
    """

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        *,
        watched: Sequence[ObjectKind] = WATCHED,
        rng: random.Random,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.cache, self.lock, self.clock = cache, threading.RLock(), clock or steady_clock()
        self.received_s: dict[str, float] = {}
        self.fresh: set[str] = set()
        self._looked_s = float("-inf")
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._missing = set(watched)
        self._stop = threading.Event()
        self._watchers = {kind: Watcher(api, kind, self._news.put, rng=rng) for kind in watched}
        self._thread = threading.Thread(target=self._follow, name="live", daemon=True)

    def start(self, *, in_thread: bool) -> None:
        """Start listening; in_thread: also to tell the cache by itself, where nobody calls `pump`."""
        for watcher in self._watchers.values():
            watcher.start()
        if in_thread:
            self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stop.set()
        for watcher in self._watchers.values():
            watcher.stop()
        if self._thread.is_alive():
            self._thread.join()

    def pump(self, timeout_s: float) -> frozenset[ObjectKind]:
        """Wait for news and tell the cache all there is; return of which kinds there was any.

        A node of which its agent says nothing new is none: of thousands one does so at any time.
        """
        try:
            news = [self._news.get(timeout=timeout_s)]
        except queue.Empty:
            news = []
        while news and not self._news.empty():
            news.append(self._news.get())
        heard: set[ObjectKind] = set()
        with self.lock:
            for item in _last_of_each(news):
                before = self._hear(item)
                if isinstance(item, Listed):
                    self.cache.listed(item.kind, item.objects)
                    self._missing.discard(item.kind)
                else:
                    self.cache.changed(item.kind, item.obj, is_gone=item.type == "DELETED")
                    after = None if before is None else self.cache.fingerprints.get(before.node)
                    if before is not None and after is not None and after.steady() == before.steady():
                        continue
                heard.add(item.kind)
            self._close_silent()
        return frozenset(heard)

    def _hear(self, news: News) -> Fingerprint | None:
        """Note when a node's agent is heard of, and return the node as it was: an agent's clock plays no part."""
        if news.kind != kinds.COMPUTE_NODE:
            return None
        now_s = self.clock()
        for obj in news.objects if isinstance(news, Listed) else (news.obj,):
            before = self.cache.compute_nodes.get(name_of(obj))
            if before is None or _observation(obj) != _observation(before):
                self.received_s[name_of(obj)] = now_s
                self.fresh.add(name_of(obj))
        return None if isinstance(news, Listed) else self.cache.fingerprints.get(name_of(news.obj))

    def _close_silent(self) -> None:
        now_s = self.clock()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self.cache.close({name for name, at_s in self.received_s.items() if now_s - at_s > STALE_S})

    def unready(self) -> str:
        """Return why the cache should not be trusted, empty where it may be."""
        broken = [kind.plural for kind, watcher in self._watchers.items() if watcher.failure is not None]
        if broken:
            return f"nobody follows {', '.join(broken)} any more"
        return f"not listed yet: {', '.join(kind.plural for kind in self._missing)}" if self._missing else ""

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.pump(_PUMP_S)


def _last_of_each(news: Sequence[News]) -> Iterator[News]:
    """Yield news without what other news say anew: of changes to one object that follow each other, the last.

    One that is gone and comes back is another, so that it is gone is always told.
    """
    last: dict[tuple[ObjectKind, str, str], WatchEvent] = {}
    for item in news:
        if isinstance(item, Listed):
            yield from last.values()
            last.clear()
            yield item
            continue
        key = item.kind, namespace_of(item.obj), name_of(item.obj)
        if (before := last.pop(key, None)) is not None and "DELETED" in (item.type, before.type):
            yield before
        last[key] = item
    yield from last.values()


def _observation(obj: Any) -> Any:
    """Return what changes whenever an agent publishes, and not when others write conditions."""
    status = obj.get("status") or {}
    return status.get("observedAt"), status.get("devices")
