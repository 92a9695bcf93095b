from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.least_recomputed import NEVER, LeastRecomputed
from strata.simulate.memory import StageShape, stage_bytes
from strata.workload.job import Recompute
from tests.support.builders import job, layers, tied
from tests.support.laws import examples


@examples(60)
@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 9))
def test_it_is_the_least_number_of_layers_with_which_a_stage_fits(seed, zero, in_flight):
    rng = np.random.default_rng(seed)
    table = layers(int(rng.integers(2, 9)))
    kept = table.activation_bytes * rng.uniform(0.5, 2.0, len(table))
    table = replace(table, activation_bytes=np.maximum(kept, table.checkpoint_bytes))
    asked = job(tied(table, 3e8) if seed % 2 else table)
    shape = StageShape(2, 4, 2, Recompute.NONE, zero, in_flight)
    first = int(rng.integers(len(table)))
    last = int(rng.integers(first + 1, len(table) + 1))

    def needed(count):
        more = {"recompute": Recompute.FULL, "recompute_layers": count} if count else {}
        return stage_bytes(asked, first, last - first, shape=replace(shape, **more))

    every = [needed(count) for count in range(last - first + 1)]
    limit = float(rng.uniform(min(every) * 0.99, max(every) * 1.01))
    least = next((count for count, bytes_ in enumerate(every) if bytes_ <= limit), NEVER)
    found = LeastRecomputed(asked, replace(shape, in_flight=0))
    assert found.count(first, last, in_flight, limit) == least
    assert found.counts(in_flight, limit)[first, last] == least
