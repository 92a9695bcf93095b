from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.training.export.launch import domain_nodes
from strata.training.export.ranks import RankLayout, rank_map
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.script import slugs


def layout(*pipelines, per_node=8, devices=10_000, **more):
    plan = TrainingPlan(tuple(pipelines), microbatch_size=1, **more)
    return RankLayout(
        plan,
        dict.fromkeys(plan.domains, devices),
        per_node if isinstance(per_node, dict) else dict.fromkeys(plan.domains, per_node),
        dict.fromkeys(plan.domains, "card"),
    )


def chain(*stages, replicas=1, microbatches=4):
    """Stages as (domain, layers, tensor_parallel)."""
    made, first = [], 0
    for domain, layers, ranks in stages:
        made.append(Stage(domain, first, layers, ranks))
        first += layers
    return Pipeline(tuple(made), replicas, microbatches)


def layers_of(rank):
    return [n for first, last in rank.chunks for n in range(first, last + 1)]


@st.composite
def layouts(draw):
    num_layers = draw(st.integers(2, 9))
    per_node = {name: draw(st.sampled_from([1, 2, 3, 4, 8])) for name in "abc"}
    pipelines = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = draw(st.sets(st.integers(1, num_layers - 1), max_size=3))
        counts = [b - a for a, b in pairwise([0, *sorted(cuts), num_layers])]
        names = [draw(st.sampled_from("abc")) for _ in counts]
        ranks = [draw(st.sampled_from([n for n in (1, 2, 3, 4, 8) if n <= per_node[name]])) for name in names]
        stages = zip(names, counts, ranks, strict=True)
        pipelines.append(chain(*stages, replicas=draw(st.integers(1, 3))))
    virtual = draw(st.integers(1, 3)) if all(len(p.stages) > 1 for p in pipelines) else 1
    return layout(*pipelines, per_node=per_node, virtual_stages=virtual)


def test_copies_follow_each_other_and_stages_inside_a_copy():
    ranks = rank_map(layout(chain(("a", 3, 2), ("a", 2, 2), ("b", 3, 4), replicas=2))).ranks
    assert [(r.domain, r.node, r.local_rank, r.copy, r.stage, r.tensor_rank) for r in ranks[:9]] == [
        ("a", 0, 0, 0, 0, 0),
        ("a", 0, 1, 0, 0, 1),
        ("a", 0, 2, 0, 1, 0),
        ("a", 0, 3, 0, 1, 1),
        ("a", 0, 4, 1, 0, 0),
        ("a", 0, 5, 1, 0, 1),
        ("a", 0, 6, 1, 1, 0),
        ("a", 0, 7, 1, 1, 1),
        ("b", 0, 0, 0, 2, 0),
    ]
    assert [r.chunks for r in ranks[:9:2]] == [((0, 2),), ((3, 4),), ((0, 2),), ((3, 4),), ((5, 7),)]


def test_groups_of_two_pipelines_cut_at_other_layers_cover_what_both_hold():
    groups = rank_map(layout(chain(("a", 2, 2), ("a", 4, 1)), chain(("b", 4, 1), ("b", 2, 1)))).data_groups
    assert [(g.first_layer, g.last_layer, g.shard, g.num_shards, g.ranks) for g in groups] == [
        (0, 1, 0, 2, (0, 3)),
        (0, 1, 1, 2, (1, 3)),
        (2, 3, 0, 1, (2, 3)),
        (4, 5, 0, 1, (2, 4)),
    ]


def test_a_narrow_stage_is_in_several_chains():
    assert rank_map(layout(chain(("a", 2, 2), ("b", 2, 1)))).pipeline_groups == ((0, 2), (1, 2))


def test_devices_left_over_in_a_node_stay_idle():
    ranks = rank_map(layout(chain(("a", 4, 3), replicas=3), per_node=8)).ranks
    assert [(r.node, r.local_rank) for r in ranks[5:]] == [(0, 5), (1, 0), (1, 1), (1, 2)]
    with pytest.raises(UsageError, match="take 11 devices of 9"):
        rank_map(layout(chain(("a", 4, 3), replicas=3), per_node=8, devices=9))


