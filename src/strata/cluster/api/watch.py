"""What the API server holds, followed for ever: a list, then every change; a list again where the past is lost.

lightkube's own watch reads without a time limit (a connection that died without a word is waited for for ever),
cannot be ended by another thread, and asks for no bookmarks.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from strata.cluster.api.client import Api
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import Object, ObjectKind, meta

log = logging.getLogger(__name__)

WATCH_S: Final = 60.0
"""How long one watch is asked for. client-go asks for 5 to 10 minutes; at one request a minute and kind, a
connection that died without a word is noticed within this and the client's own time limit."""

ABSENT_S: Final = 30.0
"""How long until a kind that is not installed is asked for again."""

FIRST_S: Final = 0.5
LONGEST_S: Final = 30.0
"""The wait after the first failure, and where doubling it ends; client-go: 0.8 s and 30 s."""

SHORT_S: Final = 1.0
"""A watch that ends sooner without a word counts as failed, so that a server that ends all of them is not asked in
a tight loop."""


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects there are of a kind: what is not among them is gone."""

    kind: ObjectKind
    objects: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """What happened to one object: ADDED, MODIFIED or DELETED."""

    kind: ObjectKind
    type: str
    obj: Object


News = Listed | WatchEvent
Event = tuple[str, Object]


def follow(
    api: Api,
    kind: ObjectKind,
    *,
    clock: Callable[[], float],
    pause: Callable[[float], bool],
    rng: random.Random,
    labels: str = "",
    opened: Callable[[Iterator[Event]], None] = lambda stream: None,
) -> Iterator[News]:
    """Yield a Listed, then changes, for ever; whatever fails is tried again, later and later.

    `pause` waits so many seconds and returns whether to stop. `opened` is told each stream, so that another thread
    may close it. A kind that is not installed is one empty Listed, until it is.
    """
    since = ""
    has_list = is_absent = False
    failures = lost = 0
    while not pause(0.0):
        began, heard = clock(), 0
        failed = None
        try:
            if not has_list:
                objects, version = api.list(kind, labels=labels)
                has_list, is_absent, since = True, False, _usable(version)
                yield Listed(kind, tuple(objects))
            stream = api.watch(kind, since=since, timeout_s=WATCH_S * rng.uniform(1.0, 1.5), labels=labels)
            opened(stream)
            began = clock()
            for what, obj in stream:
                heard += 1
                since = _usable(str(meta(obj).get("resourceVersion") or "")) or since
                if what != "BOOKMARK":
                    yield WatchEvent(kind, what, obj)
        except ApiFailed as error:
            failed = error
        if failed and failed.status == 404:
            if not is_absent:
                log.info("%s is not installed", kind.plural)
                yield Listed(kind, ())
            has_list, is_absent, failures = False, True, 0
            pause(ABSENT_S * rng.uniform(0.5, 1.0))
            continue
        is_past_lost = failed is not None and failed.is_gone
        has_list = has_list and not is_past_lost
        # A watch that worked and ended has not failed, nor has one whose resource version expired.
        if (failed is None or is_past_lost) and (heard or clock() - began >= SHORT_S):
            failures = lost = 0
            continue
        # A server that says so is well again: what failed before is over, and the list should not wait for long.
        lost += is_past_lost
        failures = lost if is_past_lost else failures + 1
        if failed:
            log.warning("following %s, failure %d: %s", kind.plural, failures, failed)
        wait_s = min(LONGEST_S, FIRST_S * 2 ** min(failures - 1, 16)) * rng.uniform(0.5, 1.0)
        pause(max(wait_s, failed.retry_after_s if failed else 0.0))


def _usable(version: str) -> str:
    """Return a resource version to watch from: "0" would mean any past the server likes."""
    return "" if version == "0" else version


class Watcher:
    """Follows one kind in a thread of its own and hands what it learns to `sink`, in order.

    `sink` runs in that thread and must not block for long. Once `is_synced`, it has been given the first list.
    """

    def __init__(
        self, api: Api, kind: ObjectKind, sink: Callable[[News], None], *, rng: random.Random, labels: str = ""
    ) -> None:
        self._api, self._kind, self._sink, self._rng, self._labels = api, kind, sink, rng, labels
        self._stop, self._synced, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._stream: Iterator[Event] | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{kind.plural}", daemon=True)
        self.failure: Exception | None = None
        """A bug that ended the thread: who reads must not go on with a picture that nobody updates."""

    def start(self) -> Watcher:
        """Start the thread."""
        self._thread.start()
        return self

    @property
    def is_synced(self) -> bool:
        """Whether the first list was handed over, and the thread still follows."""
        return self._synced.is_set() and self.failure is None

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread: at once where it waits for an event, else as soon as its request is answered."""
        self._stop.set()
        with self._lock:
            self._close()
        self.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _opened(self, stream: Iterator[Event]) -> None:
        with self._lock:
            self._stream = stream
            if self._stop.is_set():
                self._close()

    def _close(self) -> None:
        if close := getattr(self._stream, "close", None):
            close()

    def _run(self) -> None:
        try:
            for news in follow(
                self._api,
                self._kind,
                clock=time.monotonic,
                pause=self._stop.wait,
                rng=self._rng,
                labels=self._labels,
                opened=self._opened,
            ):
                self._sink(news)
                self._synced.set()
        except Exception as error:
            self.failure = error
            log.exception("following %s ended", self._kind.plural)
