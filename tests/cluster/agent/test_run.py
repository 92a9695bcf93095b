"""The agent alive, with a made-up API server: its turns by hand, its threads, and the real command."""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import httpx
import pytest

from strata.cluster.agent import run
from strata.cluster.agent.benchmark import Timing
from strata.cluster.agent.daemon import Agent, PublishInterval
from strata.cluster.agent.meters import AgentMetrics
from strata.cluster.agent.publish import MANAGER, Publisher
from strata.cluster.agent.run import ALIVE_S, AgentRunner
from strata.cluster.agent.sources import SPAN_S, ask_tools, run_benchmarks
from strata.cluster.agent.watch import BusWatch, DeviceFault
from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_NODE, Object, ObjectKind
from strata.errors import StrataError
from strata.fleet import nvml
from strata.fleet.catalogue import accelerator
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Device, Fingerprint, Probe
from strata.fleet.health import DeviceReading
from strata.net.server import listen

CARD = accelerator("H100-SXM5-80GB")


def device(i: int, **more: Any) -> Device:
    told: dict[str, Any] = {"bus_id": f"0000:{0x10 + i:02x}:00.0", "utilisation": 0.0, "memory_used_bytes": 1e9}
    return Device(i, f"GPU-{i}", CARD.name, "NVIDIA", CARD.memory_bytes, CARD, **(told | more))


def seen(*devices: Device, readings: Mapping[str, DeviceReading] | None = None) -> Collected:
    return Collected(Fingerprint("n", devices), readings or {})


class Server:
    """An API server that knows ComputeNodes, and is away, or refuses, while `trouble` is set."""

    def __init__(self) -> None:
        self.trouble: ApiFailed | None = None
        self.objects: dict[str, Object] = {}
        self.statuses: list[Object] = []
        self.calls = 0

    def apply(self, kind: ObjectKind, obj: Object, *, subresource: str = "", manager: str = "") -> Object:
        self.calls += 1
        if self.trouble is not None:
            raise self.trouble
        assert (kind, manager) == (COMPUTE_NODE, MANAGER)
        name = obj["metadata"]["name"]
        if subresource:
            if name not in self.objects:
                raise ApiFailed("not found", status=404)
            self.statuses.append(obj)
        else:
            assert "status" not in obj
            self.objects[name] = obj
        return obj

    def health(self) -> list[float]:
        return [one.health for one in fingerprint_of(self.statuses[-1]).devices]


class World:
    """A live agent whose clock stands still unless it is told."""

    def __init__(self, *devices: Device) -> None:
        self.now_s, self.wall_s = 100.0, 1795284000.0
        self.server = Server()
        self.runner = AgentRunner(
            Agent(PublishInterval(), rng=random.Random(0)),
            publish=Publisher(self.server, wall_clock=lambda: self.wall_s),
            meters=AgentMetrics(),
            clock=lambda: self.now_s,
        )
        if devices:
            self.turn(seen(*devices))

    def turn(self, *events: Any, after_s: float = 0.0) -> None:
        self.now_s += after_s
        for event in (*events, None):
            self.runner.put(event)
        self.runner.turn()


def test_the_first_publication_makes_the_object_and_the_next_only_its_status() -> None:
    world = World(device(0))
    assert list(world.server.objects) == ["n"]
    assert world.server.calls == 3
    world.turn(DeviceFault(101.0, "xid-79", "GPU-0"), after_s=1.0)
    assert world.server.calls == 4
    assert world.server.health() == [0.0]


def test_a_fault_is_published_in_the_turn_that_hears_of_it_and_the_tools_are_asked() -> None:
    world = World(device(0), device(1))
    assert not world.runner.look.is_set()
    world.turn(DeviceFault(101.0, "aer-fatal", "0000:11:00.0"), after_s=1.0)
    assert world.server.health() == [1.0, 0.0]
    assert world.runner.look.is_set()
    assert "strata_agent_fault_published_seconds_sum 0.0" in world.runner.meters.render()


def test_an_api_server_that_was_away_gets_the_newest_state_only() -> None:
    world = World(device(0), device(1))
    world.server.trouble = ApiFailed("connection refused")
    for i in range(60):
        world.turn(seen(device(0), device(1, health=0.9 - i / 100)), after_s=1.0)
    assert len(world.server.statuses) == 1
    assert world.server.calls < 15
    world.server.trouble = None
    world.turn(after_s=60.0)
    assert len(world.server.statuses) == 2
    assert world.server.health() == [1.0, pytest.approx(0.31)]


def test_a_server_that_forgot_the_object_gets_it_again() -> None:
    world = World(device(0))
    world.server.objects.clear()
    world.turn(after_s=170.0)
    assert list(world.server.objects) == ["n"]


