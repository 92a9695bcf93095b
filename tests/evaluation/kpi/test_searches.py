"""Searches beside the policy: what they have when their time is over."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from strata.evaluation.kpi.searches import nsga2_front, random_front
from strata.training.plan.baselines.context import Context
from strata.training.plan.exact.problem import Problem
from strata.training.plan.objective import Scales
from tests.support.builders import domain, fleet, job


@pytest.mark.parametrize("search", [random_front, nsga2_front])
def test_a_search_whose_time_is_over_answers_with_what_it_has(search):
    """The whole table ended in a traceback where ten domains took one longer than its two minutes."""
    problem = Problem.of(fleet(domain("a", 8), domain("b", 8), gbps=5.0), job())
    ticks = count()
    context = Context(Scales(), 0, np.random.default_rng(0), lambda: float(next(ticks)), 40.0)
    items = search(problem, context, evaluations=256)
    assert items
    assert next(ticks) < 60
