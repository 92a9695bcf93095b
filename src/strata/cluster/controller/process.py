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

from strata.cluster.api.applier import Applier
from strata.cluster.api.client import Api, connect
from strata.cluster.api.kinds import KUEUE
from strata.cluster.api.lease import Elector, LeaseCandidate
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.cache.cache import WATCHED, ClusterCache
from strata.cluster.cache.informer import Informer, steady_clock
from strata.cluster.controller.checkpoint import CheckpointSearch
from strata.cluster.controller.checkpoint_files import newest_complete, path_of
from strata.cluster.controller.controller import CyclePolicy
from strata.cluster.controller.healing import Drain, HealingPolicy
from strata.cluster.controller.manager import Manager
from strata.cluster.controller.sub_health import Window
from strata.cluster.health_pages import make_pages
from strata.cluster.kueue.admission_checks import AdmissionChecks
from strata.net.server import serve

LEASE: Final = "strata-controller"
_LEASE_TIMEOUT_S: Final = 3.0
_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ApiClients:
    """Connections to the API server, one for each use, so that no slow answer to one is waited for by another."""

    lease: Api
    placing: Api
    healing: Api


def connect_clients(kubeconfig: str | None) -> ApiClients:
    """Return connections. Nothing is asked yet. Raises as `connect`, MissingPart without a cluster."""
    lease = connect(kubeconfig=kubeconfig, timeout_s=_LEASE_TIMEOUT_S)
    return ApiClients(lease, connect(kubeconfig=kubeconfig), connect(kubeconfig=kubeconfig))


def run(
    listener: socket.socket,
    clients: ApiClients,
    *,
    namespace: str,
    identity: str | None,
    drain: Drain,
    isolate_at_most: float,
    slow_window: float,
    checkpoints: Path | None,
    defragment: bool,
    kueue: bool,
) -> None:
    """Run until SIGTERM or SIGINT. Raises what ended a deciding thread."""
    me = identity or f"{platform.node()}-{uuid.uuid4().hex[:8]}"
    rng = random.Random()

    def applier(of: Api) -> Applier:
        return Applier(of, clock=time.time, new_id=lambda: uuid.uuid4().hex[:12], instance=me)

    def search(folder: str) -> CheckpointSearch:
        return newest_complete(checkpoints, folder, now_s=time.time()) if checkpoints else CheckpointSearch(None)

    elector = Elector(clients.lease, LeaseCandidate(LEASE, namespace, me), lambda leads: None, rng=rng)
    clock = steady_clock()
    watched = (*WATCHED, *KUEUE) if kueue else WATCHED
    informer = Informer(clients.placing, ClusterCache(bundled_profiles()), watched=watched, rng=rng, clock=clock)
    manager = Manager(
        informer,
        applier(clients.healing),
        applier(clients.placing),
        is_leader=lambda: elector.is_leader,
        policy=HealingPolicy(drain=drain, share=isolate_at_most),
        window=Window(slow_window),
        checkpoint_of=lambda folder: path_of(folder, search(folder)),
        saved_s=lambda folder: newest.written_s if (newest := search(folder).newest) else None,
        cycle_policy=CyclePolicy(does_make_room=defragment),
        admission_checks=AdmissionChecks() if kueue else None,
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
    informer.start(in_thread=False)
    elector.start()
    for thread in deciding:
        thread.start()
    frame = make_pages(manager.meters.render, requests=manager.meters.http, unready=informer.unready)
    with contextlib.ExitStack() as last:
        last.callback(informer.stop)
        last.callback(elector.stop)  # what was begun is ended first, while it still leads
        for thread in deciding:
            last.callback(thread.join, _JOIN_S)
        last.callback(manager.stopped.set)
        serve(frame, listener, drain_s=1.0)
    if ended:
        raise ended[0]
