from __future__ import annotations

import numpy as np
import pytest

from builders import card, job, layers
from strata.fleet.synthetic import random_fleet
from strata.training.branches import Builder
from strata.training.exact.problem import Problem


@pytest.mark.parametrize("seed", range(4))
def test_estimates_are_close_to_what_is_built(seed):
    sites = random_fleet(4, (card("x"), card("y", tflops=300)), np.random.default_rng(seed), devices=32)
    problem = Problem.of(sites, job(layers(8), batch=256, local_steps=(8,)))
    builder = Builder(problem)
    branches = builder.branches
    times = branches.values[0]
    ratios = {"pipeline": [], "sharing": []}
    for row in np.argsort(times, kind="stable")[: 4 * 40 : 4]:
        reports = problem.model.reports(builder.plans(int(row)))
        if reports:
            kind = "sharing" if branches.setting[row] < 0 else "pipeline"
            ratios[kind].append(min(report.step_time_s for report in reports) / times[row])
    assert ratios["pipeline"] or ratios["sharing"]
    for found in ratios.values():
        if found:
            assert 0.75 < np.median(found) < 1.35


def test_a_domain_alone_is_the_only_branch_where_there_is_no_other():
    sites = random_fleet(1, (card("x"),), np.random.default_rng(0), devices=32)
    branches = Builder(Problem.of(sites, job(layers(8), batch=32))).branches
    assert branches.single.all()
    assert len(branches.item)
