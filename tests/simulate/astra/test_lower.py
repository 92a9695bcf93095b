"""From plans to ranks, dimensions and traces, and what is refused because it would be silently wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.analytic import StepModel
from strata.simulate.astra.chakra import NodeType
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.astra.files import common_files, network_yml
from strata.simulate.astra.lower import Aggregation, Refused, lower
from strata.simulate.astra.validate import check_scenario
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import GBPS, domain, fleet, job, layers, link, tied

DOMAINS = (domain("a", 16), domain("b", 16), domain("c", 16))
MODEL = StepModel(fleet(*DOMAINS, domain("d", 16)), job())
UNLIKE = StepModel(fleet(*DOMAINS, links=[*link("a", "b", 5, 30), *link("b", "c", 3, 50), *link("a", "c", 2, 80)]),
                   job())  # fmt: skip


def chain(names, *, copies=1, microbatches=4, tensor_parallel=2, **more):
    """A pipeline over `names`, layers split as evenly as they go."""
    count = len(names)
    cuts = [10 * i // count for i in range(count + 1)]
    stages = tuple(
        Stage(name, cuts[i], cuts[i + 1] - cuts[i], tensor_parallel, count - 1 - i) for i, name in enumerate(names)
    )
    return Pipeline(stages, copies, microbatches)


def plan(*pipelines, **more):
    return TrainingPlan(pipelines, 2, **more)


def kinds(nodes):
    return [node.type.name.removeprefix("COMM_").lower() for node in nodes]


def token(caught):
    return [reason.token for reason in caught.value.reasons]


def test_a_stage_a_domain_is_one_dimension_of_the_aware_backend():
    low = lower(MODEL, plan(chain("abc")))
    (dim,) = low.scenario.dims
    assert (low.backend, dim.size, dim.topology) == (AstraBackend.AWARE, 3, "FullyConnected")
    assert dim.bandwidth_bytes_per_s == pytest.approx(5 * GBPS)
    assert dim.latency_s == 0.03
    assert low.labels[1] == "pipeline 0 copy 0 stage 1 (b)"


def test_the_last_stage_alternates_and_the_first_warms_up():
    first, _, last = lower(MODEL, plan(chain("abc", microbatches=3))).scenario.traces
    names = [[node.name for node in nodes if node.type is NodeType.COMP] for nodes in (first, last)]
    assert names == [
        ["F0", "F1", "F2", "B0", "B1", "B2", "update"],
        ["F0", "B0", "F1", "B1", "F2", "B2", "update"],
    ]


def test_a_middle_stage_receives_computes_and_sends():
    _, middle, _ = lower(MODEL, plan(chain("abc", microbatches=1))).scenario.traces
    assert kinds(middle) == ["recv", "comp", "send", "recv", "comp", "send", "comp"]
    forward, send = middle[1], middle[2]
    assert (forward.data_deps, send.data_deps) == ((0,), (1,))
    assert send.attrs == {"comm_src": 1, "comm_dst": 2, "comm_size": 2 * 32 * 2**20, "comm_tag": 0}


def test_durations_are_the_analytic_ones_in_microseconds():
    shape = plan(chain("abc"))
    times = MODEL.times(shape, shape.pipelines[0])
    for stage, nodes in enumerate(lower(MODEL, shape).scenario.traces):
        spans = {node.name[0]: node.duration_us for node in nodes if node.type is NodeType.COMP}
        assert spans["F"] / 1e6 == pytest.approx(times.forward_s[stage], abs=5e-7)
        assert spans["B"] / 1e6 == pytest.approx(times.backward_s[stage], abs=5e-7)


def test_stages_of_one_domain_have_a_dimension_of_their_own_and_meet_the_wan_at_one_place():
    low = lower(MODEL, plan(chain("aab")))
    assert (low.backend, [dim.size for dim in low.scenario.dims]) == (AstraBackend.UNAWARE, [2, 2])
    # a0 a1 | - b: the stage that receives over the WAN stands where its sender does; the other place idles.
    assert [label.partition("stage ")[2] for label in low.labels] == ["0 (a)", "1 (a)", "", "2 (b)"]
    assert kinds(low.scenario.traces[2]) == ["comp"]


def test_data_parallel_domains_are_a_grid_whose_sum_is_astra_sims_own():
    low = lower(MODEL, plan(*(chain(name, copies=4) for name in "abc")))
    assert [dim.size for dim in low.scenario.dims] == [4, 3]
    assert [dim.algorithm for dim in low.scenario.dims] == ["ring", "direct"]
    assert low.scenario.groups == ()
    for nodes in low.scenario.traces:
        (total,) = [node for node in nodes if node.type is NodeType.COMM_COLL]
        assert total.attrs["involved_dim"] == (True, True)
        assert total.attrs["comm_size"] == 10 * 100e6 * 2
    # Four ranks a domain share one link.
    assert low.scenario.dims[1].bandwidth_bytes_per_s == pytest.approx(5 * GBPS / 4)


def test_compressed_sums_go_through_groups_along_one_dimension_each():
    low = lower(MODEL, plan(*(chain(name, copies=2) for name in "ab"), gradient_compression=4.0))
    assert low.scenario.groups == ((0, 1), (0, 2), (1, 3), (2, 3))
    sums = [node for node in low.scenario.traces[0] if node.type is NodeType.COMM_COLL]
    assert [(node.name, node.attrs["comm_size"], node.attrs["pg_name"]) for node in sums] == [
        ("reduce_scatter", 2_000_000_000, "1"),
        ("all_reduce", 250_000_000, "2"),
        ("all_gather", 1_000_000_000, "1"),
    ]


def test_three_kinds_of_traffic_are_three_dimensions():
    low = lower(MODEL, plan(*(chain([name] * 2, copies=2) for name in "abc")))
    assert [dim.size for dim in low.scenario.dims] == [2, 2, 3]
    assert "sums between domains are a ring here; the analytic model takes direct" in low.notes


def test_a_plan_of_one_rank_gets_a_neighbour_without_work():
    low = lower(MODEL, plan(chain("a")))
    assert [len(label) > 0 for label in low.labels] == [True, False]


@given(
    names=st.sampled_from(["a", "ab", "abc", "aab", "aabbc", "abbb"]),
    copies=st.integers(1, 3),
    microbatches=st.integers(1, 5),
    apart=st.booleans(),
)
def test_whatever_is_lowered_passes_the_checks(names, copies, microbatches, apart):
    pipelines = [chain(names, copies=copies, microbatches=microbatches)]
    if apart and len(set(names)) == 1:
        pipelines = [chain([name] * len(names), copies=copies, microbatches=microbatches) for name in "abc"]
    elif apart and names == "ab":
        pipelines += [chain("cd", copies=copies, microbatches=microbatches)]
    for backend in (AstraBackend.AWARE, AstraBackend.UNAWARE):
        low = lower(MODEL, plan(*pipelines), backend=backend, aggregation=Aggregation.MIN)
        check_scenario(low.scenario, is_aware=backend is AstraBackend.AWARE)


def test_unlike_links_are_refused_until_an_aggregation_is_named():
    shape = plan(chain("abc"))
    with pytest.raises(Refused) as caught:
        lower(UNLIKE, shape)
    assert token(caught) == ["astra-links-differ"]
    assert caught.value.reasons[0].data == {"dimension": "domains", "low": "3Gbps, 50ms", "high": "5Gbps, 30ms"}


@pytest.mark.parametrize(("name", "gbps", "ms"), [("min", 3, 50), ("mean", 4, 40), ("max", 5, 30)])
def test_the_aggregation_is_used_and_said(name, gbps, ms):
    low = lower(UNLIKE, plan(chain("abc")), aggregation=Aggregation(name))
    (dim,) = low.scenario.dims
    assert dim.bandwidth_bytes_per_s == pytest.approx(gbps * GBPS)
    assert dim.latency_s == pytest.approx(ms / 1e3)
    assert low.notes[0] == (
        f"domains: links from 3Gbps, 50ms to 5Gbps, 30ms are all taken as {gbps}Gbps, {ms}ms ({name})"
    )


def test_a_link_that_is_slower_one_way_is_an_unlike_link():
    there, back = link("a", "b", 5, 30)
    model = StepModel(fleet(*DOMAINS[:2], links=[there, replace(back, bandwidth_bytes_per_s=GBPS)]), job())
    with pytest.raises(Refused) as caught:
        lower(model, plan(chain("ab")))
    assert token(caught) == ["astra-links-differ"]


def test_coming_back_to_a_domain_would_be_diagonal():
    with pytest.raises(Refused) as caught:
        lower(MODEL, plan(chain("aba")))
    assert token(caught) == ["astra-diagonal"]


def test_two_pipelines_in_one_domain_that_also_sum_would_be_diagonal():
    with pytest.raises(Refused) as caught:
        lower(MODEL, plan(chain("a"), chain("a")))
    assert token(caught) == ["astra-diagonal"]


@pytest.mark.parametrize(
    ("pipelines", "what"),
    [((chain("a", copies=2), chain("b", copies=3)), "copies"), ((chain("aa"), chain("b")), "layers a stage")],
)
def test_unequal_pipelines_are_refused(pipelines, what):
    with pytest.raises(Refused) as caught:
        lower(MODEL, plan(*pipelines))
    assert token(caught) == ["astra-unequal-domains"]
    assert caught.value.reasons[0].data["what"] == what


def test_the_aware_backend_refuses_two_dimensions_until_an_aggregation_is_named():
    shape = plan(chain("aab"))
    with pytest.raises(Refused) as caught:
        lower(MODEL, shape, backend=AstraBackend.AWARE)
    assert token(caught) == ["astra-one-dimension"]
    low = lower(MODEL, shape, backend=AstraBackend.AWARE, aggregation=Aggregation.MIN)
    assert [dim.size for dim in low.scenario.dims] == [3]
    assert low.notes[0].startswith("all links: links from 5Gbps, 30ms to ")


@pytest.mark.parametrize(
    ("change", "links_vary", "tokens"),
    [
        ({"schedule": Schedule.INTERLEAVED, "virtual_stages": 2}, False, ["astra-schedule"]),
        ({"schedule": Schedule.ZERO_BUBBLE}, False, ["astra-schedule"]),
        ({"local_steps": 50}, False, ["astra-schedule"]),
        ({}, True, ["astra-links-vary"]),
        ({"local_steps": 50}, True, ["astra-links-vary", "astra-schedule"]),
    ],
)
def test_what_no_trace_of_one_step_holds_is_refused(change, links_vary, tokens):
    with pytest.raises(Refused) as caught:
        lower(MODEL, plan(chain("a"), chain("b"), **change), links_vary=links_vary)
    assert token(caught) == tokens


@pytest.mark.parametrize("zero", [2, 3])
def test_what_is_exchanged_for_every_microbatch_is_refused(zero):
    copies = plan(chain("a", copies=2), zero_stage=zero)
    with pytest.raises(Refused, match=f"ZeRO stage {zero} exchanges"):
        lower(MODEL, copies)
    lower(MODEL, plan(chain("a"), zero_stage=zero))  # one copy exchanges nothing


def test_a_sum_without_a_link_is_refused():
    model = StepModel(fleet(*DOMAINS[:2], links=link("a", "b", 5, 30)[:1]), job())
    with pytest.raises(Refused) as caught:
        lower(model, plan(chain("a"), chain("b")))
    assert token(caught) == ["link-missing"]


def test_units_are_turned_once():
    low = lower(MODEL, plan(chain("abc")))
    network = yaml.safe_load(network_yml(low.scenario.dims))
    assert network["bandwidth"] == [pytest.approx(0.5820766091, rel=1e-9)]  # true 5 Gbps, not 0.625
    assert network["latency"] == [30e6]
    assert (network["topology"], network["npus_count"]) == (["FullyConnected"], [3])


def test_the_system_file_has_one_algorithm_a_dimension_and_one_chunk():
    files = common_files(["ring", "direct"], [(0, 2), (1, 3)], memory_bytes_per_s=2e12)
    system = json.loads(files["system.json"])
    assert system["all-reduce-implementation"] == ["ring", "direct"]
    assert (system["preferred-dataset-splits"], system["active-chunks-per-dimension"]) == (1, 1)
    assert system["local-mem-bw"] == 2000
    assert json.loads(files["groups.json"]) == {"1": [0, 2], "2": [1, 3]}


@pytest.mark.parametrize("copies", [1, 2])
def test_both_stages_that_have_the_table_of_a_tied_embedding_sum_its_gradients_last(copies):
    low = lower(StepModel(fleet(*DOMAINS), job(tied(layers(8), 2e8))), plan(chain("abc", copies=copies)))
    check_scenario(low.scenario, is_aware=low.backend is AstraBackend.AWARE)
    ends = {rank for rank, label in enumerate(low.labels) if "stage 1" not in label}
    for rank, nodes in enumerate(low.scenario.traces):
        sums = [dict(node.attrs)["comm_size"] for node in nodes if node.type is NodeType.COMM_COLL]
        assert (400_000_000 in sums) == (rank in ends)
        assert 400_000_000 not in sums[:-1]
