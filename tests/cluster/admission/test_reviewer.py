"""Reviews beside an informer: who follows thousands of objects must not keep the API server waiting."""

from __future__ import annotations

import random

import pytest

from strata.cluster.admission.single_pod import reviewer
from strata.cluster.api.kinds import COMPUTE_NODE, NODE
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.informer import Informer
from tests.cluster import objects
from tests.cluster.admission.builders import PROFILES, container, job, placed, placement, pod, review


class Held:
    """A lock of which the test is told that it is waited for."""

    def __enter__(self):
        raise InterruptedError("it waits for the lock")

    def __exit__(self, *_):
        return None


@pytest.fixture
def informer():
    made = Informer(None, ClusterCache(tuple(PROFILES.values())), watched=(), rng=random.Random(0))
    made.cache.changed(NODE, objects.node("n1"))
    made.cache.changed(COMPUTE_NODE, objects.devices("n1"))
    return made


def test_jobs_and_pods_that_are_placed_are_answered_while_news_are_read(informer):
    informer.lock = Held()
    answered = reviewer(informer, server_minor=36, clock=lambda: 0.0)
    for thing in (job(container(gpu=1)), placed(pod(), placement())):
        assert answered(review(thing))["response"]["allowed"]
    with pytest.raises(InterruptedError):
        answered(review(pod(container(gpu=1))))


def test_a_pod_that_comes_alone_holds_its_place(informer):
    answered = reviewer(informer, server_minor=36, clock=lambda: 0.0)
    assert answered(review(pod(container(gpu=1))))["response"]["allowed"]
    assert len(informer.cache.gangs.assumed) == 1
