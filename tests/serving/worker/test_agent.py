import asyncio
import json

import pytest

from strata.errors import UsageError
from strata.serving.wire import Desired, JoinMessage, RangeMessage
from strata.serving.worker.agent import LONGEST_WAIT_S, Agent, wait_s
from strata.serving.worker.holder import Holder, Refused
from strata.serving.worker.links import GatewayReply, Unreachable
from tests.serving.worker.builders import SHAPE, NumberMaker

CARD = JoinMessage(
    node_id="a", incarnation=7, url="http://a", compute_capability=1e9, memory_bytes=1e6,
    memory_bandwidth_bytes_per_s=1e9,
)  # fmt: skip


class FakeHost:
    running = ("r",)

    def __init__(self):
        self.holder = Holder(SHAPE, NumberMaker(), memory_bytes=1e6, slots=4)
        self.asked = []

    def take_samples(self):
        return ()

    def is_stuck(self):
        return False

    def load(self, wanted):
        self.asked.append(wanted.version)
        missing = self.holder.open(wanted.version, wanted.first, wanted.end)
        if missing is not None:
            self.holder.close(wanted.version, dict.fromkeys(missing, 0))


class Scripted:
    """A gateway that answers as told, then is silent for ever."""

    def __init__(self, *answers):
        self.answers, self.heard = list(answers), []

    async def post(self, path, message):
        self.heard.append((path.removeprefix("/nodes/"), message))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    @property
    def paths(self):
        return [path for path, _ in self.heard]


def desired(*versions, peers=None):
    ranges = tuple(RangeMessage(version=version, first=0, end=2) for version in versions)
    return GatewayReply(
        200, "", Desired(ranges=ranges, peers=peers or {}, heartbeat_interval_s=2).model_dump_json().encode()
    )


def refusal(status, code=""):
    return GatewayReply(status, code, json.dumps({"error": {"code": code}}).encode())


def live(*answers, host=None, measure=None, before_end=lambda: None):
    """Run an agent through the answers; return the agent, what the gateway heard, and the pauses."""

    async def run():
        pauses, gateway = [], Scripted(*answers)

        async def sleep(seconds):
            pauses.append(seconds)
            await asyncio.sleep(0)

        agent = Agent(CARD, gateway, host or FakeHost(), measure=measure, usage=lambda: {"cpu": 0.25}, sleep=sleep)
        work = asyncio.create_task(agent.run())
        async with asyncio.timeout(120):
            while len(gateway.heard) <= len(answers) and not work.done():
                await asyncio.sleep(0)
        if work.done():
            await work
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return agent, gateway, pauses

    return asyncio.run(run())


async def beats(agent, gateway, messages):
    """Let an agent measure and beat until the gateway has heard so many messages."""
    work = [asyncio.create_task(agent.run()), asyncio.create_task(agent.measure_forever())]
    async with asyncio.timeout(120):
        while len(gateway.heard) < messages:
            await asyncio.sleep(0)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)


def test_a_worker_joins_once_and_then_beats():
    _, gateway, pauses = live(desired(), desired(), desired())
    assert gateway.paths == ["join", "heartbeat", "heartbeat", "heartbeat"]
    assert pauses == [2, 2, 2]
    assert gateway.heard[0][1] == CARD


def test_a_beat_says_what_runs_and_what_is_loaded():
    _, gateway, _ = live(desired(3))
    heartbeat = gateway.heard[1][1]
    assert (heartbeat.node_id, heartbeat.incarnation, heartbeat.running, heartbeat.loaded) == (
        "a",
        7,
        ("r",),
        (3,),
    )
    assert heartbeat.usage == {"cpu": 0.25}


def test_a_gateway_that_forgot_the_worker_is_joined_again():
    _, gateway, _ = live(desired(), refusal(409, "join-again"), desired())
    assert gateway.paths == ["join", "heartbeat", "join", "heartbeat"]


def test_an_outage_is_waited_out_ever_longer_but_never_longer_than_a_beat():
    gone = [Unreachable("gone")] * 6
    _, gateway, pauses = live(desired(), *gone, desired())
    assert gateway.paths == ["join"] + ["heartbeat"] * 8
    assert pauses == pytest.approx([2, 0.2, 0.4, 0.8, 1.6, 2, 2, 2])


def test_what_is_no_gateway_is_not_heeded():
    _, gateway, _ = live(GatewayReply(200, "", b"<html>"), desired())
    assert gateway.paths == ["join", "join", "heartbeat"]


def test_a_gateway_that_has_trouble_is_asked_again():
    _, gateway, _ = live(refusal(503), refusal(429), desired())
    assert gateway.paths == ["join", "join", "join", "heartbeat"]


