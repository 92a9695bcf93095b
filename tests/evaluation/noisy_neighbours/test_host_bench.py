"""What is measured on this kernel: the order, the medians, the reasons; policies as steps that are undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Reason, Trust
from strata.errors import StrataError
from strata.evaluation.noisy_neighbours import gains, neighbours
from strata.evaluation.noisy_neighbours.neighbours import NoiseTrial
from strata.evaluation.noisy_neighbours.overhead import RecordedRun, cost_of
from strata.evaluation.noisy_neighbours.policies import POLICIES, NoiseScenario, PolicyMissing
from strata.evaluation.noisy_neighbours.session import TooSlow
from strata.evaluation.noisy_neighbours.turns import Patience, turns
from strata.host.analysis.findings.finding import Finding, Severity, predicted_gain, without
from strata.host.apply.act import apply
from strata.host.apply.journal import opened
from strata.host.apply.machine import KernelFiles
from strata.host.apply.policy import load
from strata.host.apply.undo import undo
from strata.host.machine.cpus import Cpu, Cpus
from strata.host.machine.kernel import Kernel
from strata.host.policy.step import Step
from tests.host.builders import thread
from tests.host.pretend_kernel import Kernel as Pretend
from tests.host.traces import IDLE, Text

JOB = "/sys/fs/cgroup/job"
FULL = Kernel("/sys/fs/cgroup", frozenset({"cpu", "cpuset"}), has_cpu_idle=True, memory_nodes=(0,))
SCENE = NoiseScenario(
    (0, 1),
    thread(50, "trainer", cgroup="/job", start_ticks=5),
    tuple(thread(tid, "noise", cgroup="/job", start_ticks=5) for tid in (51, 52)),
    Cpus((Cpu(0), Cpu(1))),
    FULL,
)


def test_things_are_tried_forwards_and_backwards_in_turn():
    assert "".join(turns("AB", 3)) == "ABBAAB"


def test_ctrl_c_ends_what_is_within_and_is_remembered():
    patience = Patience()
    with patience:
        raise KeyboardInterrupt
    with patience:
        pass
    assert patience.is_over
    with pytest.raises(ValueError, match="other"), Patience():
        raise ValueError("other")


class Pretended(Pretend):
    """A kernel with the scenario's threads in one job."""

    def __init__(self) -> None:
        super().__init__()
        for one in (SCENE.trainer, *SCENE.noise):
            path = f"/proc/{one.pid}/task/{one.tid}"
            there = {("nice", path): "0", ("affinity", path): "0-1", ("scheduler", path): "OTHER 0"}
            self.state.update({**there, ("attach", str(one.tid)): f"{JOB}/cgroup.threads"})

    def _set(self, act, path, value):
        super()._set(act, path, value)
        if act == "mkdir":  # what the kernel puts into a new cgroup
            files = {"cgroup.type": "domain", "cpu.weight": "100", "cpu.idle": "0", "cpuset.cpus": ""}
            self.state.update({("write", f"{path}/{name}"): said for name, said in files.items()})


@pytest.mark.parametrize("policy", list(POLICIES))
def test_each_policy_is_steps_that_apply_takes_and_undoes(policy, tmp_path):
    kernel = Pretended()
    before, steps = dict(kernel.state), tuple(POLICIES[policy](SCENE))
    with opened(tmp_path / "state") as journal:
        assert {one.result for one in apply(steps, kernel, journal)} <= {"done", "already"}
        assert (kernel.state == before) == (not steps)
        undo(kernel, journal)
    assert kernel.state == before
    if policy != "fifo":  # no file may ask for real-time priority
        file = tmp_path / "steps.json"
        file.write_text(json.dumps({"steps": [one.to_dict() for one in steps]}))
        assert load(str(file)) == steps


@pytest.mark.parametrize(
    ("policy", "scenario", "reason"),
    [
        ("weight", replace(SCENE, kernel=Kernel()), "not mounted"),
        ("cpuset", replace(SCENE, kernel=replace(FULL, controllers=frozenset({"cpu"}))), "no controller cpuset"),
        ("affinity", replace(SCENE, on=(0,)), "one CPU"),
    ],
)
def test_what_a_machine_has_not_is_said(policy, scenario, reason):
    with pytest.raises(PolicyMissing, match=reason):
        tuple(POLICIES[policy](scenario))


