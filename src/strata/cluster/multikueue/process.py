"""The dispatcher as a process: the manager cluster and each worker are followed, one thread decides, one leads."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Final

from strata.cluster.api import kinds
from strata.cluster.api.applier import Applier, Failure
from strata.cluster.api.client import Api, connect
from strata.cluster.api.kinds import moment
from strata.cluster.api.lease import Elector, LeaseCandidate
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.cache.cache import WATCHED, ClusterCache
from strata.cluster.cache.informer import Informer, steady_clock
from strata.cluster.health_pages import make_pages
from strata.cluster.multikueue.dispatcher import Dispatcher
from strata.cluster.multikueue.worker_clusters import WorkerCluster
from strata.fleet.fleet import Fleet
from strata.net.metrics import Counter, Registry, render
from strata.net.server import serve

LEASE: Final = "strata-dispatcher"
MANAGED: Final = (
    kinds.WORKLOAD,
    kinds.ADMISSION_CHECK,
    kinds.MULTIKUEUE_CONFIG,
    kinds.MULTIKUEUE_CLUSTER,
    kinds.COMPUTE_CLAIM,
    *kinds.SUSPENDABLE,
)
"""What is followed in the manager cluster."""
OF_WORKERS: Final = (*WATCHED, kinds.WORKLOAD)
_EVERY_S: Final = 1.0
_JOIN_S: Final = 5.0

log = logging.getLogger(__name__)


def run(
    listener: socket.socket,
    manager: Api,
    lease: Api,
    *,
    fleet: Fleet,
    known: Mapping[str, WorkerCluster],
    workers_kubeconfig: str | None,
    namespace: str,
    identity: str | None,
) -> None:
    """Run until SIGTERM or SIGINT. Raises what ended the deciding thread."""
    me = identity or f"{platform.node()}-{uuid.uuid4().hex[:8]}"
    rng, clock = random.Random(), steady_clock()
    registry = Registry()
    requests = Counter("strata_http_requests_total", "HTTP requests by status.", ["code"], registry=registry)
    elector = Elector(lease, LeaseCandidate(LEASE, namespace, me), lambda leads: None, rng=rng)

    def failed(failure: Failure) -> None:
        log.warning("%s: %s (%s)", failure.action.ref, failure.error, failure.what)

    applier = Applier(manager, clock=time.time, new_id=lambda: uuid.uuid4().hex[:12], instance=me)
    applier.may_act, applier.failed = (lambda: elector.is_leader), failed
    informer = Informer(manager, ClusterCache(), watched=MANAGED, rng=rng, clock=clock)
    workers, of_workers = {}, []
    for name, cluster in known.items():
        api = connect(kubeconfig=cluster.kubeconfig or workers_kubeconfig, context=name)
        of_workers.append(api)
        cache = ClusterCache(bundled_profiles())
        workers[name] = Informer(api, cache, watched=OF_WORKERS, rng=rng, clock=clock)
    writes_claims = manager.serves(kinds.COMPUTE_CLAIM)
    stopped, ended = threading.Event(), list[BaseException]()

    def decide() -> None:
        dispatcher: Dispatcher | None = None
        try:
            while not stopped.wait(_EVERY_S):
                if not elector.is_leader:
                    dispatcher = None  # what it remembers, another goes on from
                elif not informer.unready():
                    dispatcher = dispatcher or Dispatcher(fleet, known, workers, writes_claims=writes_claims)
                    now_s = clock()
                    dispatcher.cycle(
                        informer.cache, now_s, apply=applier.do, stamp=moment(now_s), lock=informer.lock
                    )
        except BaseException as error:  # told below; who does not decide must not hold the Lease
            ended.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

    deciding = threading.Thread(target=decide, name="dispatch", daemon=True)
    with contextlib.ExitStack() as last:
        for api in (manager, lease, *of_workers):
            last.callback(api.close)
        for each in (informer, *workers.values()):
            each.start(in_thread=True)
            last.callback(each.stop)
        elector.start()
        last.callback(elector.stop)
        deciding.start()
        last.callback(deciding.join, _JOIN_S)
        last.callback(stopped.set)
        serve(
            make_pages(lambda: render(registry), requests=requests, unready=informer.unready),
            listener,
            drain_s=1.0,
        )
    if ended:
        raise ended[0]
