import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import numpy as np
import pytest

from strata.net.frames import HEADER, FrameConnection, FrameError, connect
from strata.net.server import listen, uvicorn_server
from strata.serving.wire import OpenMessage
from strata.serving.worker import steps as codec
from strata.serving.worker.app import body_bytes, frame
from strata.serving.worker.holder import AttemptKey
from strata.serving.worker.links import HttpGateway, Unreachable
from strata.serving.worker.peers import Links, patience_s, watch
from tests.serving.worker.builders import SHAPE, Cluster

TOKEN = {"authorization": "Bearer secret"}


class Wired(AsyncExitStack):
    """A cluster whose workers listen on the loopback and reach each other there."""

    def __init__(self, *cuts, token="", silence_s=60.0, fingerprint=SHAPE.fingerprint, **options):
        super().__init__()
        self.cluster = Cluster(*cuts, **options)
        self.drained = []
        self.frames, self.listeners = {}, {}
        for worker in self.cluster.workers:
            listener = self.enter_listener(worker.node_id)
            worker.stage.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            made = frame(worker, token=token, lifespan=None, on_drain=lambda: self.drained.append(True))
            self.frames[worker.node_id] = made
            links = Links(token=token, fingerprint=fingerprint, frame_bytes=body_bytes(SHAPE), silence_s=silence_s)
            links.on_fault, links.on_lost = worker.peers.on_fault, worker.peers.on_lost
            worker.peers = worker.stage.peers = links
        self.url = self.cluster.workers[0].stage.url
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(headers=headers, trust_env=False, timeout=120)

    def enter_listener(self, name):
        self.listeners[name] = listen("127.0.0.1", 0)
        return self.listeners[name]

    async def __aenter__(self):
        await super().__aenter__()
        for name, made in self.frames.items():
            await self.enter_async_context(_served(made, self.listeners[name]))
        await self.enter_async_context(self.cluster)
        await self.enter_async_context(self.client)
        return self

    async def post(self, path, body, **options):
        return await self.client.post(f"{self.url}/{path}", content=body, **options)

    async def generate(self, **fields):
        answer = await self.post("generate", self.cluster.message(**fields).model_dump_json())
        return [json.loads(line) for line in answer.text.splitlines()]

    async def free(self):
        """Wait until no worker holds anything."""
        while any(self.cluster.held.values()):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _served(made, listener):
    server = uvicorn_server(made)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listener.close()


class Peer:
    """What a worker hears of another one: its frames, and how it ended."""

    def __init__(self, frame_s=60.0):
        self.frames, self.ended = asyncio.Queue(), asyncio.get_running_loop().create_future()
        self.connection = FrameConnection(
            self.frames.put_nowait, self.ended.set_result, frame_bytes=2**16, frame_s=frame_s
        )

    async def open(self, wired, *, protocol=codec.PROTOCOL, headers=None, path=codec.PATH):
        headers = {codec.MODEL_HEADER: SHAPE.fingerprint} if headers is None else headers
        await connect(wired.url + path, self.connection, protocol=protocol, headers=headers, connect_s=60)
        return self

    def raw(self, data):
        self.connection._transport.write(data)


def opened(wired, **fields):
    given = {
        "request_id": "r",
        "attempt": 1,
        "sequence": 3,
        "stages": wired.cluster.message().stages,
        "first_url": "http://127.0.0.1:9",
        "drive": 0,
        "kv_tokens": 9,
    }
    return OpenMessage(**(given | fields)).model_dump_json().encode()


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
            stages = (*message.stages[:2], message.stages[2].model_copy(update={"url": "http://127.0.0.1:1"}))
            return await wired.post("generate", message.model_copy(update={"stages": stages}).model_dump_json())

    line = json.loads(run(timeline()).text)
    assert line["node_id"] == "c"
    assert line["error"].startswith("http://127.0.0.1:1: ConnectionRefusedError: ")


