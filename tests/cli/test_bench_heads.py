"""`strata bench heads` from the command line, and what it compares."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.errors import MissingPart
from strata.evaluation.bench.heads import HEADS
from strata.training.hi_ppo.policy import safe_policy
from tests.support.builders import domain, fleet, job, layers


def _case():
    from strata.evaluation.allocation_heads.heads import HeadCase

    return HeadCase(fleet(domain("a", 16), domain("b", 8), gbps=50.0, ms=1.0), job(layers(22)))


def test_without_torch_the_command_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["bench", "heads"]) == MissingPart.exit_code


@pytest.mark.real("torch")
def test_the_command_answers_one_row_a_head(monkeypatch):
    from strata.evaluation.allocation_heads import heads
    from strata.evaluation.allocation_heads.dirichlet import DirichletHead

    monkeypatch.setattr(heads, "train", lambda *_, **__: (DirichletHead(), DirichletHead()))
    monkeypatch.setattr(heads, "cases", lambda *_: [_case()])
    result = CliRunner().invoke(cli, ["bench", "heads", "--fleets", "1", "-o", "json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert [item["name"] for item in data["heads"]] == list(HEADS)
    assert data["fleets"] == sum(data["exact_plans"].values()) == 1
    assert data["heads"][-1]["regret_mean"] == 0.0


@pytest.mark.real("torch")
def test_no_head_is_faster_than_exact_and_all_are_measured_against_the_best_single_domain():
    from strata.evaluation.allocation_heads.dirichlet import DirichletHead
    from strata.evaluation.allocation_heads.heads import compare, row

    found = compare(_case(), {"dirichlet": DirichletHead()}, policy=safe_policy(), clock=time.perf_counter)
    assert found is not None
    assert min(found.step_s.values()) >= found.step_s["exact"] * (1 - 1e-3)
    figures = row([found], "proportional")
    assert figures.r_eff_mean == pytest.approx(1 - found.step_s["proportional"] / found.baseline_s)


@pytest.mark.real("torch")
def test_an_answer_without_a_plan_counts_as_twice_the_baseline():
    from strata.evaluation.allocation_heads.heads import HeadOutcome, row

    outcome = HeadOutcome(10.0, {"exact": 5.0, "ratios": float("inf")}, {"exact": 0.1, "ratios": 0.2}, "pp", False)
    figures = row([outcome], "ratios")
    assert (figures.r_eff_mean, figures.regret_mean, figures.no_plan) == (-1.0, 3.0, 1)


@pytest.mark.real("torch")
def test_a_job_that_fits_no_domain_alone_is_left_out():
    from strata.evaluation.allocation_heads.heads import compare

    huge = replace(_case(), job=job(layers(22, mparams=10000.0)))
    assert compare(huge, {}, policy=safe_policy(), clock=time.perf_counter) is None


@pytest.mark.real("torch")
def test_the_ratios_of_a_plan_are_its_shares_of_layers_or_of_the_batch():
    import numpy as np

    from strata.evaluation.allocation_heads.allocation import Allocator
    from strata.evaluation.allocation_heads.heads import ratios_of
    from strata.training.plan.exact.problem import Problem

    case = _case()
    problem = Problem.of(case.fleet, case.job)
    found = Allocator(problem).allocate(np.array([[3.0, 1.0]]))[0].best
    assert found is not None
    assert ratios_of(problem, found.plan) == pytest.approx([0.75, 0.25])