def test_where_the_kind_is_not_known_it_is_tried_again_later() -> None:
    world = World()
    world.server.trouble = ApiFailed("the server could not find the requested resource", status=404)
    world.turn(seen(device(0)))
    assert (world.server.calls, world.server.statuses) == (2, [])
    assert 'strata_agent_publications_total{status="404"} 1.0' in world.runner.meters.render()
    world.server.trouble = None
    world.turn(after_s=60.0)
    assert len(world.server.statuses) == 1


def test_a_fingerprint_that_cannot_be_is_not_published_and_ends_nothing() -> None:
    world = World(device(0, temperature_c=float("nan")))
    assert world.server.calls == 0
    world.turn(seen(device(0)), after_s=60.0)
    assert world.server.health() == [1.0]


def test_a_wall_clock_that_goes_back_stops_nothing() -> None:
    world = World(device(0))
    world.wall_s -= 7200.0
    world.turn(after_s=170.0)
    assert [one["status"]["observedAt"][:16] for one in world.server.statuses] == [
        "2026-11-21T18:00",
        "2026-11-21T16:00",
    ]


def test_what_a_benchmark_found_is_told_and_what_cannot_be_is_not() -> None:
    world = World(device(0))
    world.turn(methodcaller("measured", "GPU-0", [Timing("fp16", 1e18, (1.0,))]), after_s=1.0)
    assert len(world.server.statuses) == 1
    world.turn(methodcaller("measured", "GPU-0", [Timing("fp16", 7e14, (1.0,))]), after_s=1.0)
    worth = world.server.statuses[-1]["status"]["devices"][0]["acu"]["fp16"]
    assert worth == {"value": pytest.approx(278.3, abs=0.1), "trust": "measured"}


def test_prometheus_is_told_of_each_device() -> None:
    world = World(device(0, temperature_c=61.0, power_w=300.0))
    world.turn(DeviceFault(100.0, "xid-31", "GPU-0"), DeviceFault(100.0, "xid-79", "GPU-0"), after_s=1.0)
    page = world.runner.meters.render()
    labels = f'device="GPU-0",index="0",model="{CARD.name}",vendor="NVIDIA"'
    for expected in (
        f"strata_device_health{{{labels}}} 0.0",
        f"strata_device_temperature_celsius{{{labels}}} 61.0",
        f'strata_device_fault{{device="GPU-0",fault="xid-79",index="0",model="{CARD.name}",vendor="NVIDIA"}} 1.0',
        'strata_device_acu{device="GPU-0",figure="memory",index="0",'
        f'model="{CARD.name}",trust="analytic",vendor="NVIDIA"}} 100.0',
        'strata_agent_faults_total{fault="xid-31"} 1.0',
    ):
        assert expected in page


def test_an_agent_that_hangs_is_not_well() -> None:
    world = World(device(0))
    assert world.runner.is_alive()
    world.now_s += ALIVE_S
    assert not world.runner.is_alive()
    world.turn()
    assert world.runner.is_alive()


def test_a_thread_that_ends_ends_the_agent() -> None:
    ended = threading.Event()

    def broken() -> None:
        raise RuntimeError("a bug")

    runner = AgentRunner(
        Agent(rng=random.Random(0)),
        publish=lambda fingerprint: None,
        meters=AgentMetrics(),
        on_end=ended.set,
    )
    runner.start(broken)
    assert ended.wait(120)
    assert not runner.is_alive()
    with pytest.raises(RuntimeError, match="a bug"):
        runner.stop()


def test_a_tool_that_hangs_holds_no_fault_back() -> None:
    told: queue.SimpleQueue[Fingerprint] = queue.SimpleQueue()
    hangs, answers = threading.Event(), threading.Event()
    found = [seen(device(0))]

    def collect(now_s: float, before: Any) -> Collected:
        if not found:
            hangs.set()
            answers.wait()
        return found.pop() if found else seen(device(0))

    def ask() -> None:
        ask_tools(
            collect,
            runner.put,
            took=runner.meters.collection.observe,
            every_s=0.001,
            look=runner.look,
            stopped=runner.stopped,
            clock=runner.clock,
        )

    runner = AgentRunner(Agent(rng=random.Random(0)), publish=told.put, meters=AgentMetrics())
    runner.start(ask)
    assert told.get(timeout=120).devices[0].health == 1.0
    assert hangs.wait(120)
    runner.put(DeviceFault(runner.clock(), "xid-79", "GPU-0"))
    assert told.get(timeout=120).devices[0].faults == ("xid-79",)
    answers.set()
    runner.stop()


