"""Following a kind through everything an API server does: on a server of ours, under a clock of ours."""

from __future__ import annotations

import random
import threading

import pytest

from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import POD
from strata.cluster.api.watch import ABSENT_S, LONGEST_S, Listed, Watcher, WatchEvent, follow
from tests.support.real_processes import until


def pod(name, version):
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Server:
    """Answers from a script: what a list returns, what a watch yields; an ApiFailed is raised where it stands.

    It hangs up for good at the script's end, which is the end of the test.
    """

    def __init__(self, *script, watch_s=60.0):
        self.script, self.asked, self.waits, self.now_s, self.watch_s = list(script), [], [], 0.0, watch_s

    def next(self):
        answer = self.script.pop(0)
        if isinstance(answer, ApiFailed):
            raise answer
        return answer

    def list(self, kind, *, namespace="", labels=""):
        self.asked.append("list")
        return self.next()

    def watch(self, kind, *, since, timeout_s, labels=""):
        self.asked.append(since)
        return self.events(self.next())

    def events(self, events):
        for event in events:
            if isinstance(event, ApiFailed):
                raise event
            yield event
        self.now_s += self.watch_s

    def pause(self, seconds):
        self.now_s += seconds
        if seconds:
            self.waits.append(seconds)
        return not self.script

    def follow(self):
        news = follow(self, POD, clock=lambda: self.now_s, pause=self.pause, rng=random.Random(1))
        return [told(one) for one in news]


def told(news):
    if isinstance(news, Listed):
        return [one["metadata"]["name"] for one in news.objects]
    return f"{news.type} {news.obj['metadata']['name']}"


GONE = ApiFailed("too old resource version", status=410)
DOWN = ApiFailed("connection refused")


def test_a_list_comes_first_and_then_every_change():
    server = Server(([pod("a", 3)], "5"), [("ADDED", pod("b", 6)), ("DELETED", pod("a", 7))])
    assert server.follow() == [["a"], "ADDED b", "DELETED a"]
    assert server.asked == ["list", "5"]


def test_a_watch_that_ended_goes_on_where_it_was():
    server = Server(([], "5"), [("ADDED", pod("b", 6))], [("MODIFIED", pod("b", 9))], [])
    server.follow()
    assert server.asked == ["list", "5", "6", "9"]
    assert server.waits == []


def test_a_bookmark_moves_the_place_and_is_no_news():
    server = Server(([], "5"), [("BOOKMARK", pod("", 800))], [])
    assert server.follow() == [[]]
    assert server.asked == ["list", "5", "800"]


@pytest.mark.parametrize("version", ["", "0"])
def test_a_version_that_says_nothing_is_not_a_place(version):
    server = Server(([], version), [("ADDED", pod("b", version))], [("ADDED", pod("b", 6))], [])
    server.follow()
    assert server.asked == ["list", "", "", "6"]


def test_a_past_that_is_forgotten_is_listed_again_at_once():
    server = Server(([pod("a", 3)], "5"), [("ADDED", pod("b", 6)), GONE], ([pod("b", 6)], "90"), [])
    assert server.follow() == [["a"], "ADDED b", ["b"]]
    assert server.asked == ["list", "5", "list", "90"]
    assert server.waits == []


def test_a_past_forgotten_again_and_again_is_asked_for_ever_more_slowly():
    server = Server(*[([], "5"), GONE] * 12)
    server.follow()
    assert server.waits[-1] > 10 > server.waits[0]


def test_a_past_that_an_outage_lost_is_listed_soon():
    """The server answers again: what it was not there for does not count against it."""
    server = Server(([], "1"), *[DOWN] * 5, GONE, ([pod("b", 9)], "9"), [])
    server.follow()
    assert server.waits[-1] <= 0.5 < server.waits[-2]


def test_an_outage_is_waited_out_and_the_watch_goes_on_where_it_was():
    server = Server(([], "5"), [("ADDED", pod("a", 6)), DOWN], *[DOWN] * 9, [("DELETED", pod("a", 7))])
    assert server.follow() == [[], "ADDED a", "DELETED a"]
    assert set(server.asked[2:]) == {"6"}
    assert all(wait <= LONGEST_S for wait in server.waits)
    assert server.waits[0] <= 0.5
    assert server.waits[-1] >= LONGEST_S / 2


def test_what_worked_ends_the_count_of_failures():
    server = Server(([], "5"), *[DOWN] * 6, [("ADDED", pod("a", 6))], DOWN, [])
    server.follow()
    assert server.waits[-1] <= 0.5 < max(server.waits)


def test_the_server_s_own_wish_to_be_left_alone_is_granted():
    server = Server(ApiFailed("too many requests", status=429, retry_after_s=70.0), ([], "5"), [])
    server.follow()
    assert server.waits == [70.0]


def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop():
    server = Server(([], "5"), *[[]] * 10, watch_s=0.0)
    server.follow()
    assert sum(server.waits) > 30


def test_a_kind_that_is_not_installed_is_empty_once_and_asked_for_slowly():
    missing = ApiFailed("the server could not find the requested resource", status=404)
    server = Server(*[missing] * 4, ([pod("a", 3)], "5"), *[missing] * 3)
    assert server.follow() == [[], ["a"], []]
    assert all(ABSENT_S / 2 <= wait <= ABSENT_S for wait in server.waits)


class Blocking:
    """A server whose watch says nothing until it is closed."""

    def __init__(self):
        self.opened, self.closed = threading.Event(), threading.Event()

    def list(self, kind, *, namespace="", labels=""):
        return [pod("a", 3)], "5"

    def watch(self, kind, *, since, timeout_s, labels=""):
        return self

    def __iter__(self):
        self.opened.set()
        assert self.closed.wait(60), "nobody closed it"
        return iter(())

    def close(self):
        self.closed.set()


def test_a_watcher_that_waits_for_an_event_is_stopped_all_the_same():
    server, heard = Blocking(), []
    watcher = Watcher(server, POD, heard.append, rng=random.Random(1)).start()
    until(lambda: watcher.is_synced, lambda: "the first list")
    assert server.opened.wait(60)
    watcher.stop(60)
    assert not watcher.is_alive
    assert [told(one) for one in heard] == [["a"]]


def test_a_watcher_whose_reader_breaks_says_so(caplog):
    def broken(news):
        raise ZeroDivisionError

    watcher = Watcher(Blocking(), POD, broken, rng=random.Random(1)).start()
    watcher.join(60)
    assert isinstance(watcher.failure, ZeroDivisionError)
    assert not watcher.is_synced
    assert "following pods ended" in caplog.text


def test_news_name_their_kind():
    server = Server(([], "5"), [("ADDED", pod("a", 6))])
    news = list(follow(server, POD, clock=lambda: 0.0, pause=server.pause, rng=random.Random(1)))
    assert news == [Listed(POD, ()), WatchEvent(POD, "ADDED", pod("a", 6))]
