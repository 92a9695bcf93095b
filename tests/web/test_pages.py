"""The dashboard's pages: with data, without, with sources that fail, and against other sites."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx
import pytest

pytest.importorskip("starlette")
from starlette.applications import Starlette

import strata
from strata import database
from strata.cli.main import run
from strata.control.client import Client
from strata.history import History
from strata.net.browser import SameOrigin, hosts_of
from strata.units import show_count
from strata.web.app import COOKIE, missing, routes
from strata.web.pages import PLACES, render
from strata.web.sources import Sources
from tests.cli.test_plan import FLEET, JOB
from tests.slicing.ledger_builders import MIB, Ledger, die

NOBODY = "http://127.0.0.1:1"
EVIL = "<script>alert(1)</script>\x1b[2J\u202e"


@dataclass
class Site:
    """The pages over a history, asked as a browser would."""

    sources: Sources
    token: str = ""
    hosts: frozenset[str] = hosts_of("127.0.0.1", token="")
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, method: str = "GET", **kwargs) -> httpx.Response:
        pages = Starlette(routes=routes(self.sources, token=self.token), exception_handlers={404: missing})
        app = SameOrigin(pages, hosts=self.hosts)

        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:8480", cookies=self.cookies
            ) as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(request())


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """A training plan with its front, a serving plan, a host report, and a plan whose names are hostile."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "fleet.yaml").write_text(FLEET)
    (folder / "job.yaml").write_text(JOB)
    training = strata.plan(folder / "fleet.yaml", folder / "job.yaml", pareto=True).to_dict()
    serving = strata.serve_plan("seed", "serve-llama-3.1-70b").to_dict()
    host = {"name": "trace", "verdict": "The trainer waited.", "reasons": [], "findings": [
        {"severity": "error", "token": "culprit", "what": EVIL, "advice": "pin it"}]}  # fmt: skip
    domain = training["fleet"]["domains"][0]["name"]
    hostile = json.loads(json.dumps(training).replace(json.dumps(domain)[1:-1], json.dumps(EVIL)[1:-1]))
    hostile["name"] = EVIL
    return [("training", training), ("serving", serving), ("host", host), ("training", hostile)]


@pytest.fixture
def site(answers, tmp_path) -> Site:
    path = tmp_path / "history.db"
    with History(path) as history:
        for number, (kind, answer) in enumerate(answers):
            history.add(kind, answer, at_s=1e9 + number)
    return Site(Sources(path, Client(NOBODY), "seed"))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(text)
    return parser.tags


def is_safe(text: str) -> bool:
    scripts = [attributes for tag, attributes in tags(text) if tag == "script"]
    handlers = [name for _, attributes in tags(text) for name in attributes if name.startswith("on")]
    return scripts == [{"src": "/static/strata.js", "defer": None}] and not handlers and "\x1b" not in text


ALL = [*(path for path, _ in PLACES), *(f"/plans/{number}" for number in (1, 2, 3, 4)),
       "/fit?fleet=seed&job=opt-350m"]  # fmt: skip


@pytest.mark.parametrize("path", ALL)
def test_every_page_shows_its_data_and_nothing_that_a_name_could_run(site, path):
    answer = site.ask(path)
    assert answer.status_code == 200
    assert is_safe(answer.text)
    assert "\u202e" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "script-src" not in policy  # so that scripts have the default's, without any of a page's own


@pytest.mark.parametrize("path", [path for path, _ in PLACES])
def test_every_page_without_data_says_which_command_gives_some(tmp_path, path):
    answer = Site(Sources(tmp_path / "none.db", Client(NOBODY))).ask(path)
    assert answer.status_code == 200
    assert "<code>strata" in answer.text or "Search" in answer.text or "strata up" in answer.text


def test_a_history_that_is_broken_is_a_page_that_says_so(tmp_path):
    (tmp_path / "history.db").write_text("no database at all, " * 100)
    site = Site(Sources(tmp_path / "history.db", Client(NOBODY)))
    answer = site.ask("/plans")
    assert answer.status_code == 422
    assert "not a history strata can use" in answer.text
    assert "try: move the file away" in answer.text