def test_nothing_but_health_is_open_without_the_node_token():
    async def statuses():
        async with Wired(token="secret") as wired:
            wired.client.headers.pop("authorization")
            closed = [
                (await wired.post(path, b"{}")).status_code for path in ("load", "release", "generate", "abort")
            ]
            closed += [
                (await wired.client.get(f"{wired.url}/{path}")).status_code for path in ("metrics", "steps")
            ]
            return closed, (await wired.client.get(f"{wired.url}/healthz")).status_code

    assert run(statuses()) == ([401] * 6, 200)


@pytest.mark.parametrize("path", ["load", "release", "generate", "abort"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version": -1}', b'{"extra": 1}'])
def test_what_is_no_message_is_refused(path, body):
    async def status():
        async with Wired() as wired:
            return (await wired.post(path, body)).status_code

    assert run(status()) == 422


def test_a_path_that_is_not_served_is_refused_as_all_else_is():
    async def asked():
        async with Wired() as wired:
            return [await wired.client.get(wired.url + path) for path in ("/v1/models", "/generate")]

    answers = run(asked())
    assert [(answer.status_code, answer.json()["error"]["message"]) for answer in answers] == [
        (404, "there is nothing at /v1/models"),
        (405, "/generate does not take GET"),
    ]


def test_layers_that_do_not_fit_are_refused_with_a_reason():
    async def answer():
        async with Wired() as wired:
            return await wired.post("load", b'{"version": 2, "first": 0, "end": 99}')

    refused = run(answer())
    assert refused.status_code == 409
    assert refused.json()["error"]["message"] == "a model of 6 layers has no layers [0, 99)"


def test_activations_travel_unchanged():
    hidden = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    rows = [codec.StepRow(7, 1, 100, 2), codec.StepRow(2**32 - 1, 9, 0, 3, 1, True)]
    payload = b"".join(codec.pack_steps([(rows[0], hidden[:2]), (rows[1], hidden[2:])]))
    back = codec.unpack_steps(2, payload, 4)
    assert [row for row, _ in back] == rows
    assert np.array_equal(np.concatenate([each for _, each in back]), hidden)


def test_a_body_larger_than_any_prompt_is_refused():
    async def status():
        async with Wired() as wired:
            return (await wired.post("generate", bytes(2**20))).status_code

    assert run(status()) == 413


def test_a_worker_that_stops_begins_nothing_but_finishes_what_runs():
    async def timeline():
        async with Wired() as wired:
            wired.frames["a"].drain()
            wired.frames["a"].drain()
            refused = await wired.post("generate", wired.cluster.message().model_dump_json())
            peer = await Peer().open(wired)
            peer.connection.send(codec.OPEN, 1, opened(wired))
            await peer.connection.ping()
            deep = wired.cluster.held
            peer.connection.close()
            await wired.frames["a"].idle()
            return refused.status_code, deep, wired.drained

    assert run(timeline()) == (503, {"a": 1}, [True])


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
            return (await wired.client.get(f"{wired.url}/metrics")).text

    lines = run(page()).splitlines()
    assert "strata_worker_tokens_total 7.0" in lines
    assert "strata_worker_sequences 0.0" in lines
    assert 'strata_worker_layers{version="1"} 6.0' in lines


def test_only_peers_that_answer_have_a_latency():
    async def measured():
        async with Wired(3) as wired:
            a, b = wired.cluster.workers
            silent = listen("127.0.0.1", 0)
            with silent:
                peers = {"b": b.stage.url, "gone": "http://127.0.0.1:1"}
                peers["silent"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
                return await a.peers.hops(peers)

    found = run(measured())
    assert sorted(found) == ["b"]
    assert all(0 < latency_s < 10 for latency_s in found.values())


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"headers": {codec.MODEL_HEADER: "another"}}, "answered 409 Conflict .*a hosts a different model"),
        ({"headers": {}}, "answered 409"),
        ({"protocol": "strata-steps/2"}, "answered 426 .*another version"),
        ({"path": "/elsewhere"}, "answered 404"),
        ({"path": "/healthz"}, "answered 200"),
    ],
)
def test_who_is_of_another_model_or_version_is_told_so(told, words):
    async def refused():
        async with Wired() as wired:
            with pytest.raises(FrameError, match=words):
                await Peer().open(wired, **told)

    run(refused())


