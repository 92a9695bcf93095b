from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.scheduling.evaluation import TOKENS, evaluate
from strata.cluster.scheduling.index import Index
from strata.evaluation.placement.synthetic import synthetic_cluster
from tests.cluster.builders import A100, B3, PROFILES, choose, claim, cluster, node
from tests.support.laws import examples


def said(asked, *nodes):
    index = Index.of(cluster(*nodes))
    token, score = evaluate(index, asked, PROFILES).nodes
    return {one.name: (TOKENS[t], float(s)) for one, t, s in zip(index.nodes, token, score, strict=True)}


def test_every_node_is_told_what_it_is():
    found = said(
        claim(2),
        node("a"),
        node("b", busy=(0,)),
        node("busy", busy=range(7)),
        node("closed", is_schedulable=False),
        node("empty", count=0),
        node("odd", "MTT-S4000"),
    )
    assert {name: token for name, (token, _) in found.items()} == {
        "a": "",
        "b": "",
        "busy": "devices-busy",
        "closed": "node-closed",
        "empty": "no-devices",
        "odd": "no-profile",
    }
    assert found["b"][1] > found["a"][1] > 0
    assert all(score == 0 for token, score in found.values() if token)


@pytest.mark.parametrize(("substitution", "fits"), [("never", False), ("ask", False), ("allow", True)])
def test_other_cards_count_only_where_they_may(substitution, fits):
    asked = claim(1, accelerator=A100, substitution=substitution)
    assert (said(asked, node("nv", busy=range(8)), node("npu", B3))["npu"][0] == "") is fits
    assert said(asked, node("nv"), node("npu", B3))["npu"][0] == "no-profile"


@examples(25)
@given(st.integers(0, 99), st.sampled_from([1, 2, 4, 8, None]))
def test_the_best_node_for_one_pod_is_where_the_router_goes(seed, count):
    index = Index.of(synthetic_cluster(40, np.random.default_rng(seed), busy=0.7))
    asked = claim(count) if count else claim(None, is_fractional=True, memory_bytes=2**34, cores_share=0.5)
    placement = choose(index, asked, PROFILES).placement
    token, score = evaluate(index, asked, PROFILES).nodes
    if placement is None:
        assert token.all()
    else:
        number = index.node_number[placement.pods[0].node]
        assert token[number] == 0
        assert score[number] == pytest.approx(score.max()) == pytest.approx(placement.score)