@pytest.mark.parametrize("path", ["/", "/serving", "/host", "/decisions"])
def test_a_history_that_is_broken_hides_nothing_that_other_sources_have(tmp_path, path):
    """Of *Now*, jobs that run were not shown either."""
    (tmp_path / "history.db").write_text("no database at all, " * 100)
    answer = Site(Sources(tmp_path / "history.db", Client(NOBODY))).ask(path)
    assert answer.status_code == 200
    assert "not a history strata can use" in answer.text
    beside = {"/": "No scheduler is shown", "/serving": "No gateway was named", "/host": "<h2>Roll-outs</h2>"}
    assert beside.get(path, "The scheduler&#39;s are missing") in answer.text


def test_a_serving_plan_shows_what_keeps_the_goals_and_a_change_that_its_job_knows(site, answers):
    shown, figures = site.ask("/plans/2").text, answers[1][1]["figures"]
    assert f"{show_count(figures['requests_per_s'])} requests/s" in shown
    assert f"({show_count(figures['goodput_per_s'])} within the goals)" in shown
    links = "link.East_DataCenter-Central_DataCenter.bandwidth=1Gbps"
    assert f'placeholder="job.precision.weights=fp8 {links}"' in shown
    assert 'placeholder="job.minimize=cost link.West-East.bandwidth=1Gbps"' in site.ask("/plans/1").text


def test_of_many_alternatives_a_page_opens_with_few(site, answers):
    many = json.loads(json.dumps(answers[0][1]))
    other = {"name": "other", "reasons": [{"token": "slower", "text": "1.5x the step time of the chosen plan"}]}
    many["alternatives"] = [other] * 30
    with History(site.sources.history) as history:
        history.add("training", many, at_s=2e9)
    shown = site.ask("/plans/5").text
    first, _, rest = shown.partition("<summary>and 22 others</summary>")
    assert (first.count("not other:"), rest.count("not other:")) == (8, 22)


def test_a_point_says_why_its_plan_was_not_chosen(site, answers):
    with History(site.sources.history) as history:
        history.add("training", {**answers[0][1], "front": None}, at_s=2e9)
    reason = r"; not chosen: [^<]*the step time of the chosen plan"
    assert re.search(rf"<title>pp [^<]*{reason}", site.ask("/plans/5").text)


ODD = [
    ("training", {"name": "old"}),
    ("training", {"kind": "TrainingPlan", "name": "new", "fleet": {"name": "f"}, "plans": [{"name": "p"}]}),
    ("serving", {"name": "old", "fleet": {}}),
    ("serving", {"kind": "ServingPlan", "name": "new", "fleet": {"name": "f"}, "pipelines": [1], "figures": None}),
    ("host", {"name": "t"}),
    ("host", {"name": "t", "lanes": [{}], "verdict": "v", "findings": [{"token": "x"}]}),
    ("enforcement", {"name": "t"}),
    ("later", {"x": 1}),
    ("training", [1]),
]  # fmt: skip


def test_answers_of_other_versions_hide_no_other_and_say_what_they_are(site, answers):
    with History(site.sources.history) as history:
        for kind, answer in ODD:
            history.add(kind, answer, at_s=2e9)
    for path in ("/", "/plans", "/serving", "/host", "/decisions"):
        answer = site.ask(path)
        assert answer.status_code == 200
        assert is_safe(answer.text)
    assert site.ask("/plans").text.count('href="/plans/') == 2
    assert "kept by another version of strata, or damaged" in site.ask("/decisions").text
    assert site.ask("/decisions").text.count('href="/plans/') == len(answers) + len(ODD)
    for number, (_, kept) in enumerate(ODD, len(answers) + 1):
        answer = site.ask(f"/plans/{number}")
        assert answer.status_code == 422
        assert f"answer {number} was kept by another version of strata" in answer.text
        assert site.ask(f"/plans/{number}/data.json").json() == kept
        for path in ("weighed?time=1", "map.svg", "timeline.svg"):
            assert site.ask(f"/plans/{number}/{path}").status_code in (404, 422)


