from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.kpi.seeking import seeking
from strata.training.plan.exact.routes import efficient
from tests.support.laws import examples


def answered(points, ideal, nadir, most):
    terms, found = (points - ideal) / (nadir - ideal), []
    asking = seeking(ideal, nadir)
    weights = next(asking)
    for _ in range(most):
        assert weights.sum() == pytest.approx(1.0)
        assert (weights >= 0).all()
        values = terms * weights
        found.append(points[np.argmin(values.max(axis=1) + 1e-6 * values.sum(axis=1))])
        try:
            weights = asking.send(found[-1])
        except StopIteration:
            return found, True
    return found, False


@examples(60)
@given(st.lists(st.tuples(*[st.integers(0, 30)] * 3), min_size=2, max_size=25, unique=True))
def test_asking_into_gaps_ends_with_every_non_dominated_point(rows):
    points = np.array(rows, dtype=float)
    points = points[efficient(points)]
    ideal, nadir = points.min(axis=0), points.max(axis=0) + 1e-9
    found, complete = answered(points, ideal, nadir, 500)
    assert complete
    assert {tuple(p) for p in found} == {tuple(p) for p in points}
