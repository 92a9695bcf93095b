"""What the gateway tells Prometheus of nodes, waiting and goodput, as its own parser reads it, and who asks."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.gateway.test_answers import run

FOLDER = Path(__file__).parents[3] / "deploy/components/serving-metrics"


def samples(text):
    """By name and labels but the model's."""
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "model")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def page_after(scenario):
    async def whole(world):
        await scenario(world)
        return (await world.get("/metrics")).text

    return samples(run(whole))


def test_nodes_say_how_busy_their_machines_are_and_what_went_through_them():
    async def scenario(world):
        usage = {"cpu": 0.5, "memory": 0.25, "gpu": 0.75, "gpu_memory": 1.0}
        for worker in world.workers:
            assert (await worker.tell("heartbeat", usage=usage)).status_code == 200
        await world.passes(5.0)
        await world.complete(tokens=8)

    page = page_after(scenario)
    shares = {key[2]: value for key, value in page.items() if key[:2] == ("strata_node_usage_ratio", "a")}
    assert shares == {"cpu": 0.5, "memory": 0.25, "gpu": 0.75, "gpu_memory": 1.0, "slots": 0.0, "kv": 0.0}
    assert page["strata_node_tokens_total", "a"] == 8
    assert page["strata_node_joins_total", "a"] == 1
    assert page["strata_requests_in_time_total",] == 1
    assert page["strata_oldest_wait_seconds",] == 0


def test_a_share_that_cannot_be_is_refused():
    async def scenario(world):
        worker = world.workers[0]
        return [
            (await worker.tell("heartbeat", usage=usage)).status_code
            for usage in ({"cpu": 1.5}, {"cpu": -0.1}, {"disk": 0.5})
        ]

    assert run(scenario) == [422, 422, 422]


def test_a_request_that_misses_its_goal_is_served_and_not_in_time():
    async def scenario(world):
        for each in world.workers:
            each.go.clear()
        answer = asyncio.create_task(
            world.client.post(
                "/v1/completions",
                json={"model": "tiny", "prompt": "hello", "max_tokens": 4},
                headers={"x-strata-ttft-ms": "5000"},
            )
        )
        waits = [asyncio.create_task(each.waits.wait()) for each in world.workers]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        world.now_s += 6.0
        for each in world.workers:
            each.go.set()
        assert (await answer).status_code == 200
        for wait in waits:
            wait.cancel()

    page = page_after(scenario)
    assert page["strata_requests_total", "length"] == 1
    assert page["strata_requests_in_time_total",] == 0


def test_alerts_and_the_page_ask_only_for_what_the_gateway_tells():
    async def scenario(world):
        await world.complete(tokens=2)
        return (await world.get("/metrics")).text

    names = {line.split()[2] for line in run(scenario).splitlines() if line.startswith("# TYPE")}
    wanted = set[str]()
    for file in ("alerts.yaml", "dashboard.json"):
        wanted |= set(re.findall(r"\bstrata_[a-z_]+", (FOLDER / file).read_text()))
    assert {name.removesuffix("_bucket") for name in wanted} <= names
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == {"QueueIsOld", "NodeFlaps", "GoodputIsLow", "NobodyServes"}
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in rules)
    titles = [panel["title"] for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]]
    assert len(titles) == len(set(titles)) == 13
