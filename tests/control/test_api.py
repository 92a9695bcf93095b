"""The API of a scheduler in virtual time, behind a real socket: events, metrics, prospects, refusals."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("uvicorn")

from strata.cli.main import run as strata
from strata.control.api import PATHS, build
from strata.control.client import Client
from strata.control.state import PartPhase
from strata.errors import StrataError, UsageError
from tests.control.fakes import EAST, WEST, World, piece
from tests.support.live_server import listening


@pytest.fixture
def served(tmp_path):
    """A world, and a client of its API."""
    world, port, is_over = World(tmp_path), [], threading.Event()
    is_up = threading.Event()

    async def serve():
        world.frame = build(world.daemon, token="secret")
        async with listening(world.frame) as number:
            port.append(number)
            is_up.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_up.wait(300)
    yield world, Client(f"http://127.0.0.1:{port[0]}", "secret")
    is_over.set()
    thread.join()
    world.down()


def text(client, path):
    with client.open("GET", path, None, timeout_s=300) as response:
        return response.read().decode()


def test_a_path_that_is_not_served_is_refused_as_all_else_is(served):
    _, client = served
    for method, path, message in (
        ("GET", "/v1/nope", "there is nothing at /v1/nope"),
        ("PUT", "/v1/jobs", "/v1/jobs does not take PUT"),
    ):
        with pytest.raises(StrataError, match=message), client.open(method, path, None, timeout_s=300):
            pass


def test_events_tell_all_jobs_now_and_whenever_one_changed(served):
    world, client = served
    events = client.events()
    assert next(events) == []
    world.daemon.submit(piece())
    world.passes(10)
    (job,) = next(events)
    assert (job["name"], job["phase"]) == ("a", "running")
    world.daemon.cancel("a")
    world.passes(10)
    while next(events)[0]["phase"] != "cancelled":
        pass
    events.close()


@pytest.fixture
def followed(served):
    """A running job, and what follows its log anew."""
    world, client = served
    world.daemon.submit(piece())
    world.passes(10)
    parts = list(world.daemon.snapshot.attempts["a-1"].parts)

    def follow():
        lines = client.logs("a", follow=True)
        assert [next(lines) for _ in parts] == [f"{name}: a-1 in {name}" for name in parts]
        return lines

    return world, client, follow


def test_a_log_is_followed_until_the_attempt_is_over(followed):
    world, _, follow = followed
    lines = follow()
    world.daemon.cancel("a")
    world.passes(10)
    assert list(lines) == []


def test_a_log_of_a_part_that_never_began_is_over_with_its_attempt(served):
    world, client = served
    world.daemon.submit(piece())
    world.passes(10)
    for driver in world.drivers.values():
        driver.logs = lambda attempt, *, follow: iter(lambda: None, "never")
    lines = client.logs("a", follow=True)
    world.daemon.cancel("a")
    world.passes(50)
    assert world.daemon.snapshot.attempts == {}
    assert list(lines) == []


def test_a_job_without_a_log_says_where_it_is(served, tmp_path, capsys):
    world, client = served
    world.daemon.submit(piece())
    world.passes(1)
    (tmp_path / "token").write_text("secret")
    for driver in world.drivers.values():
        driver.logs = lambda attempt, *, follow: iter(())
    assert strata(["logs", "a", "--server", client.url, "--token-file", str(tmp_path / "token")]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "a is running: nothing was written\n")


def test_what_is_watched_is_told_in_the_end_as_it_was_asked_for(served, tmp_path, capsys):
    """Lines came for -o json too, and --why showed nothing."""
    world, client = served
    world.daemon.submit(piece())
    world.daemon.cancel("a")
    world.passes(20)
    (tmp_path / "token").write_text("secret")
    watch = ["job", "a", "--watch", "--server", client.url, "--token-file", str(tmp_path / "token")]
    assert strata([*watch, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "cancelled"
    assert strata(watch) == 0
    assert capsys.readouterr().out.splitlines() == ["a: cancelled, step 0/1000, - a step"]
    assert strata([*watch, "--why"]) == 0
    assert "a: cancelled" in capsys.readouterr().out.splitlines()[1]


def test_each_decision_is_shown_with_its_time(served, tmp_path, capsys):
    world, client = served
    world.daemon.submit(piece())
    world.passes(20)
    (tmp_path / "token").write_text("secret")
    token = ["--server", client.url, "--token-file", str(tmp_path / "token")]
    assert strata(["job", "a", "--why", *token]) == 0
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(client.job("a")["decisions"][0]["at_s"]))
    assert at in capsys.readouterr().out.splitlines()


def test_a_log_that_is_followed_does_not_hold_up_the_end_of_the_scheduler(followed):
    """`strata up` ended only with the job."""
    world, _, follow = followed
    lines = follow()
    world.frame.drain()
    assert list(lines) == []


def test_who_followed_a_log_and_went_away_takes_nothing_from_others(followed):
    """Each held one of forty threads until the job wrote again."""
    _, client, follow = followed
    for _ in range(50):
        follow().close()
    assert [job["name"] for job in client.jobs()] == ["a"]


def test_links_are_all_told_measured_or_not_with_what_is_in_use_and_expected(served):
    world, client = served
    there, back = client.links()
    assert {there["source"], there["dest"]} == {EAST, WEST} == {back["source"], back["dest"]}
    told = {key: there[key] for key in ("seen_s", "factor", "load", "expected_factor", "expected_in_s")}
    assert told == {
        "seen_s": None, "factor": 1.0, "load": 0.0, "expected_factor": 1.0,
        "expected_in_s": 6 * world.daemon.scheduler.interval_s,
    }  # fmt: skip
    assert there["latency_s"] == world.daemon.snapshot.fleet.links[there["source"], there["dest"]].latency_s


def test_metrics_are_of_the_loop_as_it_is(served):
    world, client = served
    world.daemon.submit(piece())
    world.drivers[WEST].fails = "503"
    world.passes(20)
    lines = text(client, "/metrics").splitlines()
    assert 'strata_jobs{phase="running"} 1.0' in lines
    assert f'strata_domain_is_silent{{domain="{WEST}"}} 1.0' in lines
    assert f'strata_domain_is_silent{{domain="{EAST}"}} 0.0' in lines
    assert f"strata_turns_total {float(world.daemon.turns)}" in lines


def test_a_domain_that_does_not_answer_is_told_with_why(served, tmp_path, capsys):
    world, client = served
    world.drivers[WEST].fails = "no credentials"
    world.passes(20)
    (tmp_path / "token").write_text("secret")
    assert strata(["jobs", "--server", client.url, "--token-file", str(tmp_path / "token")]) == 0
    assert f"not answering: {WEST}: no credentials" in capsys.readouterr().out


def test_a_job_that_was_given_up_says_so_with_what_to_try(served, tmp_path, capsys):
    world, client = served
    world.daemon.submit(piece())
    while "a" not in world.jobs or not world.job.phase.is_final:
        with world.lock:
            for driver in world.drivers.values():
                driver.phases = dict.fromkeys(driver.phases, PartPhase.FAILED)
        world.passes(10)
    (tmp_path / "token").write_text("secret")
    assert strata(["job", "a", "--server", client.url, "--token-file", str(tmp_path / "token")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "given up at failure 4, as 3 are allowed; attempt 4 ended with: no word" in "\n".join(shown)
    assert shown[-1] == "  try: strata logs a, mend it, and submit it under another name"


def test_a_job_that_waits_says_for_what(served, tmp_path, capsys):
    """`strata job NAME` printed its steps only."""
    world, client = served
    world.daemon.submit(piece())
    world.passes(10)
    world.daemon.submit(piece("b"))
    world.passes(10)
    (tmp_path / "token").write_text("secret")
    assert strata(["job", "b", "--server", client.url, "--token-file", str(tmp_path / "token")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("b: queued, ")
    assert "b: waits: its smallest plan takes" in shown[1]
    assert shown[-1] == "  try: strata job b --why"


def test_why_a_job_can_never_run_is_told_later_too(served, tmp_path, capsys, monkeypatch):
    """Only `strata submit` said it, once."""
    _, client = served
    decision = {
        "at_s": 0.0, "choice": None, "step_time_s": None, "alternatives": [],
        "reasons": [{"text": "a: no plan of this job fits the fleet"}],
    }  # fmt: skip
    queued = {"name": "a", "phase": "queued", "steps": 9, "steps_done": 0, "step_time_s": None, "domains": [],
              "attempts": [], "decisions": [decision]}  # fmt: skip
    monkeypatch.setattr(Client, "job", lambda *_: queued)
    monkeypatch.setattr(Client, "prospects", lambda *_: [{"text": "the bf16 FLOPS of core are not known"}])
    (tmp_path / "token").write_text("secret")
    asked = ["job", "a", "--why", "--server", client.url, "--token-file", str(tmp_path / "token")]
    assert strata(asked) == 0
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last == ["queued until the fleet is another one:", "  the bf16 FLOPS of core are not known"]
    assert strata([*asked, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["refusals"]


def test_every_path_is_described_and_answers(served):
    world, client = served
    world.daemon.submit(piece())
    world.passes(10)
    for path, methods in PATHS.items():
        if "get" in methods and path != "/v1/events":
            text(client, path.replace("{name}", "a"))
    assert client.prospects("a") == []
    assert client.piece("a") == piece()
    assert list(client.logs("a")) == [
        f"{name}: a-1 in {name}" for name in world.daemon.snapshot.attempts["a-1"].parts
    ]


def test_what_a_path_takes_is_described(served):
    _, client = served
    paths = client.json("GET", "/v1/openapi.json")["paths"]

    def takes(path, method="get"):
        return [(item["name"], item["in"], item["required"]) for item in paths[path][method]["parameters"]]

    assert takes("/v1/jobs/{name}/logs") == [("name", "path", True), ("follow", "query", False)]
    assert takes("/v1/jobs", "post") == [("strict", "query", False)]
    assert takes("/v1/decisions") == [("limit", "query", False)]
    assert takes("/v1/links") == []


def test_a_job_that_is_refused_for_what_nobody_has_is_named_once(served):
    _, client = served
    with pytest.raises(UsageError) as error:
        client.submit(piece(min_devices=4000), is_strict=True)
    assert str(error.value).startswith("a: its plans on this fleet take ")


def test_brackets_without_end_are_bad_input(served):
    _, client = served
    headers = {"authorization": "Bearer secret"}
    request = urllib.request.Request(f"{client.url}/v1/jobs", b"[" * 100_000, headers, method="POST")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=300)
    assert error.value.code == 422
    error.value.close()


@pytest.mark.parametrize("name", ["a/b", "a\nb", "\u00e9" * 34, "\0"])
def test_a_name_that_no_page_and_no_folder_can_have_is_refused(served, name):
    _, client = served
    with pytest.raises(UsageError, match="name"):
        client.submit(piece(name))
    assert client.jobs() == []


def test_a_job_that_no_turn_has_seen_is_told_as_any_other(served):
    world, client = served
    world.daemon.submit(piece(owner="x"))
    (new,) = client.jobs()
    world.passes(10)
    (job,) = client.jobs()
    assert new.keys() == job.keys()
    assert [new[key] for key in ("phase", "owner", "steps", "attempts_made")] == ["queued", "x", job["steps"], 0]


def test_a_domain_with_a_slash_in_its_name_can_be_drained(served):
    _, client = served
    with pytest.raises(UsageError, match="no domain 'rack/3' that runs work"):
        client.drain("rack/3")


def test_a_wrong_token_and_what_is_not_there_are_refused_with_what_to_try(served):
    _, client = served
    for other, refused, hint in (
        (Client(client.url, "wrong"), Client.jobs, "STRATA_TOKEN, or --token-file"),
        (client, lambda c: c.job("none"), "strata jobs"),
        (client, lambda c: c.piece("none"), "strata jobs"),
        (client, lambda c: c.submit({"document": []}), None),
    ):
        with pytest.raises(UsageError) as error:
            refused(other)
        assert error.value.hint == hint


def test_a_full_disk_is_the_schedulers_fault_not_the_users(served, monkeypatch):
    world, client = served
    monkeypatch.setattr(world.store, "submit", full)
    with pytest.raises(StrataError, match="the disk is full") as error:
        client.submit(piece())
    assert not isinstance(error.value, UsageError)
    assert error.value.hint == "make room"


def full(*_):
    raise StrataError("s.db: the disk is full, nothing was written", hint="make room")