def test_a_history_that_another_program_keeps_locked_is_a_page_that_says_so(site, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_S", 0.0)
    other = sqlite3.connect(site.sources.history, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    answer = site.ask("/plans")
    other.close()
    assert answer.status_code == 422
    assert "locked" in answer.text
    assert site.ask("/plans").status_code == 200


def test_a_plan_that_is_gone_is_not_found(site):
    answer = site.ask("/plans/99")
    assert answer.status_code == 404
    assert "no decision 99 is kept" in answer.text
    assert "try: strata runs list" in answer.text


def test_a_plan_is_not_found_where_none_was_ever_made(site, tmp_path):
    answer = Site(Sources(tmp_path / "none.db", Client(NOBODY))).ask("/plans/1")
    assert answer.status_code == 404
    assert "try: strata plan train FLEET JOB" in answer.text


@pytest.mark.parametrize("path", ["/nosuch", "/plans/abc", "/static/nosuch.js", "/%3Cscript%3E"])
def test_an_address_without_a_page_is_answered_with_the_other_pages(site, path):
    answer = site.ask(path)
    assert answer.status_code == 404
    assert "there is no page /" in answer.text
    assert 'href="/decisions"' in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize(("phase", "is_named"), [("queued", True), ("cancelled", False)])
def test_the_page_of_a_job_without_a_plan_names_what_tells_why(phase, is_named):
    decision = {"at_s": 0.0, "choice": None, "reasons": [], "alternatives": []}
    job = {"name": "a", "phase": phase, "steps": 9, "steps_done": 0, "domains": [], "attempts": []}
    job["decisions"] = [decision]
    assert ("strata job NAME --why" in render("job_body.html", job=job)) == is_named


def test_the_processes_of_a_slice_are_shown_with_what_they_hold(site, tmp_path, monkeypatch):
    made = Ledger()
    row, here, gone = made.row(4096 * MIB), made.process(), made.process(lives=False)
    made.held(row, here, 1024 * MIB)
    made.held(row, gone, 512 * MIB)
    made.write(tmp_path / "strata" / "slices" / "notebooks.ledger")
    (tmp_path / "strata" / "slices" / "broken.ledger").write_text("no ledger at all")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    try:
        shown = site.ask("/slices").text
    finally:
        die()
    assert f"{os.getpid()}: 1GiB, gone: 512MiB<" in shown
    assert "; try: rm " in shown


def test_the_first_page_names_a_scheduler_that_does_not_answer(site):
    assert f"no scheduler answers at {NOBODY}" in site.ask("/").text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "job:2:1: not YAML"),
        ("kind: TrainingJob", "no scheduler answers at http://127.0.0.1:1"),
    ],
)
def test_a_job_that_cannot_be_handed_in_is_a_page_that_says_why(site, text, words):
    answer = site.ask("/jobs", "POST", data={"job": text})
    assert answer.status_code == 422
    assert words in answer.text


def test_weights_rank_the_plans_again(site, answers):
    every = (*answers[0][1]["plans"], *answers[0][1]["front"])
    plans = {(plan["name"], plan["step_time_s"], plan["cost_usd_per_mtoken"]) for plan in every}
    shown = site.ask("/plans/1/weighed?time=1&utilization=0&money=0").text
    fastest = min(answers[0][1]["plans"], key=lambda plan: plan["step_time_s"])["name"]
    assert f"<b>{fastest}</b>" in shown.replace("&gt;", ">")
    assert shown.count("<tr>") == min(len(plans), 8) + 1
    assert site.ask("/plans/1/weighed?time=x").status_code == 422
    assert site.ask("/plans/1/weighed?time=0").status_code == 422


