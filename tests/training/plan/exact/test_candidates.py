"""What is known of settings that were looked into, where memory asks for recomputation: laws of their sharings."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.training.plan.exact.problem import Problem
from strata.workload.job import Schedule
from tests.support.laws import examples
from tests.support.small_cases import crowded_case, small_case
from tests.training.plan.exact.test_shards import EPS, sharings


@pytest.mark.long("every sharing of crowded fleets")
@examples(40)
@example(188)  # of GPipe alone one stage has one microbatch in flight
@example(59)  # under GPipe fewer microbatches fit where more do not
@example(217)  # under the ZeRO stage that another unit asks for one recomputes more, and hides more of the sum
@example(194)  # split again for few microbatches one unit needed a ZeRO stage that the plan had not
@given(st.integers(0, 10**6))
def test_sharings_fit_and_none_beats_what_is_known_of_its_settings(seed):
    place, asked = crowded_case(seed)
    rng = np.random.default_rng(seed + 7)
    local_steps = (8,) if rng.random() < 0.5 else ()
    zero_stages = (0, 1) if rng.random() < 0.5 else asked.zero_stages
    batch = int(rng.choice([4, 6, 10, 12, 16]))
    asked = replace(asked, local_steps=local_steps, zero_stages=zero_stages, global_batch=batch)
    check(Problem.of(place, asked))


@pytest.mark.long("every sharing of small fleets")
@examples(40)
@example(21868)  # as the next
@example(10162)  # of few microbatches fewer are in flight, and a split fits that hides more
@example(3437)  # a layer fits alone where it is not recomputed
@example(1167)  # what a setting does takes as long as the limit but for rounding: was looked into for ever
@given(st.integers(0, 10**6))
def test_so_do_those_of_every_kind_of_schedule(seed):
    rng = np.random.default_rng(seed + 11)
    place, asked = (crowded_case if rng.random() < 0.6 else small_case)(seed)
    one, two = (Schedule.ONE_F_ONE_B,), (Schedule.GPIPE, Schedule.INTERLEAVED)
    schedules = [tuple(Schedule), one, two, asked.schedules][int(rng.integers(4))]
    local_steps = (4, 32) if rng.random() < 0.4 else ()
    compression = (1.0, 4.0) if rng.random() < 0.3 else asked.gradient_compression
    zero_stages = [(0, 1), (0, 1, 2), (1, 2, 3), asked.zero_stages][int(rng.integers(4))]
    batch = int(rng.choice([4, 6, 10, 12, 16, 24, 32]))
    asked = replace(asked, local_steps=local_steps, gradient_compression=compression, zero_stages=zero_stages)
    check(Problem.of(place, replace(asked, global_batch=batch, schedules=schedules)))


def check(problem):
    """Plans fit, and bounds hold however closely they were looked into."""
    for space, at, plan, report in islice(sharings(problem), 8):
        assert problem.model.fits(plan)
        own_s = space.own_bound_s(*at, limit_s=2 * report.step_time_s)
        while space.closer(*at):
            pass
        assert max(own_s, space.bound_s(*at)) <= report.step_time_s * (1 + EPS)
