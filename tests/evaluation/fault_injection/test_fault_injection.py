"""The simulated kernel keeps the laws of one, and reports on it name the culprit that was there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from strata.evaluation.fault_injection.kernel import SLICE_NS, Operation, OperationKind, SimulatedKernel, Task
from strata.evaluation.fault_injection.live import FaultMissing, settle
from strata.evaluation.fault_injection.scenarios import LENGTH_NS, InjectedFault, scenario
from strata.evaluation.fault_injection.score import TRAINER, Trial, TrialOutcome, outcome_of, score
from strata.evaluation.fault_injection.trials import TRIES, live, live_trial, simulated
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from strata.host.trace.events import EventKind
from tests.host.traces import IDLE, Text, read


def seen(folder, raw: bytes) -> TraceView:
    return TraceView(read(raw, folder), critical=(TRAINER,))


def hogs(num_cpus: int, *pins: int | None) -> bytes:
    kernel = SimulatedKernel(num_cpus)
    for i, pin in enumerate(pins):
        cpus = frozenset() if pin is None else frozenset({pin})
        kernel.spawn(Task(f"hog-{i}", iter([Operation(OperationKind.RUN, 10**12)]), cpus))
    return kernel.run(300_000_000)


def share(view: TraceView, name: str) -> float:
    (task,) = [task for task in range(len(view.tasks)) if view.name(task) == name]
    return float(view.ran_ns[task]) / view.wall_ns


def test_threads_that_only_compute_share_a_cpu_evenly_to_a_slice(tmp_path):
    view = seen(tmp_path, hogs(1, None, None, None))
    assert [share(view, f"hog-{i}") for i in range(3)] == pytest.approx([1 / 3] * 3, abs=SLICE_NS / view.wall_ns)


def test_a_pinned_thread_stays_and_others_move_away_from_it(tmp_path):
    view = seen(tmp_path, hogs(2, 0, 0, None))
    assert share(view, "hog-2") == pytest.approx(1.0, abs=0.01)
    assert share(view, "hog-0") == pytest.approx(0.5, abs=0.02)
    homes = {view.name(int(task)): set() for task in view.on_cpu.task if task >= 0}
    for task, cpu in zip(view.on_cpu.task.tolist(), view.on_cpu.cpu.tolist(), strict=True):
        if task >= 0:
            homes[view.name(task)].add(cpu)
    assert homes == {"hog-0": {0}, "hog-1": {0}, "hog-2": {1}}


@pytest.mark.parametrize("fault", list(InjectedFault))
def test_a_simulated_trace_is_a_trace_and_no_cpu_idles_while_a_thread_waits_for_any(fault, tmp_path):
    trial, raw = scenario(fault, seed=3)
    assert scenario(fault, seed=3) == (trial, raw)
    view = seen(tmp_path, raw)
    assert (view.trace.unparsed, view.trace.backwards, view.trace.num_events) == (0, 0, raw.count(b"\n"))
    # A CPU runs one thread at a time, each switch leaves whom the last one brought.
    events = view.trace.events
    for cpu in view.on_cpu.cpus.tolist():
        switches = [i for i in events.of(EventKind.SWITCH).tolist() if events.cpu[i] == cpu]
        assert all(events.tid[after] == events.other[before] for before, after in pairwise(switches))
    assert int(view.ran_ns.sum()) <= len(view.on_cpu.cpus) * LENGTH_NS
    # Blame sums to the waits.
    every = np.arange(len(view.delays))
    wait, _, ns = view.attribution.shares(every, every)
    assert np.array_equal(np.bincount(wait, ns, len(every)), view.delays.length_ns)
    if fault is not InjectedFault.PINNED_HOG:
        idle = sum(view.culprits(np.arange(len(view.delays))).get(name, 0.0) for name in ("(idle)", "(unknown)"))
        assert idle <= 0.1 * max(float(view.delays.length_ns.sum()) / 1e6, 20)


def test_reports_name_the_culprit_of_every_simulated_fault_and_no_one_of_a_quiet_host():
    found = simulated(1)
    assert found.to_dict() == {
        "precision": 1.0,
        "recall": 1.0,
        "runs": 7,
        "disturbed": 0,
        "skipped": [],
        "missed": [],
    }


@pytest.mark.parametrize(
    ("fault", "token"),
    [
        (InjectedFault.CPU_HOGS, "cpu-preempted"),
        (InjectedFault.FORK_STORM, "fork-storm"),
        (InjectedFault.YIELD_STORM, "yield-storm"),
        (InjectedFault.PIPE_STORM, "oversubscription"),
        (InjectedFault.PINNED_HOG, "pin-conflict"),
        (InjectedFault.IRQ_LOAD, "irq-time"),
    ],
)
def test_each_fault_is_called_by_its_name(fault, token, tmp_path):
    trial, raw = scenario(fault, seed=1)
    outcome = outcome_of(trial, report_of(seen(tmp_path, raw)))
    assert token in outcome.tokens
    assert outcome.is_right


def test_the_thread_that_comes_next_most_often_is_not_the_culprit(tmp_path):
    # What the score can tell apart: telemetry pushes the trainer out, for a moment; the hog keeps the CPU.
    view = seen(tmp_path, scenario(InjectedFault.PINNED_HOG, seed=1)[1])
    held = view.culprits(view.waits_by(view.critical_tasks[0]))
    assert next(iter(held)) != "telemetry"


def outcome(named: str, *injected: str, others: float = 0.0) -> TrialOutcome:
    return TrialOutcome(Trial("t", 0, frozenset(injected)), named, ("cpu-wait",) if named else (), others, 0.3)


def test_precision_falls_with_wrong_names_and_recall_with_missing_ones():
    right, wrong, missed = outcome("a", "a", "b"), outcome("x", "a"), outcome("", "a")
    alarm = TrialOutcome(Trial("quiet", 0), "", ("trace-lost",))
    assert (score([right]).precision, score([right]).recall) == (1.0, 1.0)
    assert (score([right, wrong]).precision, score([right, wrong]).recall) == (0.5, 0.5)
    assert (score([right, missed]).precision, score([right, missed]).recall) == (1.0, 0.5)
    assert (score([right, alarm]).precision, score([right, alarm]).recall) == (0.5, 1.0)
    assert (score([outcome("")]).precision, score([outcome("")]).recall) == (1.0, 1.0)
    assert [one["named"] for one in score([right, wrong]).to_dict()["missed"]] == ["x"]


def test_a_run_in_which_others_had_the_cpus_for_longer_is_counted_and_not_scored():
    found = score(
        [outcome("compiler", "b", others=0.4), outcome("x", "a", others=0.4), outcome("a", "a", others=0.2)]
    )
    assert (found.precision, len(found.outcomes), found.disturbed) == (1.0, 1, 2)
    assert score([outcome("x", "a", others=0.2)]).recall == 0.0
    assert score([outcome("x", "a", others=0.4)]).precision is None


@pytest.mark.parametrize("priority", [120, 111, 110, 49])
def test_a_quiet_run_is_made_again_for_who_has_the_cpus_whatever_the_priority(priority, tmp_path):
    def record(fault: InjectedFault, *, seed: int, trace: Path) -> Trial:
        text = Text().switch(0, 0, IDLE, (TRAINER, 11)).switch(50, 0, (TRAINER, 11), ("cargo", 12), "R")
        text.switch(100, 0, ("cargo", 12), (TRAINER, 11), "R").switch(200, 0, (TRAINER, 11), IDLE)
        cargo = "next_comm=cargo next_pid=12 next_prio="
        lines = "\n".join(text.lines).replace(f"{cargo}120", f"{cargo}{priority}")
        trace.write_text(lines + "\n")
        return Trial(fault, seed)

    found = live_trial(InjectedFault.QUIET, seed=1, trace=tmp_path / "t", record=record)
    assert (found.tries, found.is_disturbed, found.is_right) == (TRIES, True, False)


def test_a_quiet_run_may_find_that_the_hypervisor_takes_its_time():
    stolen = TrialOutcome(Trial("quiet", 0), "", ("steal-time",))
    assert stolen.is_right
    assert score([stolen]).precision == 1.0
    assert not TrialOutcome(Trial("quiet", 0), "", ("steal-time", "cpu-wait")).is_right


def recorded(*injected: str):
    """A recorder of the same simulated hogs each time, who are said to be these, one trial after the other."""
    said = iter(injected)

    def record(fault: InjectedFault, *, seed: int, trace: Path) -> Trial:
        if fault is InjectedFault.IRQ_LOAD:
            raise FaultMissing("flood: Operation not permitted")
        trial, raw = scenario(fault, seed=seed)
        trace.write_bytes(raw)
        name = next(said, "")
        return Trial(fault, seed, frozenset({name})) if name else trial

    return record


def test_a_trial_in_which_the_culprit_was_not_who_had_the_cpus_is_made_again(tmp_path):
    found = live_trial(
        InjectedFault.CPU_HOGS, seed=1, trace=tmp_path / "t", record=recorded(*["telemetry"] * (TRIES - 1), "")
    )
    assert (found.tries, found.is_disturbed, found.is_right) == (TRIES, False, True)
    assert score([found]).disturbed == TRIES - 1
    found = live_trial(InjectedFault.CPU_HOGS, seed=1, trace=tmp_path / "t", record=recorded(*["telemetry"] * 9))
    assert (found.tries, found.is_disturbed) == (TRIES, True)
    assert score([found]).to_dict()["disturbed"] == TRIES


def test_a_fault_that_cannot_be_made_is_said_and_not_scored():
    found = live(1, record=recorded()).to_dict()
    assert found["skipped"] == [{"fault": "irq-load", "reason": "flood: Operation not permitted"}]
    assert (found["runs"], found["recall"]) == (5, 1.0)  # in the quiet run the hog has the CPUs: it is left out


def test_where_a_trainer_was_only_born_others_do_not_disturb_it(tmp_path):
    trainer, hog, sender = (TRAINER, 11), ("hog", 12), ("sender", 13)

    def record(fault: InjectedFault, *, seed: int, trace: Path) -> Trial:
        text = Text().switch(0, 0, IDLE, trainer).switch(1, 0, trainer, sender)
        for step in range(20):
            text.wake(10.0 * step + 2, 1, trainer, by=hog).switch(10.0 * step + 6, 1, hog, trainer, "R")
            text.switch(10.0 * step + 11, 1, trainer, hog)
        trace.write_text("\n".join(text.switch(210, 0, sender, IDLE).lines) + "\n")
        return Trial(fault, seed, frozenset({"hog"}))

    found = live_trial(InjectedFault.PINNED_HOG, seed=1, trace=tmp_path / "t", record=record)
    assert (found.tries, found.is_right) == (1, True)
    assert found.others < 0.1 < found.culprit


def test_the_start_of_a_live_trace_is_left_out_but_not_what_was_lost(tmp_path):
    text = Text().switch(0, 0, IDLE, ("hog", 12))
    for step in range(1, 100):
        text.switch(10.0 * step, 0, ("hog", 12), (TRAINER, 11)).switch(
            10.0 * step + 5, 0, (TRAINER, 11), ("hog", 12)
        )
    trace = tmp_path / "trace.txt"
    trace.write_text("\n".join(["CPU:0 [LOST 7 EVENTS]", *text.lines]) + "\n")
    settle(trace, TRAINER)
    kept = trace.read_text().splitlines()
    assert kept[0] == "CPU:0 [LOST 7 EVENTS]"
    assert kept[1:] == text.lines[-len(kept) + 1 :]
    assert " 0.310000000: " in kept[1]
    settle(trace, "nobody")
    assert trace.read_text().splitlines() == kept


def test_who_keeps_a_quiet_trainer_off_the_cpu_it_then_leaves_disturbs_it(tmp_path):
    trainer, strong = (TRAINER, 11), ("realtime", 12)

    def record(fault: InjectedFault, *, seed: int, trace: Path) -> Trial:
        text = Text().switch(0, 0, IDLE, strong).switch(0, 1, IDLE, trainer)
        for step in range(1, 20):
            now = 10.0 * step
            text.switch(now, 1, trainer, IDLE).wake(now + 1, 0, trainer, by=strong)
            text.migrate(now + 3, trainer, 0, 1).switch(now + 3, 1, IDLE, trainer)
        lines = "\n".join(text.switch(200, 0, strong, IDLE).lines)
        trace.write_text(lines.replace("next_pid=12 next_prio=120", "next_pid=12 next_prio=89") + "\n")
        return Trial(fault, seed)

    found = live_trial(InjectedFault.QUIET, seed=1, trace=tmp_path / "t", record=record)
    assert (found.tokens, found.is_disturbed) == (("cpu-wait", "idle-cpu-beside"), True)
    assert found.others == pytest.approx(0.5, abs=0.01)