@pytest.mark.parametrize("status_and_code", [(409, "other-model"), (401, ""), (404, "no-workers"), (422, "")])
def test_a_refusal_that_waiting_does_not_change_ends_the_worker(status_and_code):
    with pytest.raises(UsageError, match="the gateway refuses a"):
        live(refusal(*status_and_code))


def test_a_worker_whose_name_is_another_s_from_the_start_ends():
    with pytest.raises(UsageError, match="409 node-name-taken"):
        live(refusal(409, "node-name-taken"))


@pytest.mark.parametrize("code", ["node-stale", "join-again"])
def test_a_worker_that_had_its_name_before_another_took_it_waits_to_have_it_again(code):
    """Found in a review: a second worker with the same --id threw the healthy one out for good."""
    taken = refusal(409, "node-name-taken")
    _, gateway, _ = live(desired(), refusal(409, code), taken, taken, desired())
    assert gateway.paths == ["join", "heartbeat", "join", "join", "join", "heartbeat"]


def test_a_worker_whose_clock_was_set_back_waits_for_its_former_life_to_be_forgotten():
    _, gateway, _ = live(refusal(409, "node-stale"), desired())
    assert gateway.paths == ["join", "join", "heartbeat"]


def test_what_is_wanted_is_loaded_and_what_is_not_is_let_go():
    host = FakeHost()
    live(desired(1), desired(1, 2), desired(2), host=host)
    assert list(host.holder.plans) == [2]


def test_a_plan_that_came_while_the_gateway_was_asked_is_kept():
    host = FakeHost()

    def answered_late():
        host.load(RangeMessage(version=9, first=0, end=2))
        return desired()

    live(desired(), answered_late, host=host)
    assert list(host.holder.plans) == [9]


def test_layers_that_do_not_fit_do_not_stop_the_beats():
    class Full(FakeHost):
        def load(self, wanted):
            raise Refused("too large")

    _, gateway, _ = live(desired(1), desired(1), host=Full())
    assert gateway.paths == ["join", "heartbeat", "heartbeat"]


def test_peers_that_never_answer_do_not_delay_a_beat():
    async def run():
        gateway = Scripted(*[desired(peers={"b": "http://b"})] * 5)
        never = asyncio.Event()

        async def measure(peers):
            await never.wait()

        async def sleep(seconds):
            await asyncio.sleep(0)

        agent = Agent(CARD, gateway, FakeHost(), measure=measure, usage=dict, sleep=sleep)
        await beats(agent, gateway, 6)
        return gateway.paths

    assert asyncio.run(run()) == ["join"] + ["heartbeat"] * 5


def test_a_latency_is_told_once():
    async def run():
        gateway = Scripted(*[desired(peers={"b": "http://b"})] * 3)
        measured = asyncio.Event()

        async def measure(peers):
            assert peers == {"b": "http://b"}
            measured.set()
            return {"b": 0.01}

        async def sleep(seconds):
            await asyncio.sleep(0)

        agent = Agent(CARD, gateway, FakeHost(), measure=measure, usage=dict, sleep=sleep)
        await agent._turn()
        once = asyncio.create_task(agent.measure_forever())
        await asyncio.wait_for(measured.wait(), 120)
        once.cancel()
        await asyncio.gather(once, return_exceptions=True)
        await agent._turn()
        await agent._turn()
        return [message.hop_s for path, message in gateway.heard if path == "heartbeat"]

    assert asyncio.run(run()) == [{"b": 0.01}, {}]


def test_the_way_to_a_new_peer_is_measured_and_told_at_once():
    """It was told with the next heartbeat but one; until then requests were foreseen at 0.1 s a hop."""

    async def run():
        gateway = Scripted(desired(), *[desired(peers={"b": "http://b"})] * 4)

        async def measure(peers):
            return {"b": 0.01}

        async def sleep(seconds):
            await asyncio.Event().wait()

        agent = Agent(CARD, gateway, FakeHost(), measure=measure, usage=dict, sleep=sleep)
        await agent._turn()  # nobody else is there yet
        await beats(agent, gateway, 3)
        return [message.hop_s for path, message in gateway.heard if path == "heartbeat"]

    assert asyncio.run(run()) == [{}, {"b": 0.01}]


def test_a_gateway_that_is_gone_does_not_keep_a_worker_from_leaving():
    async def run():
        gateway = Scripted(Unreachable("gone"), Unreachable("gone"))
        agent = Agent(CARD, gateway, FakeHost(), measure=None, usage=dict)
        await agent.loaded(4)
        await agent.leave()
        return gateway

    gateway = asyncio.run(run())
    assert gateway.paths == ["loaded", "leave"]
    assert gateway.heard[0][1].version == 4


def test_pauses_grow_and_end():
    pauses = [wait_s(n, 60.0) for n in range(1, 2000)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_WAIT_S
