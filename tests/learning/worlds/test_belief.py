"""What is believed of links whose measurements are noisy, old or missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strata.learning.worlds.settings import PRESETS, WorldSettings
from strata.training.replan.options import HORIZONS
from tests.learning.worlds.worlds import world

PLAIN = WorldSettings(noise_sigma=0.05, episode_steps=32, stay=(0.9, 0.9))


@pytest.mark.parametrize(
    "seen", [{"observed_sigma": 0.4}, {"stale_steps": 2}, {"missing_share": 0.5}, {"precursor_share": 1.0,
             "stale_steps": 1, "missing_share": 0.2}],
)  # fmt: skip
def test_links_are_as_slow_as_believed_now_and_later(seen):
    made, rng = world(3000, settings=replace(PLAIN, **seen)), np.random.default_rng(3)
    picks = np.zeros(3000, dtype=np.int64)
    for _ in range(8):
        made.step(picks, rng)
    ahead = made.links_ahead()[:, 0].copy()
    surely = ahead[0] < np.median(ahead[0])
    for step in range(HORIZONS[-1] + 1):
        if step in HORIZONS:
            for some in (surely, ~surely):
                real = (1 / made.links.factor[some, 0]).mean()
                assert real == pytest.approx(float(ahead[HORIZONS.index(step), some].mean()), rel=0.1)
        made.step(picks, rng)


def test_a_belief_is_nearer_to_the_links_than_the_last_measurement():
    settings = replace(PLAIN, observed_sigma=0.4, stale_steps=1, missing_share=0.3)
    made, rng = world(1000, settings=settings), np.random.default_rng(3)
    for _ in range(8):
        made.step(np.zeros(1000, dtype=np.int64), rng)
    real = np.log(1 / made.links.factor[:, 0])
    errors = [
        np.abs(np.log(made.links_ahead(believes=believes)[0, 0]) - real).mean() for believes in (True, False)
    ]
    assert errors[0] < 0.9 * errors[1]


def test_chances_sum_to_one_and_a_lost_measurement_says_nothing():
    settings = replace(PLAIN, missing_share=0.5)
    made, rng = world(50, settings=settings), np.random.default_rng(0)
    made.step(np.zeros(50, dtype=np.int64), rng)
    before = made.links.belief
    made.step(np.zeros(50, dtype=np.int64), rng)
    after, lost = made.links.belief, made.links.lost
    assert after.chances.sum(axis=-1) == pytest.approx(1, abs=1e-5)
    moved = made.link_world._filter.move(before, made.links.chain)
    assert after.chances[lost] == pytest.approx(moved.chances[lost], abs=1e-3)
    assert np.abs(after.chances[~lost] - moved.chances[~lost]).max() > 0.1


def test_where_the_newest_measurement_says_all_there_is_no_belief():
    made = world(4, settings=PRESETS["regimes"])
    assert made.links.belief is None
    assert (made.links_ahead() == made.links_ahead(believes=False)).all()