def test_the_timeline_of_a_step_is_drawn_as_long_as_its_files_are_the_same(site, tmp_path_factory):
    answer = site.ask("/plans/1/timeline.svg")
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.startswith("<svg")


@pytest.mark.parametrize(("number", "names"), [(1, ["map", "spent", "money", "utilization"]), (2, ["layers"])])
def test_every_picture_is_also_a_file(site, number, names):
    shown = site.ask(f"/plans/{number}").text
    assert re.findall(rf'href="/plans/{number}/(\w+)\.svg"', shown)[: len(names)] == names
    for name in names:
        answer = site.ask(f"/plans/{number}/{name}.svg")
        assert answer.headers["content-type"] == "image/svg+xml"
        assert answer.text.startswith("<svg")
    assert site.ask(f"/plans/{number}/nothing.svg").status_code == 404


@pytest.mark.parametrize("name", ["data.json", "map.svg", "devices.svg"])
def test_a_fleets_pictures_and_figures_are_files(site, name):
    assert f'href="/fleet/{name}?fleet=seed"' in site.ask("/fleet").text
    answer = site.ask(f"/fleet/{name}?fleet=seed")
    assert answer.status_code == 200
    assert answer.json()["name"] == "seed" if name == "data.json" else answer.text.startswith("<svg")
    assert site.ask(f"/fleet/{name}?fleet=/etc/passwd").status_code == 422


@pytest.mark.parametrize(
    "path",
    ["/now/data.json", "/now/links.svg", "/fleet/cluster.svg", "/fleet/nothing.svg", "/serving/data.json",
     "/serving/waterfall.svg", "/serving/requests/x/data.json"],
)  # fmt: skip
def test_a_file_of_a_source_that_is_not_there_is_a_page_that_says_so(site, path):
    answer = site.ask(path)
    assert answer.status_code in (404, 422)
    assert "This cannot be shown" in answer.text


def test_a_job_of_ones_own_is_planned_and_reads_no_file_of_the_server(site):
    shown = site.ask("/fit", "POST", data={"fleet": "seed", "job": JOB})
    assert shown.status_code == 200
    assert "small on seed" in shown.text
    assert is_safe(shown.text)
    named = JOB.replace("model: opt-350m", "model: /etc/passwd")
    for job, words in ((named, "/etc/passwd is not among the texts"), ("a: [", "not YAML"), ("x", "a job is {")):
        refused = site.ask("/fit", "POST", data={"fleet": "seed", "job": job})
        assert refused.status_code == 422
        assert words in refused.text
    assert site.ask("/fit", "POST", data={"fleet": "/etc/passwd", "job": JOB}).status_code == 422
    assert site.ask("/fit", "POST", data={"job": JOB}).status_code == 422


def test_now_says_what_was_decided_in_the_last_hour_and_why(site):
    assert "<h2>Decided before the last hour</h2>" in site.ask("/").text
    with History(site.sources.history) as history:
        history.add("host", {"name": "late", "verdict": "", "findings": [
            {"token": "cpu-wait", "what": "it waited"}]}, at_s=time.time())  # fmt: skip
    shown = site.ask("/").text
    assert "<h2>Decided in the last hour</h2>" in shown
    assert "<code>cpu-wait</code> it waited" in shown
    assert 'href="/plans/1"' not in shown


def test_what_if_plans_again_with_something_changed(site):
    body = {"settings": "job.global_batch=16"}
    answer = site.ask("/plans/1/whatif", "POST", data=body, headers={"origin": "http://127.0.0.1:8480"})
    assert answer.status_code == 200
    assert "as it is" in answer.text
    refused = site.ask("/plans/1/whatif", "POST", data={"settings": "job.nothing=1"})
    assert refused.status_code == 422
    assert "nothing" in refused.text


