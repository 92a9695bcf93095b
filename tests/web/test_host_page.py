"""The host's pages: delay lanes of a reported trace, histograms of roll-outs as their commands keep them."""

from __future__ import annotations

import json
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

pytest.importorskip("starlette")

from strata.cli.main import run
from strata.control.client import Client
from strata.history import History
from strata.host.rollout.rollout import Arm, Attempt, RolloutPlan, Rules
from strata.host.rollout.store import opened
from strata.web.sources import Sources
from tests.host.analysis.test_pool_lanes import crowd
from tests.web.test_pages import EVIL, NOBODY, Site, is_safe

NAMES = ("layered", "a/b ?&#", "<script>alert(1)</script>")


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(Sources(tmp_path / "history.db", Client(NOBODY)))


def tried(path, name: str, *, pairs: int = 10) -> None:
    """A roll-out of two jobs whose candidate is better by a tenth, after A/A pairs, one of a hostile name."""
    with opened(path, is_new=True) as store:
        store.init(RolloutPlan(name, aa_pairs=8, ab_pairs=50), Rules(), at_s=1e9)
        for number in range(2 * pairs):
            for job in ("train", EVIL):
                is_candidate = number >= 16 and number % 2 == 1
                value = (1.1 if is_candidate else 1.0) * (1 + 0.001 * (number % 3))
                attempt = Attempt(job, number, Arm("candidate" if is_candidate else "baseline"), value, "", 8)
                store.add(store.get(name), attempt, at_s=1e9 + number)


def test_lanes_are_drawn_of_a_trace_that_was_reported(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    trace = tmp_path / "trace.txt"
    trace.write_text("\n".join(crowd(["<b>x"]).lines) + "\n")
    assert run(["host", "report", str(trace), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    site.sources = Sources(tmp_path / "strata" / "history.db", Client(NOBODY))
    shown = site.ask("/host")
    assert shown.status_code == 200
    assert is_safe(shown.text)
    assert "kernel-launch" in shown.text
    assert "&lt;b&gt;x" in shown.text
    assert "threads of 3 pools that wait for a CPU, over 100ms" in shown.text
    picture = site.ask("/plans/1/delays.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    ElementTree.fromstring(picture.text)
    assert 'href="/plans/1/delays.svg"' in site.ask("/plans/1").text
    assert site.ask("/plans/1/data.json").json()["lanes"] == answer["lanes"]


def test_a_report_of_an_earlier_strata_is_shown_without_lanes(site, tmp_path):
    with History(tmp_path / "history.db") as history:
        for verdict in ("the first", "the second"):
            history.add("host", {"name": "t", "verdict": verdict, "findings": []}, at_s=1e9)
    shown = site.ask("/host").text
    assert "<svg" not in shown
    assert "Earlier reports" in shown
    assert "the first" in shown
    assert site.ask("/plans/1").status_code == 200


@pytest.mark.parametrize("name", NAMES)
def test_a_roll_out_is_shown_with_its_histograms_whatever_it_is_called(site, tmp_path, name):
    tried(tmp_path / "rollouts.db", name)
    index = site.ask("/host")
    address = f"/host/rollouts?name={quote(name, safe='')}"
    assert address in index.text
    shown = site.ask(address)
    assert shown.status_code == 200
    assert is_safe(shown.text)
    assert "A/A (16) grey, A/B (4) blue" in shown.text
    assert "worst first" in shown.text
    data = site.ask(address.replace("?", "/data.json?")).json()
    assert (data["aa_pairs"], data["ab_pairs"]) == (16, 4)
    assert len(data["ratios"]["ab"]) == 4
    ElementTree.fromstring(site.ask(address.replace("?", "/histograms.svg?")).text)


def test_a_roll_out_without_pairs_and_one_that_is_not_there_say_so(site, tmp_path):
    tried(tmp_path / "rollouts.db", "new", pairs=0)
    assert "No pair of attempts is complete yet" in site.ask("/host/rollouts?name=new").text
    missing = site.ask("/host/rollouts?name=none")
    assert missing.status_code == 404
    assert "no roll-out is called" in missing.text
    assert site.ask("/host/rollouts").status_code == 404


def test_roll_outs_that_cannot_be_read_are_a_page_that_says_so(site, tmp_path):
    (tmp_path / "rollouts.db").write_text("no database at all, " * 100)
    answer = site.ask("/host")
    assert answer.status_code == 422
    assert "not a history strata can use" in answer.text