def test_tools_are_judged_by_readings_of_five_minutes_ago() -> None:
    now_s, before = 0.0, list[float | None]()
    stopped = threading.Event()

    def collect(at_s: float, past: Mapping[str, DeviceReading] | None) -> Collected:
        nonlocal now_s
        before.append(None if past is None else past["GPU-0"].at_s)
        now_s += 60.0
        if len(before) == 9:
            stopped.set()
        return seen(device(0), readings={"GPU-0": DeviceReading(at_s)})

    told: list[Collected] = []
    meters = AgentMetrics()
    ask_tools(
        collect,
        told.append,
        took=meters.collection.observe,
        every_s=0.0,
        look=threading.Event(),
        stopped=stopped,
        clock=lambda: now_s,
    )
    assert "strata_agent_collection_seconds_sum 540.0\n" in meters.render()
    assert before == [None, 0.0, 0.0, 0.0, 0.0, 0.0, 60.0, 120.0, 180.0]
    assert SPAN_S == 300.0
    assert len(told) == 9


def benchmarks(found: Fingerprint, answer: Callable[[str, Sequence[Device]], Any], **more: Any) -> list[Any]:
    """What is told of this machine's benchmarks; probes stop after the first round."""
    told: list[Any] = []

    class Once(threading.Event):
        rounds = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.rounds += 1
            return self.rounds > 1

    run_benchmarks(
        lambda: found,
        told.append,
        stopped=Once(),
        wall_clock=lambda: 7.0,
        measure=lambda what, devices: answer(what, devices),
        **more,
    )
    return told


def test_idle_devices_are_measured_alone_and_together() -> None:
    asked: list[tuple[str, list[str]]] = []

    def answer(what: str, devices: Sequence[Device]) -> Any:
        asked.append((what, [one.uuid for one in devices]))
        if devices[0].uuid == "GPU-0" and what == "device":
            raise StrataError("benchmark: out of memory")
        kind, pair = ("link", [0, 1]) if what == "links" else ("fp16", None)
        return {"timings": [{"what": kind, "work": 7e14, "seconds": [1.0], "pair": pair}]}

    found = Fingerprint("n", (device(0), device(1, utilisation=0.9), device(2), device(3, memory_used_bytes=None)))
    told = benchmarks(found, answer, at_start=True, probe_every_s=None)
    assert asked == [("device", ["GPU-0"]), ("device", ["GPU-2"]), ("links", ["GPU-0", "GPU-2"])]
    agent = Agent(rng=random.Random(0))
    agent.collected(seen(*found.devices))
    for one in told:
        one(agent)
    known = agent.now(0.0)
    assert known is not None
    assert known.measured == {(0, 2): 7e14}
    assert [one.card != CARD for one in known.devices] == [False, False, True, False]


def test_idle_devices_are_probed_again_and_again() -> None:
    found = Fingerprint("n", (device(0), device(1, health=0.0)))
    told = benchmarks(
        found, lambda what, devices: {"rate_flops": 7e14, "power_w": None}, at_start=False, probe_every_s=60.0
    )
    agent = Agent(rng=random.Random(0))
    agent.collected(seen(*found.devices))
    for one in told:
        one(agent)
    known = agent.now(0.0)
    assert known is not None
    assert [one.probe for one in known.devices] == [Probe(7.0, 7e14), None]


def test_the_live_agent_publishes_a_bus_error_and_stops_at_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of `run` but the tools and the API server: threads, sysfs, HTTP, the signal."""
    monkeypatch.setattr(nvml, "load", lambda: None)
    folder = tmp_path / "bus/pci/devices/0000:10:00.0"
    folder.mkdir(parents=True)
    (folder / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 0\n")
    told: list[Fingerprint] = []
    pages: dict[str, str] = {}
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def publish_here(found: Fingerprint) -> None:
        told.append(found)
        if found.devices[0].health == 0.0:
            for path in ("/healthz", "/metrics"):
                pages[path] = httpx.get(url + path, timeout=120).text
            os.kill(os.getpid(), signal.SIGTERM)

    def collect_here(now_s: float, before: Any) -> Collected:
        return seen(device(0))

    poll = BusWatch.poll

    def break_it(watch: BusWatch, now_s: float) -> list[DeviceFault]:
        if watch.addresses:  # its counters were read
            (folder / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 1\n")
        return poll(watch, now_s)

    monkeypatch.setattr(BusWatch, "poll", break_it)
    with listener:
        run.run(
            Agent(rng=random.Random(0)),
            listener,
            collect=collect_here,
            publish=publish_here,
            every_s=60.0,
            at_start=False,
            probe_every_s=None,
            root=tmp_path,
        )
    assert [one.devices[0].faults for one in told] == [(), ("aer-fatal",)]
    assert pages["/healthz"] == "ok"
    assert 'strata_agent_faults_total{fault="aer-fatal"} 1.0' in pages["/metrics"]