def test_a_threads_scheduling_policy_comes_and_goes_on_this_kernel(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        step = Step("scheduler", f"/proc/{child.pid}/task/{child.pid}", "BATCH 0", "", "rest")
        with opened(tmp_path) as journal:
            apply([step], KernelFiles(), journal)
            assert os.sched_getscheduler(child.pid) == os.SCHED_BATCH
            undo(KernelFiles(), journal)
        assert os.sched_getscheduler(child.pid) == os.SCHED_OTHER


WAITS = {"quiet": [1.0, 3.0, 2.0], "quiet again": [2.0, 3.0, 4.0], "eevdf": [20.0, 10.0, 60.0]}


def tried(names, rounds=3):
    left = {name: list(waits) for name, waits in WAITS.items()}
    calls = []

    def trial(name):
        calls.append(name)
        if name == "weight":
            raise PolicyMissing("no cgroups")
        if name == "fifo":
            raise StrataError("no rights")
        if not left[name]:
            raise KeyboardInterrupt
        return NoiseTrial(left[name].pop(0), 0.25)

    return neighbours.measure(rounds, patience=Patience(), trial=trial, policies=names), calls


def test_rows_are_medians_beside_quiet_ones_and_equal_runs_give_the_floor():
    table, _ = tried(("quiet", "quiet again", "eevdf"))
    quiet, again, eevdf = table.to_dict()
    assert (quiet["wait_ms_mean"], quiet["ratio_to_quiet"]) == (2.0, 1.0)
    assert (again["wait_ms_mean"], eevdf["wait_ms_mean"], eevdf["ratio_to_quiet"]) == (3.0, 20.0, 10.0)
    assert (eevdf["wait_ms_low"], eevdf["wait_ms_high"], eevdf["trials"]) == (10.0, 60.0, 3)
    assert table.floor("quiet") == {"ratio": 2.0, "low": 1.0, "high": 2.0}
    assert table.floor("eevdf") is None
    assert table.others == 0.25


def test_a_policy_that_is_not_to_be_had_is_tried_once_and_has_no_number():
    table, calls = tried(("quiet", "weight", "fifo"))
    _, weight, fifo = table.to_dict()
    assert (weight["wait_ms_mean"], weight["ratio_to_quiet"], weight["trust"]) == (None, None, None)
    assert (weight["reason"], fifo["reason"]) == ("no cgroups", "no rights")
    assert (calls.count("weight"), calls.count("fifo")) == (1, 1)


def test_a_trial_that_took_too_long_is_left_out_and_said_where_there_is_no_other():
    outcomes = iter([TooSlow("busy"), NoiseTrial(4.0), TooSlow("busy"), TooSlow("busy")])

    def trial(name):
        one = next(outcomes)
        if isinstance(one, TooSlow):
            raise one
        return one

    table = neighbours.measure(2, patience=Patience(), trial=trial, policies=("nice", "fifo"))
    assert [(row.waits_ms, row.reason) for row in table.rows] == [([], "busy"), ([4.0], "")]


def test_ctrl_c_keeps_the_trials_that_are_done():
    table, _ = tried(("quiet",), rounds=9)
    assert table.of("quiet").waits_ms == WAITS["quiet"]


def test_what_recording_costs_once_is_told_from_what_an_event_costs():
    rounds = [
        {
            "plain": RecordedRun(0.2),
            "recorded": RecordedRun(0.2 + slower, 0.3 + 0.4, 101_000, 100_000, lost=7),
            "empty": RecordedRun(0.0, 0.3, 1_000),
        }
        for slower in (0.1, 0.2, 0.9)
    ]
    cost = cost_of("perf", rounds)
    assert cost.recorder_s_per_mevents == pytest.approx(4.0)
    assert cost.slowdown_s_per_mevents == pytest.approx(2.0)
    assert cost.cpu_s_per_mevents == pytest.approx(6.0)
    assert (cost.once_s, cost.lost, cost.to_dict()["trust"]) == (0.3, 21, "measured")


@given(st.floats(0.0, 0.98))
def test_without_its_cost_the_same_work_takes_the_rest_of_the_time(share):
    assert (1 - share) * (1 + without(share)) == pytest.approx(1.0)
    assert without(share) <= without(min(1.0, share + 0.01)) <= without(1.0)


def found(token="cpu-wait", *, thread="trainer", share=0.2):
    return Finding(Reason(token), Severity.WARNING, "", 1.0, 1.0, thread, 1, "hog", share)


def test_a_gain_is_predicted_where_a_thread_loses_time():
    assert predicted_gain(found()) == (pytest.approx(0.25), Trust.ANALYTIC)
    assert predicted_gain(found("crosses-numa")) == (pytest.approx(0.25), Trust.ASSUMED)
    assert predicted_gain(found(thread="")) is None
    assert predicted_gain(found(share=0.0)) is None


def test_gains_are_pairs_of_what_was_seen_without_and_with_a_policy():
    def trial(fault, policy):
        if policy == "affinity":
            raise PolicyMissing("one CPU")
        return gains.TrainerShares(0.2, 0.6, 1.5) if policy == "none" else gains.TrainerShares(0.3, 0.4, 0.7)

    said = {(one.fault, one.policy): one.to_dict() for one in gains.measure(2, patience=Patience(), trial=trial)}
    nice = said["cpu-hogs", "nice"]
    assert (nice["predicted"], nice["achieved"]) == (1.5, pytest.approx(0.5))
    assert (nice["waited_before"], nice["waited_after"]) == (0.6, 0.4)
    lost = said["cpu-hogs", "affinity"]
    assert (lost["predicted"], lost["achieved"], lost["reason"]) == (None, None, "one CPU")
    assert "none" not in {policy for _, policy in said}


def test_a_recording_is_looked_at_from_when_the_trainer_first_runs(tmp_path):
    trainer, hog = (gains.TRAINER, 11), ("noise", 12)
    text = Text().switch(1, 0, IDLE, hog).switch(30, 0, hog, trainer, "R").switch(40, 0, trainer, hog)
    cut = gains.within(text.switch(90, 0, hog, IDLE).trace(tmp_path), 10_000_000, 80_000_000)
    assert [int(ns) for ns in cut.events.time_ns] == [30_000_000, 40_000_000]


@pytest.fixture
def real_time():
    """Skip where the kernel gives no real-time priority, as in some control groups."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pytest.skip("no real-time priority is to be had here")
    os.sched_setscheduler(0, *before)


@pytest.mark.real("tracing")
@pytest.mark.xdist_group("tracing")
@pytest.mark.usefixtures("real_time")
def test_what_a_policy_wins_on_this_kernel_is_more_than_nothing_and_less_than_predicted():
    # Real-time priority, since it wins however many others are at work here.
    before = [gains.one_trial("cpu-hogs", "none", seconds=0.7) for _ in range(2)]
    after = [gains.one_trial("cpu-hogs", "fifo", seconds=0.7) for _ in range(2)]
    gain = gains.PolicyGain("cpu-hogs", "fifo", tuple(before), tuple(after))
    assert gain.achieved is not None
    assert gain.achieved > 0
    assert max(one.waited for one in after) < min(one.waited for one in before)
    # A round of the trainer takes as long as it runs, sleeps and waits; only waits were predicted to go.
    noise = max(one.ran for one in before) / min(one.ran for one in before) - 1
    assert gain.achieved <= max(one.predicted for one in before) * (1 + noise) + noise


@pytest.mark.real("tracing")
@pytest.mark.xdist_group("tracing")
@pytest.mark.usefixtures("real_time")
def test_a_trial_of_neighbours_on_this_kernel_counts_waits_and_leaves_no_trace(tmp_path):
    policy = neighbours.one_trial("batch", window_s=0.2)
    assert policy.wait_ms > neighbours.one_trial("fifo", window_s=0.2).wait_ms
    assert 0 <= policy.others <= 1
    assert list(tmp_path.glob("**/undo.jsonl")) == []