def test_chunks_of_an_interleaved_plan_lie_a_round_apart():
    ranks = rank_map(layout(chain(("a", 6, 1), ("a", 5, 1)), virtual_stages=2)).ranks
    # Stage 0 has the embedding and 5 transformer layers, stage 1 4 and the head.
    assert [r.chunks for r in ranks] == [((0, 2), (5, 7)), ((3, 4), (8, 10))]


def test_a_single_stage_has_nothing_to_interleave_with():
    with pytest.raises(UsageError, match="nothing to interleave with: virtual_stages 2"):
        rank_map(layout(chain(("a", 4, 1)), virtual_stages=2))


@given(layouts())
def test_a_stage_of_an_interleaved_plan_keeps_its_number_of_layers(layout):
    for rank in rank_map(layout).ranks:
        assert len(layers_of(rank)) == layout.plan.pipelines[rank.pipeline].stages[rank.stage].num_layers
        assert len(rank.chunks) == layout.plan.virtual_stages


@given(layouts())
def test_every_device_of_the_plan_has_one_rank(layout):
    ranks = rank_map(layout).ranks
    assert [rank.rank for rank in ranks] == list(range(len(ranks)))
    assert len({rank.device for rank in ranks}) == len(ranks)
    assert Counter(rank.domain for rank in ranks) == layout.plan.devices()
    assert all(rank.local_rank < layout.devices_per_node[rank.domain] for rank in ranks)


@given(layouts())
def test_ranks_walk_the_nodes_in_turn_and_fill_them_from_the_first_device(layout):
    found = rank_map(layout)
    flat = [rank for nodes in domain_nodes(found) for node in nodes.nodes for rank in node]
    assert [rank.rank for rank in flat] == list(range(len(flat)))
    for node in found.nodes().values():
        assert [rank.local_rank for rank in node] == list(range(len(node)))
    for nodes in domain_nodes(found):
        assert [node[0].node for node in nodes.nodes] == list(range(len(nodes.nodes)))


@given(layouts())
def test_tensor_groups_stay_in_one_node_and_hold_one_stage(layout):
    found = rank_map(layout)
    for group in found.tensor_groups:
        members = [found.ranks[rank] for rank in group]
        assert len({(r.domain, r.node, r.pipeline, r.copy, r.stage) for r in members}) == 1
        assert [r.tensor_rank for r in members] == list(range(len(members)))
    assert sorted(rank for group in found.tensor_groups for rank in group) == list(range(len(found.ranks)))


@given(layouts())
def test_every_layer_is_covered_once_a_copy(layout):
    found = rank_map(layout)
    for p, pipeline in enumerate(layout.plan.pipelines):
        for copy in range(pipeline.replicas):
            held = [r for r in found.ranks if (r.pipeline, r.copy, r.tensor_rank) == (p, copy, 0)]
            layers = [n for r in held for n in layers_of(r)]
            assert sorted(layers) == list(range(found.num_layers))


@given(layouts())
def test_every_shard_of_every_layer_is_summed_over_all_copies_once(layout):
    found = rank_map(layout)
    copies = sum(pipeline.replicas for pipeline in layout.plan.pipelines)
    for layer in range(found.num_layers):
        groups = [g for g in found.data_groups if g.first_layer <= layer <= g.last_layer]
        assert [g.shard for g in groups] == list(range(groups[0].num_shards))
        for group in groups:
            members = [found.ranks[rank] for rank in group.ranks]
            assert len({(r.pipeline, r.copy) for r in members}) == len(members) == copies
            assert all(layer in layers_of(r) for r in members)
        assert {rank for g in groups for rank in g.ranks} == {r.rank for r in found.ranks if layer in layers_of(r)}


@given(layouts(), st.randoms(use_true_random=False))
def test_other_numbers_leave_every_process_on_its_device(layout, random):
    found = rank_map(layout)
    order = list(range(len(found.ranks)))
    random.shuffle(order)
    other = found.renumbered(order)
    assert [rank.device for rank in other.ranks] == [found.ranks[old].device for old in order]
    back = other.renumbered([other.ranks.index(rank) for rank in sorted(other.ranks, key=lambda r: order[r.rank])])
    assert back == found


def test_names_become_safe_and_stay_different():
    assert slugs(["US East", "us/east", "中文", "x" * 99]) == ["us-east", "us-east-2", "domain", "x" * 24]
