"""The API server followed into a book: one thread a kind listens, one reads what they heard."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Sequence
from typing import Final

from strata.cluster.book import WATCHED, Book
from strata.cluster.kinds import ObjectKind
from strata.cluster.kube.api import Api
from strata.cluster.kube.watch import Listed, News, Watcher

_PUMP_S: Final = 0.5


class Live:
    """A book that follows an API server. Hold `lock` while reading `book`; an index taken from it may be kept.

    heard: called with everything that is heard before the book is told, in the thread that pumps.
    """

    def __init__(
        self,
        api: Api,
        book: Book,
        *,
        kinds: Sequence[ObjectKind] = WATCHED,
        rng: random.Random,
        heard: Callable[[News], None] = lambda news: None,
    ) -> None:
        self.book, self.lock = book, threading.RLock()
        self._heard = heard
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._missing = set(kinds)
        self._stop = threading.Event()
        self._watchers = {kind: Watcher(api, kind, self._news.put, rng=rng) for kind in kinds}
        self._thread = threading.Thread(target=self._follow, name="live", daemon=True)

    def start(self, *, in_thread: bool) -> None:
        """Start listening; in_thread: also to tell the book by itself, where nobody calls `pump`."""
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

    def pump(self, timeout_s: float) -> bool:
        """Wait for news and tell the book all there is; return whether there was any."""
        try:
            news = [self._news.get(timeout=timeout_s)]
        except queue.Empty:
            return False
        while not self._news.empty():
            news.append(self._news.get())
        with self.lock:
            for one in news:
                self._heard(one)
                if isinstance(one, Listed):
                    self.book.listed(one.kind, one.objects)
                    self._missing.discard(one.kind)
                else:
                    self.book.changed(one.kind, one.obj, is_gone=one.type == "DELETED")
        return True

    def unready(self) -> str:
        """Return why the book should not be trusted, empty where it may be."""
        broken = [kind.plural for kind, watcher in self._watchers.items() if watcher.failure is not None]
        if broken:
            return f"nobody follows {', '.join(broken)} any more"
        return f"not listed yet: {', '.join(kind.plural for kind in self._missing)}" if self._missing else ""

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.pump(_PUMP_S)
