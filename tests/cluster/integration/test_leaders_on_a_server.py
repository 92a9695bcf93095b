"""Two processes, one Lease on a real API server, and one of them killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from strata.cluster.api.kinds import LEASE
from strata.cluster.api.lease import DURATION_S
from tests.support.real_processes import LIMIT_S, until

ELECTOR = """
import random, sys, threading
from strata.cluster.api.client import connect
from strata.cluster.api.lease import LeaseCandidate, Elector

api = connect(kubeconfig=sys.argv[1], timeout_s=3.0)
me = LeaseCandidate("strata", sys.argv[2], sys.argv[3])
elector = Elector(api, me, lambda leads: print("leads" if leads else "lost", flush=True), rng=random.Random())
elector.start()
sys.stdin.read()
elector.stop(10.0)
"""


@pytest.fixture
def candidate(plane, namespace):
    with ExitStack() as running:

        def start(name):
            process = running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ELECTOR, str(plane.kubeconfig()), namespace, name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            running.callback(process.kill)
            return process

        yield start


def test_a_killed_leader_is_followed_after_its_lease_and_a_stopped_one_at_once(api, namespace, candidate):
    def spec():
        return (api.get(LEASE, "strata", namespace) or {}).get("spec", {})

    first = candidate("first")
    assert first.stdout.readline() == "leads\n"
    second = candidate("second")
    before = spec()
    assert (before["holderIdentity"], before["leaseTransitions"]) == ("first", 0)
    until(lambda: spec()["renewTime"] > before["renewTime"], lambda: "a renewal")
    first.send_signal(signal.SIGKILL)
    assert second.stdout.readline() == "leads\n"
    assert first.stdout.read() == "", "it was killed as the leader, and never lost the Lease"
    taken = spec()
    assert (taken["holderIdentity"], taken["leaseTransitions"]) == ("second", 1)
    assert taken["leaseDurationSeconds"] == DURATION_S

    third = candidate("third")
    second.stdin.close()
    assert second.stdout.readline() == "lost\n"
    assert second.wait(LIMIT_S) == 0
    assert third.stdout.readline() == "leads\n"
    assert spec()["leaseTransitions"] == 2
