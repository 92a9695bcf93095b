"""The host's pages: delay lanes of a reported trace, histograms of roll-outs as their commands keep them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

pytest.importorskip("starlette")

from strata.cli.main import run
from strata.control.client import Client
from strata.history import History
from strata.host.apply.effect import judge
from strata.host.apply.enforce import Enforcement
from strata.host.record.snapshot import beside, take
from strata.host.record.work import User, acting_as
from strata.host.rollout.rollout import Arm, Attempt, RolloutPlan, Rules
from strata.host.rollout.store import opened
from strata.web.sources import Sources
from tests.host.analysis.test_pool_lanes import crowd
from tests.web.test_pages import EVIL, NOBODY, Site, is_safe

MADE = Enforcement
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


def test_roll_outs_that_cannot_be_read_hide_no_report(site, tmp_path):
    (tmp_path / "rollouts.db").write_text("no database at all, " * 100)
    answer = site.ask("/host")
    assert answer.status_code == 200
    assert "rollouts.db: not a history strata can use" in answer.text
    assert "<h2>Enforcements</h2>" in answer.text


@pytest.fixture
def enforced(monkeypatch, tmp_path):
    """Return what runs `strata host enforce` on this process, of which it is only said how it ended."""

    def run_it(end: str, before: list[float], after: list[float]) -> int:
        def made(*arguments, **more):
            kept = MADE(*arguments, **more)
            kept.effect, kept.num_done, kept.run = judge(before, after), 12, lambda: end
            return kept

        monkeypatch.setattr("strata.host.apply.enforce.Enforcement", made)
        return run(["host", "enforce", "--pid", str(os.getpid())])

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("strata.host.agent.jobs.job_name", lambda _pid: EVIL)
    return run_it


def test_what_an_enforcement_measured_is_kept_and_shown(site, enforced, tmp_path, capsys):
    assert enforced("stopped", [0.3, 0.31], [0.1, 0.11]) == 0
    assert enforced("taken-back", [0.3, 0.31], [0.4, 0.41]) == 4
    capsys.readouterr()
    assert run(["runs", "list", "--kind", "enforcement", "-o", "json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["runs"]] == [EVIL, EVIL]
    site.sources = Sources(tmp_path / "strata" / "history.db", Client(NOBODY))
    shown = site.ask("/host")
    assert is_safe(shown.text)
    rows = shown.text.split("<h2>Enforcements</h2>")[1].split("<h2>")[0]
    for words in ("30.5%", "10.5%", "helped", "40.5%", "worse", "taken-back: 12 steps, undone"):
        assert words in rows
    assert "critical threads waited 30.5% of what they wanted, then 10.5%" in site.ask("/plans/1").text
    assert site.ask("/plans/1/data.json").json()["effect"]["verdict"] == "helped"
    followed = site.ask(f"/decisions/of?name={quote(EVIL)}")
    assert followed.status_code == 200
    assert followed.text.count("enforcement</a>") == 0
    assert followed.text.count(">enforcement of ") == 2


def test_without_an_enforcement_the_page_says_what_makes_one(site):
    assert "<code>sudo strata host enforce --pid PID</code>" in site.ask("/host").text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_what_root_keeps_for_a_user_is_the_users_and_only_where_they_may_write():
    with TemporaryDirectory() as name:
        folder, home = Path(name), os.environ["HOME"]
        folder.chmod(0o755)
        (folder / "theirs").mkdir()
        os.chown(folder / "theirs", 1234, 1234)
        with acting_as(User(1234, 1234, (1234,), {"HOME": str(folder / "theirs")})):
            assert os.environ["HOME"] == str(folder / "theirs")
            (folder / "theirs" / "file").write_text("x")
            with pytest.raises(PermissionError):
                (folder / "file").write_text("x")
        assert (folder / "theirs" / "file").stat().st_uid == 1234
        assert (os.geteuid(), os.environ["HOME"]) == (0, home)


def test_a_report_names_the_job_that_was_recorded(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    trace = tmp_path / "trace.txt"
    trace.write_text("\n".join(crowd(["<b>x"]).lines) + "\n")
    machine = {**take(), "pid": None, "job": EVIL, "census": [], "sleeping": [], "holding": [], "numbers": {}}
    beside(trace).write_text(json.dumps(machine))
    assert run(["host", "report", str(trace), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"] == EVIL
    site.sources = Sources(tmp_path / "strata" / "history.db", Client(NOBODY))
    for path in ("/host", "/decisions", f"/decisions/of?name={quote(EVIL)}"):
        shown = site.ask(path)
        assert shown.status_code == 200
        assert is_safe(shown.text)
        assert f"/decisions/of?name={quote(EVIL, safe='')}" in shown.text or "report of trace.txt" in shown.text
    assert "through all levels" in site.ask("/plans/1").text