def test_steps_need_the_node_token():
    async def opened_by(headers):
        async with Wired(token="secret") as wired:
            await Peer().open(wired, headers={codec.MODEL_HEADER: SHAPE.fingerprint} | headers)

    with pytest.raises(FrameError, match="answered 401"):
        run(opened_by({}))
    run(opened_by(TOKEN))


def test_a_worker_of_another_model_is_named_by_the_one_before_it():
    async def lines():
        async with Wired(3, fingerprint="another") as wired:
            return await wired.generate()

    (line,) = run(lines())
    assert line["node_id"] == "b"
    assert "b hosts a different model" in line["error"]


def step(count=1, *, rows=((3, 0, 0, 2, 0, False),), values=8, extra=b""):
    table = codec.pack_steps([(codec.StepRow(*row), np.zeros(0, np.float32)) for row in rows])
    payload = table[0] + bytes(4 * values) + extra
    return HEADER.pack(codec.STEP, count, len(payload)) + payload


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(HEADER.pack(codec.STEP, 1, 2**31), id="too large"),
        pytest.param(HEADER.pack(99, 1, 0), id="no kind"),
        pytest.param(HEADER.pack(codec.FAULT, 1, 2) + b"{}", id="the wrong way"),
        pytest.param(HEADER.pack(codec.OPEN, 1, 2) + b"{}", id="no sequence"),
        pytest.param(step(values=7), id="too few activations"),
        pytest.param(step(extra=b"1"), id="too many bytes"),
        pytest.param(step(count=400), id="fewer rows than said"),
        pytest.param(step(rows=((3, 0, 0, 0, 0, False),), values=0), id="a step of nothing"),
        pytest.param(step(rows=((3, 0, 0, 2, 3, False),)), id="more replayed than there is"),
        pytest.param(HEADER.pack(codec.RESULT, 2, 12) + bytes(12), id="half a result"),
        pytest.param(HEADER.pack(codec.END, 1, 3) + bytes(3), id="half a number"),
    ],
)
def test_what_is_no_frame_ends_the_connection_and_what_came_over_it(data):
    async def timeline():
        async with Wired() as wired:
            peer = await Peer().open(wired)
            peer.connection.send(codec.OPEN, 1, opened(wired))
            await peer.connection.ping()
            held = wired.cluster.held
            peer.raw(data)
            await peer.ended
            await wired.free()
            return held, await wired.generate(request_id="other", max_tokens=3)

    held, lines = run(timeline())
    assert held == {"a": 1}
    assert lines[-1] == {"finish": "length"}


@pytest.mark.parametrize("sent", [1, 7, 20, 28])
def test_a_frame_that_is_cut_off_ends_with_its_connection(sent):
    async def timeline():
        async with Wired() as wired:
            peer = await Peer().open(wired)
            peer.connection.send(codec.OPEN, 1, opened(wired))
            peer.raw(step()[:sent])
            peer.connection.close()
            await wired.free()
            return await wired.generate(request_id="other", max_tokens=3)

    assert run(timeline())[-1] == {"finish": "length"}


def test_a_peer_that_hangs_in_the_middle_of_a_frame_is_left():
    async def timeline():
        async with Wired(step_limit_s=0.05) as wired:
            peer = await Peer().open(wired)
            peer.connection.send(codec.OPEN, 1, opened(wired))
            peer.raw(step()[:20])
            await peer.ended
            await wired.free()

    run(timeline())


def test_a_worker_that_stands_still_is_named_by_the_one_before_it():
    async def timeline():
        async with Wired(silence_s=0.6) as wired:
            silent = await asyncio.start_server(_upgrade_and_be_silent, "127.0.0.1", 0)
            async with silent:
                url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
                here = wired.cluster.message().stages[0]
                there = here.model_copy(update={"node_id": "z", "url": url})
                message = wired.cluster.message().model_copy(update={"stages": (here, there)})
                answer = await wired.post("generate", message.model_dump_json())
                await wired.free()
                return json.loads(answer.text), url

    line, url = run(timeline())
    assert line == {"error": f"{url}: nothing was heard for 0.1 s", "node_id": "z"}  # a sixth, not the whole


