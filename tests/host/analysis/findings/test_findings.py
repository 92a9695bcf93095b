"""Every detector: a trace with the fault it is for, and one without."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.host.analysis import cpu_attribution
from strata.host.analysis import intervals as spans
from strata.host.analysis.findings import cpu_time, crowds, gaps, peers, placement, waits
from strata.host.analysis.findings.finding import Finding, Severity
from strata.host.analysis.report import DETECTORS, findings_of, report_of
from strata.host.analysis.view import TraceView
from tests.host.machine.cpus import simple
from tests.host.traces import IDLE, Text

T, HOG, PEER = ("trainer_main", 11), ("hog", 12), ("peer", 13)


def view(text: Text, folder: Path, **more: object) -> TraceView:
    return TraceView(text.trace(folder), **more)  # type: ignore[arg-type]


def quiet(
    *, steps: int = 50, wait_ms: float = 0.0, rival: tuple[str, int] = IDLE, text: Text | None = None
) -> Text:
    """A trainer on CPU 0 that works 5 ms of each 10, and waits for the rival each time it is woken."""
    text = text or Text()
    on = IDLE
    for step in range(steps):
        now = 10.0 * step
        text.wake(now + 1, 0, T, by=rival)
        text.switch(now + 1.001 + wait_ms, 0, on, T, "S" if on == IDLE else "R")
        text.switch(now + 6 + wait_ms, 0, T, rival)
        on = rival
    return text


def one(found: list[Finding], token: str) -> Finding:
    (finding,) = [finding for finding in found if finding.token == token]
    return finding


def test_a_quiet_trainer_raises_nothing(tmp_path):
    assert findings_of(view(quiet(), tmp_path)) == ()


def test_a_trainer_that_waits_is_found_with_who_had_the_cpu(tmp_path):
    found = one(list(waits.delayed(view(quiet(wait_ms=2, rival=HOG), tmp_path))), "cpu-wait")
    assert (found.thread, found.tid, found.culprit, found.severity) == (
        "trainer_main",
        11,
        "hog",
        Severity.WARNING,
    )
    assert found.cost_ms == pytest.approx(50 * 2.001, abs=2.1)
    assert "hog" in found.evidence
    assert "126 rounds a second instead of 101" in found.evidence


def test_a_preempted_trainer_names_who_stayed_and_who_came_first(tmp_path):
    text = Text()
    for step in range(50):
        now = 10.0 * step
        text.switch(now, 0, IDLE if step == 0 else HOG, T, "R")
        text.switch(now + 5, 0, T, PEER, "R+").switch(now + 5.01, 0, PEER, HOG)
    found = one(list(waits.preempted(view(text, tmp_path))), "cpu-preempted")
    assert found.culprit == "hog"
    assert "most often by peer (50 times)" in found.evidence
    assert list(waits.preempted(view(quiet(), tmp_path))) == []


def test_interrupts_that_take_a_trainer_s_time_are_found(tmp_path):
    text = Text().switch(0, 0, IDLE, T)
    for step in range(100):
        text.softirq(10 * step + 1, 10 * step + 2, 0)
    found = one(list(cpu_time.interrupted(view(text.switch(1000, 0, T, IDLE), tmp_path))), "irq-time")
    assert (found.culprit, found.severity) == ("softirq NET_RX", Severity.WARNING)
    assert found.cost_ms == pytest.approx(100)


def held(ms: float) -> Text:
    """A trainer that is stopped after 30 ms of each 100 for so long, though no one else wants its CPU."""
    text = Text()
    for period in range(10):
        now = 100.0 * period
        text.switch(now, 0, IDLE, T).switch(now + 30, 0, T, IDLE, "R").switch(now + 30 + ms, 0, IDLE, T)
        text.switch(now + 40 + ms, 0, T, IDLE)
    return text


def test_a_trainer_kept_off_an_idle_cpu_is_throttled(tmp_path):
    found = one(list(findings_of(view(held(50), tmp_path))), "cpu-throttled")
    assert (found.severity, found.culprit, found.reason.data["times"]) == (Severity.ERROR, "", 10)
    assert found.cost_ms == pytest.approx(500)


def test_an_idle_cpu_that_wakes_up_throttles_no_one(tmp_path):
    assert list(cpu_time.throttled(view(held(1), tmp_path))) == []
    late = Text()  # as where a hypervisor does not run the CPU at once
    for step in range(20):
        late.wake(10.0 * step, 0, T).switch(10.0 * step + 4, 0, IDLE, T).switch(10.0 * step + 8, 0, T, IDLE)
    assert list(cpu_time.throttled(view(late, tmp_path))) == []
    busy = Text().switch(0, 0, IDLE, HOG).wake(1, 0, T, by=HOG).switch(90, 0, HOG, T, "R").switch(99, 0, T, IDLE)
    assert list(cpu_time.throttled(view(busy, tmp_path))) == []


def test_threads_of_like_names_are_one_culprit(tmp_path):
    text, on = Text(), IDLE
    for step in range(60):
        now, worker = 10.0 * step, (f"kworker/{step % 2}:{step % 5}", 50 + step % 10)
        worker = ("cron", 99) if step % 3 == 0 else worker
        text.switch(now, 0, on, T).switch(now + 5, 0, T, worker, "R")
        on = worker
    found = one(list(waits.delayed(view(text.switch(600, 0, on, T), tmp_path))), "cpu-wait")
    assert found.culprit == "kworker"
    assert found.culprit_share == pytest.approx(2 / 3, abs=0.01)
    assert str(found.reason).endswith("kworker held the CPU for 67% of that")


def test_interrupts_of_others_are_no_theft(tmp_path):
    text = Text().switch(0, 0, IDLE, T).switch(1, 0, T, HOG)
    for step in range(100):
        text.softirq(10 * step + 2, 10 * step + 3, 0)
    assert list(cpu_time.interrupted(view(text.switch(1100, 0, HOG, T).switch(1101, 0, T, IDLE), tmp_path))) == []


@pytest.mark.parametrize(
    ("cpus", "token"), [(simple(2, nodes=2), "crosses-numa"), (simple(2), None), (None, None)]
)
def test_moves_across_nodes_need_a_topology_and_two_nodes(tmp_path, cpus, token):
    text = Text()
    for step in range(100):
        text.switch(2 * step, step % 2, IDLE, T).switch(2 * step + 1, step % 2, T, IDLE)
    found = list(placement.moved(view(text, tmp_path, cpus=cpus)))
    assert [finding.token for finding in found] == ([token] if token else [])
    if token:
        assert "99 times" in str(found[0].reason)
        assert found[0].severity is not Severity.ERROR


def test_a_trainer_that_yields_its_cpu_away_is_found(tmp_path):
    text = Text()
    for step in range(50):
        now = 10.0 * step
        text.switch(now, 0, IDLE if step == 0 else HOG, T, "R").yields(now + 4.9, 0, T).switch(
            now + 5, 0, T, HOG, "R"
        )
    found = list(waits.yielding(view(text, tmp_path)))
    assert one(found, "yields-away").culprit == "trainer_main"
    assert [finding.token for finding in found] == ["yields-away"]


def test_a_storm_of_yields_beside_the_trainer_is_found(tmp_path):
    text = quiet(wait_ms=3, rival=HOG, text=Text().switch(0, 1, IDLE, ("hog", 22)))
    for call in range(2000):
        text.yields(0.25 * call, 1, HOG)
    assert one(list(waits.yielding(view(text, tmp_path))), "yield-storm").culprit == "hog"
    assert list(waits.yielding(view(quiet(wait_ms=3, rival=HOG), tmp_path))) == []


def test_a_pool_of_more_threads_than_cpus_is_found(tmp_path):
    text = Text().switch(0, 0, IDLE, ("omp-0", 100)).wake(1, 0, T)
    for worker in range(1, 6):
        text.wake(0.5, 0, (f"omp-{worker}", 100 + worker))
    for worker in range(1, 6):
        text.switch(10 * worker, 0, (f"omp-{worker - 1}", 99 + worker), (f"omp-{worker}", 100 + worker), "R")
    text.switch(60, 0, ("omp-5", 105), T, "R").switch(70, 0, T, IDLE)
    found = one(list(crowds.oversubscribed(view(text, tmp_path))), "oversubscription")
    assert found.culprit == "omp"
    assert found.reason.data["threads"] == 6
    assert list(crowds.oversubscribed(view(quiet(wait_ms=3, rival=HOG), tmp_path))) == []


def test_a_pool_of_one_name_is_called_by_it(tmp_path):
    text = Text().switch(0, 0, IDLE, ("cc1", 100)).wake(1, 0, T)
    for worker in range(1, 6):
        text.wake(0.5, 0, ("cc1", 100 + worker))
    for worker in range(1, 6):
        text.switch(10 * worker, 0, ("cc1", 99 + worker), ("cc1", 100 + worker), "R")
    text.switch(60, 0, ("cc1", 105), T, "R").switch(70, 0, T, IDLE)
    assert one(list(crowds.oversubscribed(view(text, tmp_path))), "oversubscription").culprit == "cc1"


def test_runs_of_no_length_are_nobody_s_peak(tmp_path):
    text, on = Text().switch(0, 0, IDLE, T), T
    for worker in range(6):
        text.switch(5, 0, on, (f"omp-{worker}", 100 + worker), "R")
        on = (f"omp-{worker}", 100 + worker)
    text.switch(5, 0, on, HOG, "R").switch(9, 0, HOG, T).switch(10, 0, T, IDLE)
    assert [found.culprit for found in crowds.oversubscribed(view(text, tmp_path))] == []


def test_a_storm_of_forks_is_found_by_its_parent(tmp_path):
    text, on = Text().switch(0, 0, IDLE, HOG).switch(0, 1, IDLE, T), HOG
    for step in range(100):
        now, child = 5.0 * step, ("child", 1000 + step)
        text.fork(now + 1, 0, HOG, child).wake(now + 1.1, 0, child, by=HOG, kind="wakeup_new").switch(
            now + 1.2, 0, on, child
        )
        text.wake(now + 1.3, 0, T, by=child).switch(now + 4, 0, child, T, "R").switch(now + 4.5, 0, T, HOG)
        on = HOG
    found = one(list(crowds.fork_storms(view(text, tmp_path))), "fork-storm")
    assert found.culprit == "hog"
    assert "child" in found.evidence
    assert list(crowds.fork_storms(view(quiet(wait_ms=3, rival=HOG), tmp_path))) == []


def test_waiting_beside_an_idle_cpu_is_found(tmp_path):
    text = Text().switch(0, 1, PEER, IDLE).switch(0, 0, IDLE, T).switch(1, 0, T, HOG)
    for step in range(10):
        now = 10.0 * step + 2
        text.wake(now, 0, T, by=HOG).switch(now + 4, 0, HOG, T, "R").switch(now + 5, 0, T, HOG)
    text.switch(200, 1, IDLE, T).switch(201, 1, T, IDLE)
    found = one(list(placement.beside_idle_cpus(view(text, tmp_path))), "idle-cpu-beside")
    assert found.cost_ms == pytest.approx(40)
    assert found.culprit == "hog"


def test_two_threads_pinned_to_one_cpu_are_a_conflict(tmp_path):
    text = quiet(wait_ms=2, rival=HOG)
    text.switch(0.5, 1, PEER, IDLE).switch(900, 1, IDLE, PEER).switch(901, 1, PEER, IDLE)
    found = one(list(placement.beside_idle_cpus(view(text, tmp_path))), "pin-conflict")
    assert (found.culprit, found.reason.data["cpu"]) == ("hog", 0)
    assert list(placement.beside_idle_cpus(view(quiet(wait_ms=2, rival=HOG), tmp_path))) == []


def test_where_all_cpus_are_busy_no_pin_is_seen_in_who_stays_where_it_is(tmp_path):
    text = quiet(wait_ms=2, rival=HOG, text=Text().switch(0, 1, IDLE, PEER))
    assert list(placement.beside_idle_cpus(view(text.switch(900, 1, PEER, IDLE), tmp_path))) == []


def test_a_slow_clock_under_the_trainer_is_found(tmp_path):
    text = (
        Text().frequency(0, 0, 3_000_000).switch(1, 0, IDLE, T).switch(11, 0, T, IDLE).frequency(12, 0, 1_500_000)
    )
    text.switch(20, 0, IDLE, T).switch(110, 0, T, IDLE)
    found = one(list(cpu_time.slowed(view(text, tmp_path))), "frequency-drop")
    assert found.cost_ms == pytest.approx(45)
    steady = Text().frequency(0, 0, 3_000_000).switch(1, 0, IDLE, T).switch(100, 0, T, IDLE)
    assert list(cpu_time.slowed(view(steady, tmp_path))) == []


def test_the_rank_that_waits_beyond_its_like_is_the_straggler(tmp_path):
    text = quiet(wait_ms=3, rival=HOG)
    for rank in (1, 2):
        text.switch(0, rank, IDLE, ("trainer_main", 20 + rank)).switch(
            500, rank, ("trainer_main", 20 + rank), IDLE
        )
    found = one(list(peers.straggling(view(text, tmp_path))), "straggler")
    assert (found.tid, found.culprit) == (11, "hog")
    assert list(peers.straggling(view(quiet(wait_ms=3, rival=HOG), tmp_path))) == []


def chained(loader_wait_ms: float) -> Text:
    """A trainer on CPU 0 and a loader on CPU 1 that wake each other; the loader waits for a hog first."""
    text, loader = Text(), ("loader", 30)
    text.switch(0, 1, IDLE, HOG).switch(0, 0, IDLE, T)
    for step in range(50):
        now = 10.0 * step
        text.wake(now + 1, 1, loader, by=T, on=0).switch(now + 1.01, 0, T, IDLE)
        text.switch(now + 1.02 + loader_wait_ms, 1, HOG, loader, "R")
        text.wake(now + 2 + loader_wait_ms, 0, T, by=loader, on=1).switch(now + 2.01 + loader_wait_ms, 0, IDLE, T)
        text.switch(now + 2.1 + loader_wait_ms, 1, loader, HOG)
    return text


def test_what_a_waker_waited_for_is_handed_on(tmp_path):
    found = one(list(peers.woken_late(view(chained(4), tmp_path))), "waker-waits")
    assert found.cost_ms == pytest.approx(50 * 4.02, rel=0.03)
    assert (found.culprit, found.reason.data["waker"]) == ("hog", "loader")
    assert list(peers.woken_late(view(chained(0), tmp_path))) == []


def test_a_timer_s_wakeup_is_not_blamed_on_who_ran_then(tmp_path):
    text = Text().switch(0, 0, IDLE, T)
    for step in range(20):
        now = 10.0 * step
        text.switch(now + 1, 0, T, HOG).switch(now + 2, 0, HOG, PEER, "R").switch(now + 4, 0, PEER, HOG)
        text.wake(now + 5, 0, T, by=HOG).switch(now + 5.01, 0, HOG, T, "R")
    assert list(peers.woken_late(view(text, tmp_path))) == []


def test_a_starved_trainer_is_an_error_and_another_thread_a_remark(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).wake(1, 0, T, by=HOG).wake(2, 0, PEER, by=HOG).switch(1500, 0, HOG, IDLE)
    found = {finding.thread: finding.severity for finding in waits.starved(view(text, tmp_path))}
    assert found == {"trainer_main": Severity.ERROR, "peer": Severity.INFO}
    assert list(waits.starved(view(quiet(), tmp_path))) == []


def test_what_a_trace_cannot_tell_is_said(tmp_path):
    text = quiet(wait_ms=2, rival=HOG)
    text.lines += ["CPU:0 [LOST 500 EVENTS]", "garbage", "garbage", "garbage"]
    of = view(text, tmp_path)
    assert {finding.token for finding in gaps.find(of)} == {"trace-lost", "trace-damaged"}
    (unsure,), (sure,) = waits.delayed(of), waits.delayed(view(quiet(wait_ms=2, rival=HOG), tmp_path))
    assert unsure.confidence < sure.confidence


def test_without_a_critical_thread_it_is_asked_for(tmp_path):
    text = (
        Text()
        .switch(0, 0, IDLE, HOG)
        .wake(1, 0, PEER, by=HOG)
        .switch(5, 0, HOG, PEER, "R")
        .switch(6, 0, PEER, IDLE)
    )
    (found,) = findings_of(view(text, tmp_path))
    assert (found.token, found.severity) == ("nothing-critical", Severity.INFO)
    assert "peer 4.0 ms" in found.evidence
    assert one(list(findings_of(view(text, tmp_path, critical=("pe",)))), "cpu-wait").thread == "peer"


@pytest.mark.parametrize(
    "name", ["trainer_main", "train", "pt_autograd_0", "pt_nccl_watchdg", "NCCL Progress 2", "rank3", "st-train"]
)
def test_threads_that_feed_accelerators_are_known_by_name(tmp_path, name):
    of = view(
        Text().switch(0, 0, IDLE, (name, 11)).switch(1, 0, (name, 11), HOG).switch(2, 0, HOG, IDLE), tmp_path
    )
    assert [of.name(task) for task in of.critical_tasks] == [name]
    assert not of.is_guessed


def test_where_none_is_known_who_works_in_rounds_is_guessed_and_never_more_than_a_remark(tmp_path):
    text, on = Text(), IDLE
    for step in range(50):
        now, worker = 10.0 * step, ("worker", 30)
        text.wake(now + 1, 0, worker, by=HOG).switch(now + 6, 0, on, worker, "S" if on == IDLE else "R")
        text.switch(now + 8, 0, worker, HOG)
        on = HOG
    of = view(text, tmp_path)
    found = findings_of(of)
    assert {finding.severity for finding in found} == {Severity.INFO}
    assert one(list(found), "cpu-wait").culprit == "hog"
    assert one(list(found), "cpu-wait").confidence < 0.5
    assert one(list(found), "nothing-critical").evidence.startswith("waited longest: worker")


def test_the_most_severe_and_dearest_come_first(tmp_path):
    found = findings_of(view(quiet(wait_ms=4, rival=HOG), tmp_path))
    assert [finding.severity.rank for finding in found] == sorted((f.severity.rank for f in found), reverse=True)
    assert found[0].token == "cpu-wait"


def test_one_thief_comes_before_many_who_took_more_between_them(tmp_path):
    text = Text().switch(0, 0, IDLE, T)
    for step in range(50):
        now, other = 10.0 * step, ("abcdefghij"[step % 10] + "klmno"[step // 10], 100 + step)
        text.softirq(now + 1, now + 2, 0).switch(now + 5, 0, T, other, "R").switch(now + 7, 0, other, T)
    first, *rest = findings_of(view(text, tmp_path))
    assert (first.token, first.culprit, first.severity) == ("irq-time", "softirq NET_RX", Severity.WARNING)
    assert max(one.cost_ms for one in rest if one.severity is Severity.WARNING) > first.cost_ms


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: f"{detector.__module__}.{detector.__name__}")
def test_no_detector_stumbles_over_a_trace_of_one_event(detector, tmp_path):
    list(detector(view(Text().switch(0, 0, IDLE, T), tmp_path, cpus=simple(1))))


def crowd(count: int, *, name: str = "w", step_ms: float = 1.0) -> Text:
    """So many threads that are all woken at once and run one after the other."""
    text, on = Text().switch(0, 0, IDLE, HOG), HOG
    for i in range(count):
        text.wake(1, 0, (f"{name}{i}", 100 + i), by=HOG)
    for i in range(count):
        text.switch(2 + i * step_ms, 0, on, to := (f"{name}{i}", 100 + i), "S")
        on = to
    return text


def test_a_crowd_s_culprits_are_told_for_those_that_waited_longest_and_always_sum_to_the_wait(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(cpu_attribution, "MOST_SHARES", 2000)
    monkeypatch.setattr(spans, "PAIRS", 500)
    threads = report_of(view(crowd(100), tmp_path)).threads
    assert all(sum(one.culprits.values()) == pytest.approx(one.wait_ms_total) for one in threads)
    waited = sorted((one for one in threads if one.waits), key=lambda one: -one.wait_ms_total)
    assert "(unknown)" not in waited[0].culprits
    assert list(waited[-1].culprits) == ["(unknown)"]


def test_no_host_has_more_critical_threads_than_are_looked_at(tmp_path):
    of = view(crowd(300, name="trainer_"), tmp_path)
    assert int(of.is_critical.sum()) == 300
    assert len(of.critical_tasks) == 256
    assert of.name(of.critical_tasks[0]) == "trainer_299"


def test_of_a_crowd_that_starves_those_that_waited_longest_are_told(tmp_path):
    found = list(waits.starved(view(crowd(60, step_ms=100), tmp_path)))
    assert len(found) == 20
    assert found[0].thread == "w59"
