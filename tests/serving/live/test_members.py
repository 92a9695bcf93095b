"""Joins, beats and silence; incarnation numbers tell a node's lives apart."""

from __future__ import annotations

from strata.decision import Reason
from strata.serving.live.events import Heartbeat
from strata.serving.live.members import Members
from strata.serving.node import Node


def members(**lives: int) -> Members:
    found = Members(timeout_s=60.0)
    for name, incarnation in lives.items():
        assert found.join(Node(name, 1e12), incarnation, 0.0) == "new"
    return found


def token(answer: object) -> str:
    assert isinstance(answer, Reason)
    return answer.token


def test_a_second_machine_under_an_older_incarnation_is_refused():
    assert token(members(a=7).join(Node("a", 1e12), 6, 1.0)) == "node-stale"


def test_a_quick_restart_is_told_from_a_repeated_message():
    found = members(a=7)
    assert found.join(Node("a", 1e12), 7, 1.0) == "known"
    assert found.join(Node("a", 1e12), 8, 1.0) == "restarted"
    assert not found.is_current("a", 7)


def test_beats_of_strangers_and_of_former_lives_are_not_heard():
    found = members(a=7)
    assert token(found.heartbeat(Heartbeat("b", 1), 1.0)) == "join-again"
    assert token(found.heartbeat(Heartbeat("a", 6), 1.0)) == "node-stale"
    assert token(found.heartbeat(Heartbeat("a", 8), 1.0)) == "join-again"
    assert found.heartbeat(Heartbeat("a", 7), 1.0) is None


def test_silence_counts_for_spares_too_and_ends_with_a_beat():
    found = members(a=1, b=1)
    found.heartbeat(Heartbeat("a", 1), 50.0)
    assert found.silent(60.0) == []
    assert found.silent(61.0) == ["b"]


def test_our_own_absence_is_not_their_silence():
    found = members(a=1)
    found.extend_deadlines(600.0)
    assert found.silent(640.0) == []


def test_measured_hops_are_kept_beside_those_known():
    found = members(a=1)
    found.heartbeat(Heartbeat("a", 1, hop_s={"b": 0.01}), 1.0)
    found.heartbeat(Heartbeat("a", 1, hop_s={"c": 0.02}), 2.0)
    assert found["a"].node.hop_s == {"b": 0.01, "c": 0.02}


def test_a_suspect_gets_no_work_until_it_beats():
    found = members(a=1, b=1)
    found["a"].is_suspect = True
    assert [node.node_id for node in found.nodes()] == ["b"]
    found.heartbeat(Heartbeat("a", 1), 1.0)
    assert [node.node_id for node in found.nodes()] == ["a", "b"]


def test_a_suspect_that_fails_again_and_again_waits_ever_longer_until_something_ends_well():
    found = Members(timeout_s=60.0, interval_s=5.0)
    found.join(Node("a", 1e12), 1, 0.0)
    waits_s = []
    for number in range(6):
        since_s = 1000.0 * number
        found.suspect("a", since_s)
        found.suspect("a", since_s + 1.0)  # the same trouble, told twice
        beats_s = [since_s + beat for beat in range(100)]
        for beat_s in beats_s:
            found.heartbeat(Heartbeat("a", 1), beat_s)
            if not found["a"].is_suspect:
                break
        waits_s.append(beat_s - since_s)
    assert waits_s == [0.0, 5.0, 15.0, 35.0, 60.0, 60.0]
    found.trust(["a"])
    found.suspect("a", 9000.0)
    found.heartbeat(Heartbeat("a", 1), 9001.0)
    assert found.suspects() == []


def test_a_node_that_is_stuck_is_a_suspect_however_regularly_it_beats():
    found = members(a=1)
    for beat_s in (5.0, 10.0, 15.0):
        assert found.heartbeat(Heartbeat("a", 1, is_stuck=True), beat_s) is None
        assert found.suspects() == ["a"]
    assert found.silent(16.0) == []
    found.heartbeat(Heartbeat("a", 1), 80.0)
    assert found.suspects() == []