def test_a_peer_that_took_long_to_answer_is_given_longer():
    assert [patience_s(30.0, longest_s) for longest_s in (0.0, 0.5, 2.0, 9.0)] == [5.0, 5.0, 10.0, 30.0]


class Taking:
    """A peer that takes what is sent to it, of that before a ping a byte a look, and answers nothing.

    others: bytes that others send it, the ways of which are measured, at every look.
    """

    def __init__(self, *, before, others=0, looks):
        self.num_sent, self.num_taken, self.others, self.looks = before, 0, others, looks
        self.heard_s = self.answered_s = 0.0
        self.why = ""

    @property
    def is_open(self):
        self.num_taken += 1 + self.others
        self.num_sent += self.others
        self.looks -= 1
        return self.looks > 0 and not self.why

    def send(self, kind, count):
        self.num_sent += 1

    def abort(self, why):
        self.why = why


def test_a_peer_that_takes_what_is_sent_is_alive_however_late_it_answers():
    """A long prompt's activations lie before the ping: a slow link is no silence."""
    peer = Taking(before=60, looks=60)
    run(watch(peer, silence_s=0.12))
    assert peer.why == ""


def test_a_peer_that_takes_the_ping_and_does_not_answer_is_left_whatever_else_it_takes():
    """Its kernel takes for it: each measurement of the way was taken for a sign of life."""
    peer = Taking(before=1, others=24, looks=600)
    run(watch(peer, silence_s=0.12))
    assert "nothing was heard" in peer.why


async def _upgrade_and_be_silent(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    await reader.read()
    writer.close()


def test_a_sequence_that_is_not_here_is_no_trouble():
    async def timeline():
        async with Wired() as wired:
            peer = await Peer().open(wired)
            peer.raw(step())
            peer.connection.send(codec.END, 1, codec.pack_end(8))
            peer.connection.send(codec.RESULT, 1, codec.pack_results([codec.ResultRow(5, 0, 1)]))
            await peer.connection.ping()
            peer.connection.send(codec.OPEN, 1, opened(wired, kv_tokens=10**8))
            return await peer.frames.get()

    fault = run(timeline())
    assert fault.kind == codec.FAULT
    assert json.loads(fault.payload)["error"].startswith("a: 100000000 tokens need ")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"{}", "Field required"),
        (b"\xff", "Invalid JSON"),
        (b'{"request_id": "r", "attempt": 1, "layer": 1, "tokens": 5}', "attempt 1 of r is not kept here"),
        (b'{"request_id": "s", "attempt": 1, "layer": 99, "tokens": 5}', "layer 99 has not 5 tokens"),
        (b'{"request_id": "s", "attempt": 1, "layer": 1, "tokens": 10000}', "layer 1 has not 10000 tokens"),
    ],
)
def test_keys_and_values_that_are_not_here_are_refused_with_a_reason(payload, words):
    async def answer():
        async with Wired() as wired:
            peer = await Peer().open(wired)
            peer.connection.send(codec.OPEN, 1, opened(wired, request_id="s"))
            peer.connection.send(codec.PARK, 1, codec.pack_end(3))
            peer.connection.send(codec.ASK_KV, 77, payload)
            frame = await peer.frames.get()
            return frame.kind, frame.number, frame.payload.decode()

    kind, number, text = run(answer())
    assert (kind, number) == (codec.NO_KV, 77)
    assert words in text


def test_an_end_frees_what_a_sequence_holds():
    async def timeline():
        async with Wired() as wired:
            peer = await Peer().open(wired)
            peer.connection.send(codec.OPEN, 1, opened(wired))
            await peer.connection.ping()
            held = list(wired.cluster.workers[0].holder.sequences)
            peer.connection.send(codec.END, 1, codec.pack_end(3))
            await wired.free()
            return held

    assert run(timeline()) == [AttemptKey("r", 1)]


def test_a_gateway_that_is_not_there_is_said_to_be_unreachable():
    async def post():
        async with Wired() as wired:
            await HttpGateway(wired.client, "http://127.0.0.1:1/").post(
                "/nodes/heartbeat", wired.cluster.message()
            )

    with pytest.raises(Unreachable, match=r"http://127.0.0.1:1/nodes/heartbeat: ConnectError"):
        run(post())
