"""Ctrl-C ends a command with 130 and keeps what there is, wherever in the work it comes."""

from __future__ import annotations

import json

import pytest

from strata.cli.main import run
from strata.training.plan.exact.search import Search

FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: pair
domains:
  - {name: West, accelerator: A100-SXM4-80GB, num_gpus: 2}
  - {name: East, accelerator: A100-SXM4-80GB, num_gpus: 2}
links:
  - {between: [West, East], bandwidth: 5Gbps, latency: 30ms}
"""


@pytest.fixture
def interrupt_search(monkeypatch):
    """Return a function that has Ctrl-C come in the middle of the nth exact search."""

    def prepare(nth: int) -> list[int]:
        whole, started = Search._explore, []

        def explore(self, *arguments, **named):
            started.append(len(started) + 1)
            whole(self, *arguments, **named)
            if started[-1] == nth:
                raise KeyboardInterrupt

        monkeypatch.setattr(Search, "_explore", explore)
        return started

    return prepare


@pytest.mark.parametrize("nth", [1, 2, 5, 7])
def test_an_interrupted_plan_is_the_best_so_far_and_nothing_is_searched_after_it(
    interrupt_search, tmp_path, capsys, nth
):
    (tmp_path / "fleet.yaml").write_text(FLEET)
    started = interrupt_search(nth)
    assert run(["plan", "train", str(tmp_path / "fleet.yaml"), "opt-350m", "-o", "json"]) == 130
    assert len(started) == nth
    shown = json.loads(capsys.readouterr().out)
    assert shown["plans"][0]["step_time_s"] > 0
    assert not any(plan is None for plan in shown["baselines"].values())


@pytest.mark.parametrize(
    "jobs", [1, pytest.param(2, marks=pytest.mark.long("a whole plan on a fleet of a real size"))]
)
def test_an_interrupted_demo_shows_the_jobs_until_then(monkeypatch, tmp_path, capsys, jobs):
    whole, searched = Search._explore, []

    def explore(self, *arguments, **named):
        whole(self, *arguments, **named)
        searched.append((self.problem.fleet.name, self.problem.job.name))
        if len(set(searched)) == jobs and searched.count(searched[-1]) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_explore", explore)
    assert run(["demo", "--out", str(tmp_path), "-o", "json"]) == 130
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == jobs
    assert f"interrupted: {jobs} of 3 jobs" in captured.err


def test_an_interrupted_bench_of_planning_shows_the_fleets_until_then(interrupt_search, capsys):
    interrupt_search(2)
    assert run(["bench", "planning", "--job", "opt-350m", "--time-limit", "1", "-o", "json"]) == 130
    captured = capsys.readouterr()
    assert f"interrupted: {len(json.loads(captured.out)['rows'])} rows" in captured.err
