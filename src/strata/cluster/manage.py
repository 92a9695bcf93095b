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
from strata.server import serve

LEASE: Final = "strata-controller"
_LEASE_TIMEOUT_S: Final = 3.0
_JOIN_S: Final = 5.0


def run(
    listener: socket.socket,
    *,
    namespace: str,
    identity: str | None,
    drain: Drain,
    isolate_at_most: float,
    slow_window: float,
    checkpoints: Path | None,
    kueue: bool,
    kubeconfig: str | None,
) -> None:
    """Run until SIGTERM or SIGINT. Raises what ended a deciding thread, and MissingPart without a cluster."""
    me = identity or f"{platform.node()}-{uuid.uuid4().hex[:8]}"
    rng = random.Random()

    def actor(of: Api) -> Actor:
        return Actor(of, clock=time.time, new_id=lambda: uuid.uuid4().hex[:12], instance=me)

    def checkpoint_of(folder: str) -> str:
        if checkpoints is None:
            return ""
        with live.aside():  # a file system may take its time
            return path_of(folder, newest_complete(checkpoints, folder, now_s=time.time()))

    elector = Elector(
        connect(kubeconfig=kubeconfig, timeout_s=_LEASE_TIMEOUT_S),
        Candidate(LEASE, namespace, me),
        lambda leads: None,
        rng=rng,
    )
    # Of its own, so that no slow answer to one of them is waited for by the other.
    api, healing_api, clock = connect(kubeconfig=kubeconfig), connect(kubeconfig=kubeconfig), steady_clock()
    live = Live(api, Book(bundled_profiles()), rng=rng, clock=clock)
    queued = Queued() if kueue else None
    manager = Manager(
        live,
        actor(healing_api),
        actor(api),
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
        queued.start(api, rng=rng)
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
