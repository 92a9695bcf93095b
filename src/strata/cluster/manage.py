"""The controller as a process: threads that hear, two that decide, the Lease, and a server for who asks."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.cluster.act import Actor
from strata.cluster.book import Book
from strata.cluster.checkpoint_files import newest_complete, path_of
from strata.cluster.controller import Controller
from strata.cluster.healing import Drain, Policy
from strata.cluster.kube.api import Api
from strata.cluster.kube.client import connect
from strata.cluster.kube.lease import Candidate, Elector
from strata.cluster.live import Live, steady_clock
from strata.cluster.manager import Manager
from strata.cluster.pages import make_pages
from strata.cluster.queued import Queued
from strata.cluster.schema import bundled_profiles
from strata.cluster.window import Window
from strata.net.server import serve

LEASE: Final = "strata-controller"
_LEASE_TIMEOUT_S: Final = 3.0
_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Ways:
    """Connections to the API server, one for each use, so that no slow answer to one is waited for by another."""

    lease: Api
    placing: Api
    healing: Api


def ways_to(kubeconfig: str | None) -> Ways:
    """Return connections. Nothing is asked yet. Raises as `connect`, MissingPart without a cluster."""
    lease = connect(kubeconfig=kubeconfig, timeout_s=_LEASE_TIMEOUT_S)
    return Ways(lease, connect(kubeconfig=kubeconfig), connect(kubeconfig=kubeconfig))


def run(
    listener: socket.socket,
    ways: Ways,
    *,
    namespace: str,
    identity: str | None,
    drain: Drain,
    isolate_at_most: float,
    slow_window: float,
    checkpoints: Path | None,
    kueue: bool,
) -> None:
    """Run until SIGTERM or SIGINT. Raises what ended a deciding thread."""
    me = identity or f"{platform.node()}-{uuid.uuid4().hex[:8]}"
    rng = random.Random()

    def actor(of: Api) -> Actor:
        return Actor(of, clock=time.time, new_id=lambda: uuid.uuid4().hex[:12], instance=me)

    def checkpoint_of(folder: str) -> str:
        if checkpoints is None:
            return ""
        with live.aside():  # a file system may take its time
            return path_of(folder, newest_complete(checkpoints, folder, now_s=time.time()))

    elector = Elector(ways.lease, Candidate(LEASE, namespace, me), lambda leads: None, rng=rng)
    clock = steady_clock()
    live = Live(ways.placing, Book(bundled_profiles()), rng=rng, clock=clock)
    queued = Queued() if kueue else None
    manager = Manager(
        live,
        actor(ways.healing),
        actor(ways.placing),
        Controller(checkpoint_of=checkpoint_of),
        is_leader=lambda: elector.is_leader,
        policy=Policy(drain=drain, share=isolate_at_most),
        window=Window(slow_window),
        queued=queued,
        clock=clock,
    )
    ended: list[BaseException] = []

    def decide(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # told below; a controller that does not decide must not hold the Lease
            ended.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

    deciding = [
        threading.Thread(target=decide, args=(work,), name=work.__name__, daemon=True)
        for work in (manager.hear, manager.let_go)
    ]
    live.start(in_thread=False)
    if queued:
        queued.start(ways.placing, rng=rng)
    elector.start()
    for thread in deciding:
        thread.start()
    frame = make_pages(manager.meters.render, requests=manager.meters.http, unready=live.unready)
    with contextlib.ExitStack() as last:
        last.callback(live.stop)
        if queued:
            last.callback(queued.stop)
        last.callback(elector.stop)  # what was begun is ended first, while it still leads
        for thread in deciding:
            last.callback(thread.join, _JOIN_S)
        last.callback(manager.stopped.set)
        serve(frame, listener, drain_s=1.0)
    if ended:
        raise ended[0]