def test_what_if_of_serving_says_what_keeps_the_goals_on_both_sides(site, answers):
    body = {"settings": "job.demand.output=128"}
    shown = site.ask("/plans/2/whatif", "POST", data=body, headers={"origin": "http://127.0.0.1:8480"}).text
    kept = show_count(answers[1][1]["figures"]["goodput_per_s"])
    assert f"<dt>within the goals</dt><dd>{kept}</dd>" in shown
    assert shown.count("<dt>within the goals</dt>") == 2


def test_decisions_are_searched_by_name_and_by_reason(site):
    everything = site.ask("/decisions").text
    assert everything.count('href="/plans/') == 4
    shown = site.ask("/decisions", params={"q": "serve-llama chosen"}).text
    assert re.findall(r'href="/plans/(\d+)"', shown) == ["2"]
    assert "None in what could be read with nowhere" in site.ask("/decisions?q=nowhere").text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", f"/plans/{10**30}", b"", 404),
        ("GET", "/plans/1/weighed?time=nan", b"", 422),
        ("GET", f"/decisions?since={'9' * 500}", b"", 422),
        ("GET", "/host/rollouts?name=%00", b"", 404),
        ("GET", "/static/%2e%2e/app.py", b"", 404),
        ("POST", "/fit", b"&".join([b"a=1"] * 50), 422),
        ("POST", "/login", b"&".join([b"token=1"] * 50), 422),
        ("POST", "/fit", b"fleet=seed&job=%ff%fe\x00", 422),
        ("POST", "/fit", b"fleet=seed&job=" + b"%5B" * 20_000, 422),
        ("POST", "/plans/1/whatif", b"settings=job.model=/etc/passwd", 422),
        ("POST", "/plans", b"", 405),
    ],
)
def test_what_no_form_sends_is_refused_in_words(site, method, path, body, status):
    answer = site.ask(path, method, content=body)
    assert answer.status_code == status
    assert "root:" not in answer.text


def test_a_page_reads_no_file_but_those_it_was_started_with(site):
    for path in ("/fleet?fleet=/etc/passwd", "/fit?fleet=seed&job=../job.yaml", "/static/../app.py"):
        assert site.ask(path).status_code in (404, 422)


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example:8480"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"},
     {"origin": "null"}, {"host": ""}],
)  # fmt: skip
def test_other_sites_pages_are_refused(site, headers):
    answer = site.ask("/plans/1/whatif", "POST", data={"settings": "job.global_batch=16"}, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "cross-origin"
    assert site.ask("/", headers=headers).status_code == 403


def test_a_token_is_asked_for_once_and_never_shown(site):
    site.token = "secret"
    answer = site.ask("/plans")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert site.ask("/login", "POST", data={"token": "wrong"}).status_code == 401
    entered = site.ask("/login", "POST", data={"token": "secret"})
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    site.cookies = {COOKIE: "secret"}
    shown = site.ask("/plans")
    assert shown.status_code == 200
    assert "secret" not in shown.text


@pytest.fixture
def asked_of_ui(monkeypatch):
    """Return what asks `strata ui`, given its options, as it is served: behind its limits."""
    frames = []
    monkeypatch.setattr("strata.net.server.serve", lambda frame, *_, **__: frames.append(frame))

    def ask(*options: str, method: str = "GET", path: str = "/plans", **kwargs) -> httpx.Response:
        assert run(["ui", "--port", "0", *options]) == 0

        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(frames[-1])
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8480") as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(request())

    return ask


def test_a_token_is_asked_for_on_localhost_too(asked_of_ui, tmp_path):
    (tmp_path / "token").write_text("secret")
    assert asked_of_ui("--token-file", str(tmp_path / "token")).status_code == 303


def test_an_upload_that_is_too_large_is_refused(asked_of_ui):
    answer = asked_of_ui(method="POST", path="/fit", content=b"job=" + b"x" * 2**24)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body-too-large"


def test_a_page_is_light(site):
    for path in ALL:
        style = len(site.ask("/static/strata.css").content) + len(site.ask("/static/strata.js").content)
        assert len(site.ask(path).content) + style < 1.5e6
