"""What requests turn out to be changes what is planned for: not at once, not for little, never to less room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.serving.live.instructions import Replan
from strata.serving.live.replan import answer
from strata.serving.live.traffic import DRIFT, LEAST, Traffic
from strata.workload.serving_job import Demand
from tests.serving.live.cluster import DEMAND, Cluster, node, request

ASSUMED = Demand(8, 128, 128)
WINDOW_S = 600.0


def seen(*requests: tuple[int, int], peak: int = 1, at_s: float = 0.0) -> Traffic:
    traffic = Traffic(WINDOW_S)
    for prompt, output in requests:
        traffic.finished(prompt, output, at_s)
    traffic.unfinished(peak, at_s)
    return traffic


def demand(traffic: Traffic, *, now: Demand = ASSUMED, pipelines: int = 1, now_s: float = 0.0) -> Demand:
    return traffic.demand(ASSUMED, now, pipelines=pipelines, now_s=now_s)


def test_a_few_requests_change_nothing() -> None:
    assert demand(seen(*[(4000, 4000)] * (LEAST - 1), peak=99)) == ASSUMED


def test_means_of_many_requests_are_planned_for() -> None:
    traffic = seen(*[(1000, 10), (3000, 30)] * LEAST, peak=60)
    assert demand(traffic, pipelines=4) == Demand(15, 2000, 20)


@given(st.floats(1 / DRIFT + 0.01, DRIFT - 0.01), st.integers(0, 8))
def test_what_is_near_to_the_plan_changes_nothing(factor: float, peak: int) -> None:
    tokens = round(128 * factor)
    assert demand(seen(*[(tokens, tokens)] * LEAST, peak=peak)) == ASSUMED


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=80), st.integers(0, 900))
def test_a_demand_that_was_learned_is_learned_once(requests: list[tuple[int, int]], peak: int) -> None:
    traffic = seen(*requests, peak=peak)
    learned = demand(traffic)
    assert demand(traffic, now=learned) == learned
    assert learned.batch >= ASSUMED.batch
    assert min(learned.prompt_tokens, learned.output_tokens) >= 1


def test_a_quiet_hour_leaves_the_plan_as_it_is() -> None:
    traffic = seen(*[(2000, 500)] * LEAST, peak=40)
    learned = demand(traffic)
    assert learned == Demand(40, 2000, 500)
    assert demand(traffic, now=learned, now_s=2 * WINDOW_S) == learned


def serve(cluster: Cluster, count: int, *, prompt: int, output: int) -> None:
    for i in range(count):
        name = f"{cluster.now_s}-{i}"
        cluster.send(request(name, prompt=prompt, output=output))
        cluster.finish(name, tokens=output)


def test_the_scheduler_plans_for_the_requests_that_come() -> None:
    cluster = Cluster("a", "b", learns=True)
    serving = cluster.core.serving()
    serve(cluster, LEAST, prompt=3000, output=20)
    cluster.run(2.0)
    assert cluster.core.demand == DEMAND
    cluster.run(90.0)
    assert cluster.core.status()["planned_for"] == {"batch": 8, "prompt_tokens": 3000, "output_tokens": 20}
    assert cluster.core.serving() == serving
    plans = [one for one in cluster.log if isinstance(one, Replan)]
    cluster.run(600.0)
    assert [one for one in cluster.log if isinstance(one, Replan)] == plans


def test_a_scheduler_that_is_told_its_demand_keeps_it() -> None:
    cluster = Cluster("a", "b")
    serve(cluster, 2 * LEAST, prompt=3000, output=20)
    cluster.run(200.0)
    assert cluster.core.demand == DEMAND


def test_routers_reckon_with_what_was_learned() -> None:
    cluster = Cluster("a", "b", learns=True)
    before = cluster.core.nodes()[0].slots
    serve(cluster, LEAST, prompt=20, output=20)
    cluster.run(90.0)
    assert cluster.core.nodes()[0].slots > before


def test_whole_engines_serve_on_whatever_is_learned() -> None:
    cluster = Cluster(node("engine", model="llama", slots=4, kv_tokens=100_000), learns=True)
    serving = cluster.core.serving()
    serve(cluster, LEAST, prompt=3000, output=20)
    cluster.run(90.0)
    assert cluster.core.demand.prompt_tokens == 3000
    assert cluster.core.serving() == serving
    assert cluster.core.status()["reasons"] == []


def test_more_than_there_is_room_for_takes_nothing_down() -> None:
    """Planned for fewer sequences at once then: what serves goes on serving."""
    cluster = Cluster("a", "b")
    serving = cluster.core.serving()
    nodes = tuple(node(name) for name in "ab")
    huge = Demand(256, 8000, 8000)
    plan = Replan(99, nodes, current=serving)
    (pipeline,) = answer(plan, cluster.core.model, huge, cluster.core.config).pipelines
    assert [stage.node_id for stage in pipeline] == [stage.node_id for stage in serving[0]]
    assert answer(Replan(99, nodes), cluster.core.model, huge, cluster.core.config).pipelines
