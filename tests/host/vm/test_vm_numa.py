"""Two NUMA nodes with a cache each: what is recorded and said there, and what the policy makes of a GPU's node."""

from __future__ import annotations

import json

import pytest

import guest as virtual
import guest_side
from managed_scx import POLICY, Managed, work, write_policy

TRACE = "/root/trace.txt.gz"
GPU_NODE = 1


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
    [found] = [one for one in report["findings"] if one["token"] == "crosses-numa"]
    assert found["thread"] == "trainer_main"
    assert not [one for one in report["findings"] if one["token"] == "crosses-llc"]


@pytest.fixture(scope="module")
def trainer(guest):
    """A process that holds a GPU beside the second node."""
    guest.call(guest_side.fake_gpu, GPU_NODE)
    return work(guest, "trainer_main:500:1500", "st-load:1000:3000", holding="/dev/nvidia0")


def test_threads_that_hold_a_gpu_belong_to_its_node(guest, trainer):
    found = guest.json("host", "threads", "--pid", trainer)
    assert [(gpu["address"], gpu["numa_node"]) for gpu in found["gpus"]] == [("0000:3b:00.0", GPU_NODE)]
    assert {thread["numa_node"] for thread in found["threads"]} == {GPU_NODE}
    [critical] = [thread for thread in found["threads"] if thread["layer"] == "critical"]
    assert critical["name"] == "trainer_main"


def test_the_policy_keeps_critical_threads_beside_the_gpu_and_loads(guest, trainer):
    layers = write_policy(guest)
    linted = guest.strata("host", "lint", POLICY, "-o", "json")
    assert linted["code"] == 0, linted["out"]
    assert not [one for one in json.loads(linted["out"])["findings"] if one["severity"] == "error"]
    assert layers[0]["kind"]["Grouped"]["nodes"] == [GPU_NODE]
    manager = Managed(guest).attached()
    assert guest.call(guest_side.waits, trainer, 1.0)["run_ms"] > 0
    assert manager.ended(2) == 0, manager.said
