"""The dashboard in a real browser: no request leaves this machine, no error, readable to all, and live."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import strata
from strata.api.backends import by_events
from strata.api.host import host_report
from strata.api.loaded import of_plan
from strata.control.client import Client
from strata.control.jobfile import read_job
from strata.files import Document
from strata.history import History
from strata.training.plan.planfile import best_plan
from strata.web.pages import PLACES
from tests.cli.test_plan import FLEET, JOB
from tests.host.analysis.test_pool_lanes import crowd
from tests.web.browser import chromium, look, running, shoot, tab
from tests.web.gateways import answering, record
from tests.web.test_followed import listed
from tests.web.test_host_page import tried
from tests.web.test_pages import ALL, NOBODY

pytestmark = [pytest.mark.real("chromium", "uvicorn"), pytest.mark.xdist_group("chromium")]

__all__ = ["chromium", "tab"]


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A home with a history: a plan with its front on ten domains' fleet, and one for serving."""
    home = tmp_path_factory.mktemp("home")
    (home / "fleet.yaml").write_text(FLEET)
    (home / "job.yaml").write_text(JOB)
    with History(home / "strata" / "history.db") as history:
        answers = [
            ("training", strata.plan(home / "fleet.yaml", home / "job.yaml", pareto=True)),
            ("serving", strata.serve_plan("aws10", "serve-llama-3.1-405b")),
            ("training", strata.plan("aws10", "opt-350m", baselines=False)),
        ]
        for kind, answer in answers:
            history.add(kind, answer.to_dict(), at_s=time.time())
        (home / "trace.txt").write_text("\n".join(crowd(["pt_data_worker", "omp-1", "<i>"]).lines) + "\n")
        report = host_report(home / "trace.txt").to_dict()
        history.add("host", {"name": "trace.txt", **report, "threads": []}, at_s=time.time())
        history.add("training", of_many_slices(home), at_s=time.time())
    tried(home / "strata" / "rollouts.db", "layered")
    items = [
        {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
        for kind, some in listed().items()
        for obj in some
    ]
    (home / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return home


def of_many_slices(home: Path) -> dict[str, Any]:
    """A pipeline of 10,240 microbatches through four stages: a step of 100,000 slices."""
    (home / "long.yaml").write_text(JOB.replace("global_batch: 16", "global_batch: 10240"))
    answer = strata.plan(home / "fleet.yaml", home / "long.yaml", baselines=False).to_dict()
    answer["plans"] = [plan for plan in answer["plans"] if len(plan["plan"]["pipelines"][0]["stages"]) == 4]
    job = of_plan(best_plan(Document("long", answer, {})))
    assert len(by_events([job]).timeline.spans) >= 100_000
    return answer


@pytest.fixture(scope="module")
def gateway():
    """The address of a gateway, and what it answers."""
    answers = record()
    with answering(answers) as url:
        yield url, answers


@pytest.fixture(scope="module")
def address(state, gateway):
    """`strata ui` as a process of its own."""
    command = ["ui", "aws10", "--port", "0", "--snapshot", str(state / "cluster.json"), "--gateway", gateway[0]]
    with running(command, state) as url:
        yield url


PAGES = [*ALL, "/host/rollouts?name=layered", "/decisions/of?name=Job/default/whole"]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_without_a_fault_and_from_nowhere_else(tab, address, path):
    tab.goto(address + path)
    look(tab, address, "page" + path.partition("?")[0].replace("/", "-"))
    assert tab.faults == []


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    """`strata ui` of somebody who has done nothing yet."""
    with running(["ui", "--port", "0"], tmp_path_factory.mktemp("empty")) as url:
        yield url


@pytest.fixture(scope="module")
def failing(tmp_path_factory, state):
    """`strata ui` that can read neither history nor cluster, and whose gateway and scheduler are down."""
    home = tmp_path_factory.mktemp("failing")
    (home / "strata").mkdir()
    for name in ("history.db", "rollouts.db"):
        (home / "strata" / name).write_text("no database at all, " * 100)
    cluster = home / "cluster.json"
    cluster.write_text((state / "cluster.json").read_text())
    with running(["ui", "--port", "0", "--gateway", NOBODY, "--snapshot", str(cluster)], home) as url:
        cluster.write_text("{")
        yield url


@pytest.mark.parametrize("path", [path for path, _ in PLACES])
def test_a_page_without_data_loads_and_says_what_gives_some(tab, nothing, path):
    tab.goto(nothing + path)
    look(tab, nothing, "empty" + path.replace("/", "-"))
    assert path == "/decisions" or "strata" in tab.inner_text("main code >> nth=0")
    assert tab.faults == []


@pytest.mark.parametrize("path", [path for path, _ in PLACES])
def test_a_page_whose_sources_fail_says_so_in_words(tab, failing, path):
    status = tab.goto(failing + path).status
    look(tab, failing, "failing" + path.replace("/", "-"))
    words = tab.inner_text("main")
    assert any(fault in words for fault in ("not a history strata can use", "cluster.json", "answers at")), words
    assert [fault for fault in tab.faults if str(status) not in fault] == []


def test_a_slider_ranks_the_plans_of_ten_domains_again(tab, address):
    tab.goto(address + "/plans/3")
    tab.wait_for_selector("#weighed table")
    before = tab.inner_text("#weighed")
    slider = tab.locator("#weights input[name=money]")
    started = time.perf_counter()
    with tab.expect_response(lambda response: "/weighed" in response.url):
        slider.press("End")
    tab.wait_for_function("before => document.querySelector('#weighed').innerText !== before", arg=before)
    sys.stderr.write(f"a slider's answer took {1e3 * (time.perf_counter() - started):.0f} ms\n")
    assert tab.locator("#weights output").nth(2).inner_text() == "1"


def test_a_form_of_a_page_is_taken(tab, address):
    """Where no referrer may be told, browsers say that a page's own forms come from `null`: all were refused."""
    tab.goto(address + "/plans/3")
    tab.fill("input[name=settings]", "job.global_batch=16")
    tab.press("input[name=settings]", "Enter")
    tab.wait_for_selector("text=job.global_batch=16")
    assert tab.faults == []


def test_a_browser_shows_the_token_once(tab, state, tmp_path):
    (tmp_path / "token").write_text("secret")
    with running(["ui", "--port", "0", "--token-file", str(tmp_path / "token")], state) as url:
        tab.goto(url + "/plans")
        tab.fill("input[name=token]", "secret")
        tab.press("input[name=token]", "Enter")
        tab.wait_for_selector("h1:text-is('Now')")
        assert tab.faults == []


def test_every_page_is_reached_by_keyboard(tab, address):
    tab.goto(address)
    reached = set()
    for _ in range(12):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.getAttribute('href')"))
    assert {"#main", "/", "/fleet", "/plans", "/serving", "/slices", "/host", "/decisions"} <= reached


FRAMES = """() => new Promise(done => {
  const times = []; let last = performance.now();
  const step = now => {
    times.push(now - last); last = now; window.scrollBy(0, 40);
    times.length < 60 ? requestAnimationFrame(step) : done(times.sort((a, b) => a - b));
  };
  requestAnimationFrame(step);
})"""


def test_five_thousand_nodes_are_scrolled(tab, state, tmp_path):
    fleet = tmp_path / "large.yaml"
    domains = "".join(
        f"  - {{name: site-{number}, accelerator: h100, num_gpus: 4000, free_gpus: {300 * number}}}\n"
        for number in range(10)
    )
    fleet.write_text(f"apiVersion: strata/v1alpha1\nkind: Fleet\nname: large\ndomains:\n{domains}")
    with running(["ui", str(fleet), "--port", "0"], state) as url:
        tab.goto(url + "/fleet")
        squares = tab.eval_on_selector_all(
            "path", "all => all.map(p => p.getAttribute('d').split('z').length - 1)"
        )
        assert sum(squares) == 5000
        frames = tab.evaluate(FRAMES)
        sys.stderr.write(f"a frame of 5000 nodes: median {frames[30]:.0f} ms, slowest {frames[-1]:.0f} ms\n")
        assert tab.faults == []


def test_a_hundred_thousand_slices_are_scrolled(tab, address):
    tab.goto(address + "/plans/5")
    timeline = tab.locator("img[src$='timeline.svg']")
    timeline.scroll_into_view_if_needed()
    tab.wait_for_function("() => document.querySelector(\"img[src$='timeline.svg']\").complete", timeout=300_000)
    assert timeline.evaluate("image => image.naturalWidth") > 0
    tab.evaluate("window.scrollTo(0, 0)")
    frames = tab.evaluate(FRAMES)
    sys.stderr.write(f"a frame of 100,000 slices: median {frames[30]:.0f} ms, slowest {frames[-1]:.0f} ms\n")
    shoot(tab, "slices-100k")
    assert tab.faults == []


JOB_OF_A_SECOND = """\
apiVersion: strata/v1alpha1
kind: TrainingJob
name: short
model: opt-350m
train: {global_batch: 8, sequence: 512}
run:
  command: [sleep, "3600"]
  steps: 5
"""


def test_a_job_submitted_in_one_window_is_seen_in_another(tab, state, gateway, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "apiVersion: strata/v1alpha1\nkind: Fleet\nname: here\ndomains:\n"
        "  - {name: A, accelerator: a100, num_gpus: 1, driver: {kind: local}}\n"
    )
    (tmp_path / "job.yaml").write_text(JOB_OF_A_SECOND)
    with running(["up", str(fleet), "--port", "0", "--gateway", gateway[0]], state) as url:
        tab.goto(url + "/serving")
        tab.wait_for_selector(f"h2:text-is('tiny at {gateway[0]}')")
        tab.click(f"a:text-is('{gateway[1]['/decisions'][0]['request_id']}')")
        tab.wait_for_selector("text=with 6 tokens, the first after 800ms")
        look(tab, url, "request")
        tab.goto(url)
        tab.wait_for_selector("text=No job has been submitted")
        Client(url).submit(read_job(tmp_path / "job.yaml")[1])
        started = time.perf_counter()
        tab.wait_for_selector("td a:text-is('short')")
        sys.stderr.write(f"seen {time.perf_counter() - started:.2f} s after it was acknowledged\n")
        shoot(tab, "up")
        tab.click("td a:text-is('short')")
        tab.wait_for_selector("h2:text-is('Decisions')")
        shoot(tab, "job")
        tab.click("button:text-is('Cancel this job')")
        tab.wait_for_selector(".state.cancelled")
        tab.goto(url)
        tab.fill("#job", JOB_OF_A_SECOND.replace("short", "by-hand").replace("opt-350m", "/etc/passwd"))
        tab.click("button:text-is('Submit')")
        tab.wait_for_selector("text=passwd is not among the texts that came with the job")
        tab.go_back()
        tab.fill("#job", JOB_OF_A_SECOND.replace("short", "by-hand"))
        tab.click("button:text-is('Submit')")
        tab.wait_for_selector("h1:text-is('by-hand')")
        Client(url).cancel("by-hand")
        tab.wait_for_selector(".state.cancelled")  # else its runner outlives the scheduler
        assert [fault for fault in tab.faults if "422" not in fault] == []
