"""What follows the microbatches of every run of layers at once is what it is for each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.copies import SharedWeights, copy_exchange
from strata.simulate.run_ends import exposed_s
from tests.support.builders import domain
from tests.support.laws import examples


@examples(120)
@given(st.integers(0, 10**6))
def test_every_run_of_layers_exposes_what_it_does_alone(seed):
    rng = np.random.default_rng(seed)
    count, parts = int(rng.integers(1, 7)), int(rng.integers(1, 3))
    site = replace(
        domain("a", 64, per_node=8),
        network_bandwidth_bytes_per_s=10 ** rng.uniform(7, 11), network_latency_s=10 ** rng.uniform(-6, -2),
    )  # fmt: skip
    forward_s, backward_s = 10 ** rng.uniform(-4, -1, (2, count))
    sizes = 10 ** rng.uniform(6, 10, (parts, count)) * (rng.random((parts, count)) < 0.8)
    members = rng.choice([1, 2, 8, 16], parts).tolist()
    how = {
        "zero_stage": int(rng.integers(4)), "prefetched": bool(rng.random() < 0.7),
        "hidden": bool(rng.random() < 0.7), "gradient_ratio": float(rng.choice([0.5, 1.0, 2.0])),
    }  # fmt: skip

    def weights(first: int, last: int) -> list[SharedWeights]:
        return [SharedWeights(size[first:last], n, 2) for size, n in zip(sizes, members, strict=True)]

    every_s = exposed_s(site, forward_s, backward_s, weights(0, count), **how)
    for first in range(count):
        for last in range(first + 1, count + 1):
            run = slice(first, last)
            done = copy_exchange(
                site, forward_s[run], backward_s[run], weights(first, last), shard_group=None, **how
            )
            assert every_s[first, last] == pytest.approx(done.sum_s + done.gather_s, rel=1e-9, abs=1e-12)
    assert not np.tril(every_s).any()
