"""Two NUMA nodes with a cache each: moves between them are found, a policy for a GPU on one loads."""

from __future__ import annotations

import signal

import pytest

from tests.host.vm import guest as virtual
from tests.host.vm import guest_side
from tests.host.vm.managed_scx import POLICY, Managed, work, write_policy

TRACE = "/root/trace.txt.gz"


@pytest.fixture(scope="module")
def guest(files):
    """A machine with two nodes of two CPUs each."""
    with virtual.Guest(files, cpus=4, nodes=2, is_traced=True) as machine:
        yield machine


@pytest.fixture(scope="module")
def report(guest):
    """What is said of a thread that goes from node to node with each turn, and of one that stays."""
    pid = work(guest, "trainer_main:300:1000:0:2", "st-launch:300:2000:1")
    recorded = guest.strata("host", "record", "--how", "tracefs", "--seconds", "5", "-o", TRACE)
    assert recorded["code"] == 0, recorded["err"]
    found = guest.json("host", "report", TRACE)
    guest.call(guest_side.end, pid, 9)
    return found


def test_the_trace_is_whole(report):
    assert (report["unparsed"], report["lost"]) == (0, 0)
    assert {"trainer_main", "st-launch"} <= {thread["comm"] for thread in report["threads"]}


def test_moves_between_the_nodes_are_found_for_the_thread_that_moves_alone(report):
    [finding] = [finding for finding in report["findings"] if finding["token"] == "crosses-numa"]
    assert finding["thread"] == "trainer_main"
    assert not [finding for finding in report["findings"] if finding["token"] == "crosses-llc"]


def test_the_policy_keeps_critical_threads_beside_their_gpu_and_loads(guest):
    guest.call(guest_side.fake_gpu, 1)
    trainer = work(guest, "trainer_main:500:1500", "st-load:1000:3000", holding="/dev/nvidia0")
    layers = write_policy(guest)
    linted = guest.strata("host", "lint", POLICY)
    assert linted["code"] == 0, linted["out"]
    assert layers[0]["kind"]["Grouped"]["nodes"] == [1]
    manager = Managed(guest).attached()
    assert guest.call(guest_side.waits, trainer, 1.0)["run_ms"] > 0
    assert manager.ended(signal.SIGINT) == 0, manager.said
