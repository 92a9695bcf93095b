import asyncio
import json

import httpx
import numpy as np
import pytest

from strata.serving.wire import StepHeader
from strata.serving.worker.app import frame
from strata.serving.worker.links import (
    STEP_HEADER,
    HttpGateway,
    HttpPeers,
    Unreachable,
    from_bytes,
    hops,
    to_bytes,
)
from tests.serving.worker.builders import Cluster

TOKEN = {"authorization": "Bearer secret"}


class Wired:
    """A cluster whose workers reach each other over HTTP, in process."""

    def __init__(self, *cuts, token=""):
        self.cluster = Cluster(*cuts)
        self.drained = []
        mounts, self.frames = {}, {}
        for worker in self.cluster.workers:
            worker.stage.url = f"http://{worker.node_id}"
            made = frame(worker, token=token, lifespan=None, on_drain=lambda: self.drained.append(True))
            self.frames[worker.node_id] = made
            mounts[worker.stage.url] = httpx.ASGITransport(made)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(mounts=mounts, headers=headers, transport=Nothing())
        for worker in self.cluster.workers:
            peers = HttpPeers(self.client, node_id=worker.node_id, step_limit_s=5.0)
            worker.peers = worker.stage.peers = peers

    async def __aenter__(self):
        await self.cluster.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.cluster.settled()
        await self.cluster.__aexit__(*error)
        await self.client.aclose()

    async def post(self, path, body, **options):
        return await self.client.post(f"http://a/{path}", content=body, **options)

    async def generate(self, **fields):
        answer = await self.post("generate", self.cluster.message(**fields).model_dump_json())
        return [json.loads(line) for line in answer.text.splitlines()]


class Nothing(httpx.AsyncBaseTransport):
    """Nobody is there."""

    async def handle_async_request(self, request):
        raise httpx.ConnectError("nobody is there")


def run(work):
    return asyncio.run(asyncio.wait_for(work, 120))


def test_a_chain_over_http_says_what_one_worker_says():
    async def said(*cuts):
        async with Wired(*cuts, token="secret") as wired:
            return await wired.generate(max_tokens=9)

    lines = run(said(2, 4))
    assert lines == run(said())
    assert [set(line) for line in lines] == [{"token"}] * 9 + [{"finish"}]


def test_a_worker_that_is_gone_is_named_over_http():
    async def timeline():
        async with Wired(2, 4) as wired:
            message = wired.cluster.message()
            stages = (*message.stages[:2], message.stages[2].model_copy(update={"url": "http://gone"}))
            return await wired.post("generate", message.model_copy(update={"stages": stages}).model_dump_json())

    line = json.loads(run(timeline()).text)
    assert line == {"error": "http://gone/step: ConnectError: nobody is there", "node_id": "c"}


def test_nothing_but_health_is_open_without_the_node_token():
    async def statuses():
        async with Wired(token="secret") as wired:
            wired.client.headers.pop("authorization")
            posts = ["load", "release", "generate", "token", "abort", "step"]
            closed = [(await wired.post(path, b"{}")).status_code for path in posts]
            closed.append((await wired.client.get("http://a/metrics")).status_code)
            return closed, (await wired.client.get("http://a/healthz")).status_code

    assert run(statuses()) == ([401] * 7, 200)


@pytest.mark.parametrize("path", ["load", "release", "generate", "token", "abort", "step"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version": -1}', b'{"extra": 1}'])
def test_what_is_no_message_is_refused(path, body):
    async def status():
        async with Wired() as wired:
            return (await wired.post(path, body)).status_code

    assert run(status()) == 422


def test_layers_that_do_not_fit_are_refused_with_a_reason():
    async def answer():
        async with Wired() as wired:
            return await wired.post("load", b'{"version": 2, "first": 0, "end": 99}')

    refused = run(answer())
    assert refused.status_code == 409
    assert refused.json()["error"]["message"] == "a model of 6 layers has no layers [0, 99)"


def test_activations_of_another_width_are_a_fault_of_nobody():
    async def answer():
        async with Wired() as wired:
            header = StepHeader(
                request_id="r", attempt=1, position=0, step=0, stages=wired.cluster.message().stages,
                first_url="", kv_tokens=9,
            )  # fmt: skip
            return await wired.post("step", bytes(10), headers={STEP_HEADER: header.model_dump_json()})

    fault = run(answer())
    assert fault.status_code == 502
    assert fault.json() == {
        "error": "10 bytes are not a whole number of activations of 4 float32 values",
        "node_id": None,
    }


def test_activations_travel_unchanged():
    hidden = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    assert np.array_equal(from_bytes(to_bytes(hidden), 4), hidden)


def test_a_body_larger_than_any_prompt_is_refused():
    async def status():
        async with Wired() as wired:
            return (await wired.post("step", bytes(2**20))).status_code

    assert run(status()) == 413


def test_a_worker_that_stops_begins_nothing_but_finishes_what_runs():
    async def timeline():
        async with Wired() as wired:
            wired.frames["a"].drain()
            wired.frames["a"].drain()
            refused = await wired.post("generate", wired.cluster.message().model_dump_json())
            deep = await wired.post("token", b'{"request_id": "r", "attempt": 1, "step": 0, "token": 1}')
            await wired.frames["a"].idle()
            return refused.status_code, deep.status_code, wired.drained

    assert run(timeline()) == (503, 204, [True])


def test_a_worker_is_idle_when_no_chain_passes_through_it():
    async def timeline():
        async with Wired(3) as wired:
            b = wired.cluster.workers[1]
            sent = asyncio.Event()
            lines = wired.cluster.workers[0].generate(wired.cluster.message(max_tokens=60))
            await anext(lines)
            waiting = asyncio.create_task(wired.frames["b"].idle())
            waiting.add_done_callback(lambda _: sent.set())
            assert b.running == ("r",)
            await lines.aclose()
            await asyncio.wait_for(sent.wait(), 120)
            return b.running

    assert run(timeline()) == ()


def test_the_metrics_count_what_was_said():
    async def page():
        async with Wired() as wired:
            await wired.generate(max_tokens=7)
            return (await wired.client.get("http://a/metrics")).text

    lines = run(page()).splitlines()
    assert "strata_worker_tokens_total 7.0" in lines
    assert "strata_worker_sequences 0.0" in lines
    assert 'strata_worker_layers{version="1"} 6.0' in lines


def test_only_peers_that_answer_have_a_latency():
    async def measured():
        async with Wired(3) as wired:
            return await hops(wired.client, {"a": "http://a", "gone": "http://gone", "b": "http://b"})

    found = run(measured())
    assert sorted(found) == ["a", "b"]
    assert all(0 < latency_s < 10 for latency_s in found.values())


def test_a_gateway_that_is_not_there_is_said_to_be_unreachable():
    async def post():
        async with Wired() as wired:
            await HttpGateway(wired.client, "http://gone/").post("/nodes/heartbeat", wired.cluster.message())

    with pytest.raises(Unreachable, match="http://gone/nodes/heartbeat: ConnectError"):
        run(post())
