"""The dashboard in a real browser: no request leaves this machine, no error, readable to all, and live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
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
from tests.cli.test_plan import FLEET, JOB
from tests.host.analysis.test_pool_lanes import crowd
from tests.web import browser
from tests.web.test_followed import listed
from tests.web.test_host_page import tried
from tests.web.test_pages import ALL

pytestmark = [pytest.mark.real("chromium", "uvicorn"), pytest.mark.xdist_group("browser")]

SCREENS = Path(__file__).parents[2] / "out" / "screens"


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
def address(state):
    """`strata ui` as a process of its own."""
    with running(["ui", "aws10", "--port", "0", "--snapshot", str(state / "cluster.json")], state) as url:
        yield url


class running:  # noqa: N801
    """A command of ours that serves until it is left; gives its address."""

    def __init__(self, command: list[str], home: Path) -> None:
        self.command, self.environment = command, {**os.environ, "XDG_STATE_HOME": str(home)}

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strata", *self.command], stdout=subprocess.PIPE, text=True,
            env=self.environment,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert "http://" in line, line
        return line[line.index("http://") :].split()[0].rstrip(",")

    def __exit__(self, *_) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=browser.find(), args=["--no-sandbox"]) as launched,
    ):
        yield launched


@pytest.fixture
def tab(chromium):
    """A page that keeps what went wrong on it, and every address it asked."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.faults, page.asked_for = [], []
    page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda request: page.asked_for.append(request.url))
    yield page
    context.close()


REACHED = """() => [...document.querySelectorAll("table, figure")].every(
  wide => (wide.scrollWidth > wide.clientWidth) === (wide.tabIndex === 0))"""
"""Whether what scrolls sideways at this width, and nothing else, is reached by keyboard."""


def shoot(page, name: str) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENS / f"{name}.png", full_page=True)


PAGES = [*ALL, "/host/rollouts?name=layered", "/decisions/of?name=Job/default/whole"]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_without_a_fault_and_from_nowhere_else(tab, address, path):
    from axe_playwright_python.sync_playwright import Axe

    tab.goto(address + path)
    tab.wait_for_load_state("load")
    shoot(tab, "page" + path.partition("?")[0].replace("/", "-"))
    assert tab.faults == []
    assert {url for url in tab.asked_for if not url.startswith((address, "data:"))} == set()
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 800})
        tab.wait_for_function(REACHED)
        found = [
            each for each in Axe().run(tab).response["violations"] if each["impact"] in ("serious", "critical")
        ]
        assert found == [], json.dumps(found, indent=1)[:4000]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


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


def test_a_job_submitted_in_one_window_is_seen_in_another(tab, state, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "apiVersion: strata/v1alpha1\nkind: Fleet\nname: here\ndomains:\n"
        "  - {name: A, accelerator: a100, num_gpus: 1, driver: {kind: local}}\n"
    )
    (tmp_path / "job.yaml").write_text(JOB_OF_A_SECOND)
    with running(["up", str(fleet), "--port", "0"], state) as url:
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
        assert [fault for fault in tab.faults if "422" not in fault] == []
