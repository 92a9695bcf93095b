from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import httpx

from strata.serving.gateway.request_stream import ROOM, RequestStream
from strata.serving.live.absence import ABSENCE_S
from strata.serving.live.core import Core
from strata.serving.live.events import Arrive, Planned
from strata.serving.live.handover import HandOver
from tests.serving.gateway.world import FAST, Caller, events_of, foretold, next_token, run, text_of


def streamed(**more):
    return {"model": "tiny", "prompt": "hello", "max_tokens": 40, "temperature": 0, "stream": True} | more


async def held(world):
    """Have a request reach a worker that then waits to be let go; return that worker and the other."""
    for worker in world.workers:
        worker.go.clear()
    waiting = [asyncio.create_task(worker.waits.wait()) for worker in world.workers]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    first, second = world.workers
    one, other = (first, second) if first.num_open else (second, first)
    other.go.set()
    return one, other


def test_a_stream_goes_on_token_for_token_where_another_pipeline_takes_over():
    async def scenario(world):
        caller = Caller(world.frame, "/v1/completions", streamed(max_tokens=20))
        one, other = await held(world)
        one.tokens_left = 7
        one.go.set()
        await caller.task
        return caller.body, one, other, (await world.get("/decisions/cmpl-1")).json()["timeline"]

    body, one, other, timeline = run(scenario)
    assert one.is_dead
    assert one.num_sent == 7
    assert other.num_sent == 13
    assert text_of(body) == foretold("hello", 20)
    assert events_of(body)[-1] == "[DONE]"
    assert [step["attempt"] for step in timeline if "attempt" in step] == [1, 2]


def test_a_stream_whose_worker_pauses_and_gives_no_sign_of_life_goes_on_elsewhere():
    """Only late heartbeats told of a first worker that was cut off, a minute later."""

    async def scenario(world):
        world.driver.backend_client.sign_s = 0.02
        caller = Caller(world.frame, "/v1/completions", streamed(max_tokens=20))
        one, other = await held(world)
        answers = one.answer
        one.answer = deaf
        await caller.task
        one.answer = answers
        return caller.body, one.num_sent, other.num_sent

    async def deaf(path, body):
        raise httpx.ConnectTimeout("cut off")

    body, *sent = run(scenario)
    assert sent == [0, 20]
    assert text_of(body) == foretold("hello", 20)


def test_a_worker_that_pauses_and_gives_signs_of_life_is_waited_for():
    async def scenario(world):
        world.driver.backend_client.sign_s = 0.01
        caller = Caller(world.frame, "/v1/completions", streamed(max_tokens=20))
        one, other = await held(world)
        while len(one.said("/healthz")) < 3:
            await asyncio.sleep(0.01)
        one.go.set()
        await caller.task
        return text_of(caller.body), one.num_sent, other.num_sent

    assert run(scenario) == (foretold("hello", 20), 20, 0)


def test_a_request_that_breaks_off_everywhere_ends_with_an_honest_error():
    async def one_token(message):
        yield b'{"token":%d}\n' % next_token([*message.prompt, *message.generated])
        yield b'{"error":"no room"}\n'

    async def scenario(world):
        for worker in world.workers:
            worker.generate = one_token
        return await world.post("/v1/completions", streamed()), await world.complete()

    stream, document = run(scenario)
    assert text_of(stream.content) == foretold("hello", 5)
    last = events_of(stream.content)[-1]
    assert last["error"]["code"] == "attempts-exhausted"
    assert document.status_code == 503
    assert document.json()["error"]["code"] == "attempts-exhausted"
    assert int(document.headers["retry-after"]) >= 1


def test_a_worker_that_names_another_as_broken_is_not_suspected_itself():
    async def scenario(world):
        suspects = []
        world.driver.core.handle = watched(world.driver.core.handle, suspects)
        one, other = world.workers

        async def generate(message):
            yield b'{"error":"no answer","node_id":"b"}\n'

        for worker in (one, other):
            if not worker.is_dead:
                worker.generate = first_then(generate, worker.generate)
        answer = await world.complete()
        return answer, suspects

    answer, suspects = run(scenario)
    assert answer.json()["choices"][0]["text"] == foretold("hello", 8)
    assert suspects[0] == "b"


def watched(handle, suspects):
    def watching(event, now_s):
        if type(event).__name__ == "Failed":
            suspects.append(event.node_id)
        return handle(event, now_s)

    return watching


def first_then(first, after):
    calls = []

    def generate(message):
        calls.append(message)
        return first(message) if len(calls) == 1 else after(message)

    return generate


def test_nonsense_from_a_worker_is_a_failed_attempt_not_a_broken_gateway():
    async def nonsense(_message):
        yield b'{"tokn":1}\n'

    async def endless(_message):
        while True:
            yield b"x" * 2**16

    async def too_many(message):
        for _ in range(message.max_tokens + 1):
            yield b'{"token":65}\n'

    async def unknown(_message):
        yield b'{"token":258}\n'

    for bad in (nonsense, endless, too_many, unknown):

        async def scenario(world, bad=bad):
            for worker in world.workers:
                worker.generate = bad
            one, other = world.workers
            asked = asyncio.create_task(world.complete(tokens=2))
            while not (one.said("/generate") and other.said("/generate")):
                await asyncio.sleep(0)
            world.frame.drain()
            await world.down()
            return await asked

        assert run(scenario).status_code == 503


def test_a_client_that_hangs_up_ends_the_work_for_it():
    async def scenario(world):
        caller = Caller(world.frame, "/v1/completions", streamed())
        await held(world)
        caller.hang_up()
        await caller.task
        await world.settled()
        aborts = [body for worker in world.workers for body in worker.said("/abort")]
        return world, aborts

    world, aborts = run(scenario)
    assert aborts == [{"request_id": "cmpl-1", "attempt": 1, "is_kept": False}]
    assert sum(worker.num_open for worker in world.workers) == 0
    assert world.driver.core.status()["requests"] == {"waiting": 0, "unfinished": 0}


def test_a_client_that_reads_slowly_holds_its_worker_back_and_nobody_else():
    async def scenario(world):
        slow = Caller(world.frame, "/v1/completions", streamed(max_tokens=1000))
        slow.reads.clear()
        while max(worker.num_sent for worker in world.workers) < ROOM:
            await asyncio.sleep(0)
        quick = await world.complete(tokens=500)
        sent = max(worker.num_sent for worker in world.workers if worker.num_open)
        slow.reads.set()
        await slow.task
        return quick, sent, slow.body

    quick, sent, body = run(scenario)
    assert quick.json()["usage"]["completion_tokens"] == 500
    assert sent <= 500 + 3 * ROOM
    assert text_of(body) == foretold("hello", 1000)


def test_a_slow_client_does_not_cost_its_request_when_the_worker_is_done_and_beats():
    async def scenario(world):
        slow = Caller(world.frame, "/v1/completions", streamed(max_tokens=30))
        slow.reads.clear()
        one, _ = await held(world)
        stream = world.driver.streams["cmpl-1"]
        stream.room = asyncio.Event().wait  # as if many pieces were waiting
        one.go.set()
        while stream.num_generated < 1:
            await asyncio.sleep(0)
        for _ in range(20):
            for worker in world.workers:
                assert (await worker.tell("heartbeat", running=[])).status_code == 200
            world.tick(1.0)
        timeline = world.driver.core.explain("cmpl-1")["timeline"]
        slow.hang_up()
        slow.reads.set()
        await slow.task
        return [step["attempt"] for step in timeline if "attempt" in step]

    assert run(scenario) == [1]


def test_a_worker_that_dies_is_one_line_of_the_log_not_one_for_each_of_its_requests(caplog):
    async def scenario(world):
        callers = [Caller(world.frame, "/v1/completions", streamed(max_tokens=20)) for _ in range(6)]
        one, _ = await held(world)
        one.tokens_left = 0
        one.go.set()
        await asyncio.gather(*(caller.task for caller in callers))
        await world.passes(1.0)
        return [text_of(caller.body) for caller in callers]

    assert run(scenario) == [foretold("hello", 20)] * 6
    assert not [line for line in caplog.messages if "/abort" in line]


def test_a_gateway_all_of_whose_nodes_are_suspects_says_which_and_not_that_they_are_too_small():
    async def scenario(world):
        caller = Caller(world.frame, "/v1/completions", streamed())
        one, other = await held(world)
        one.tokens_left = other.tokens_left = 0
        one.go.set()
        while not other.is_dead or len(world.driver.core.status()["suspects"]) < 2:
            await asyncio.sleep(0)
        await world.settled()
        ready, status = await world.get("/healthz"), (await world.get("/status")).json()["tiny"]
        caller.task.cancel()
        return ready.status_code, ready.json()["reason"], status["reasons"]

    said = "requests broke off on what gets none until it is well again: a, b"
    assert run(scenario) == (503, said, [])


def test_a_worker_with_room_for_no_layer_is_told_of_once(caplog):
    async def scenario(world):
        small = world.workers[1]
        small.incarnation += 1
        await small.join(memory_bytes=1e3)
        await world.passes(1.0)
        world.workers[0].incarnation += 1  # has everything planned again
        await world.workers[0].join()
        await world.passes(1.0)
        assert world.driver.core.serving()

    run(scenario)
    (line,) = (line for line in caplog.messages if "serves nothing" in line)
    assert line.startswith("b: serves nothing: one layer and the keys and values of 8 sequences take ")


def test_a_bug_in_the_scheduler_costs_one_request_and_is_told(caplog, monkeypatch):
    handle = Core.handle

    def breaking(self, event, now_s):
        if isinstance(event, Arrive) and event.request.request_id == "cmpl-1":
            raise RuntimeError("oops")
        return handle(self, event, now_s)

    monkeypatch.setattr(Core, "handle", breaking)

    async def scenario(world):
        return await world.complete(), await world.complete(), (await world.get("/metrics")).text

    broken, well, metrics = run(scenario)
    assert broken.status_code == 500
    assert well.status_code == 200
    assert 'strata_faults_total{at="Arrive",model="tiny"} 1.0' in metrics
    assert "oops" in caplog.text


def test_a_request_that_a_bug_has_ended_holds_nothing_in_the_scheduler(caplog, monkeypatch):
    handle = Core.handle

    def breaking(self, event, now_s):
        instructions = handle(self, event, now_s)
        if isinstance(event, Arrive) and event.request.request_id == "cmpl-1":
            raise RuntimeError("oops")
        return instructions

    monkeypatch.setattr(Core, "handle", breaking)

    async def scenario(world):
        broken = await world.complete()
        return broken, world.driver.core.status()

    broken, status = run(scenario)
    assert broken.status_code == 500
    assert status["requests"] == {"waiting": 0, "unfinished": 0}
    assert [node["running"] for node in status["nodes"]] == [0] * len(status["nodes"])
    assert "oops" in caplog.text


def test_a_bug_in_a_tick_does_not_stop_the_clock(caplog, monkeypatch):
    async def scenario(world):
        handled = []

        def breaking(event, _now_s):
            handled.append(event)
            raise RuntimeError("oops")

        monkeypatch.setattr("strata.serving.gateway.driver.AFTER_FAULT_S", 0.0)
        world.driver._timer.cancel()
        with monkeypatch.context() as patch:
            patch.setattr(world.driver.core, "handle", breaking)
            world.driver._tick()
            while len(handled) < 3:
                await asyncio.sleep(0)
        return await world.complete()

    assert run(scenario).status_code == 200
    assert "oops" in caplog.text


def test_a_bug_in_planning_keeps_what_serves(caplog, monkeypatch):
    async def scenario(world):
        seen = []
        handle = world.driver.core.handle

        def watching(event, now_s):
            if isinstance(event, Planned):
                seen.append(event)
            return handle(event, now_s)

        world.driver.core.handle = watching
        monkeypatch.setattr("strata.serving.gateway.driver.answer", lambda *_: 1 / 0)
        for instruction in world.driver.core.rebalance(world.now_s):
            world.driver._do(instruction)
        await world.settled()
        return seen, await world.complete()

    seen, answer = run(scenario)
    assert len(seen) == 1
    assert answer.status_code == 200
    assert "ZeroDivisionError" in caplog.text


def test_requests_beyond_the_queue_are_told_to_come_again():
    async def scenario(world):
        await world.workers[0].tell("leave")
        await world.workers[1].tell("leave")
        waiting = asyncio.create_task(world.complete())
        while not world.driver.streams:
            await asyncio.sleep(0)
        full = await world.complete()
        await world.down()
        return await waiting, full

    waiting, full = run(scenario, config=replace(FAST, queue_limit=1))
    assert waiting.status_code == 503
    assert full.status_code == 429
    assert full.json()["error"]["code"] == "queue-full"
    assert int(full.headers["retry-after"]) >= 1


def test_nothing_is_left_of_requests_that_are_over():
    async def scenario(world):
        async def one(number):
            if number % 3:
                return await world.complete(f"hello {number}", tokens=5)
            caller = Caller(world.frame, "/v1/completions", streamed())
            await caller.has(1)
            caller.hang_up()
            return await caller.task

        for _ in range(5):
            await asyncio.gather(*(one(number) for number in range(60)))
        await world.settled()
        while len(asyncio.all_tasks()) > 1:  # generators that were left are closed by tasks
            await asyncio.sleep(0)
        gc.collect()
        # Not by isinstance, which asks objects for their class: one of torch warns at any question.
        left = sum(type(thing) is RequestStream for thing in gc.get_objects())
        return left, world.driver.streams, world.driver.core.status()["requests"], world.workers

    left, streams, requests, workers = run(scenario)
    assert (left, streams) == (0, {})
    assert requests == {"waiting": 0, "unfinished": 0}
    assert sum(worker.num_open for worker in workers) == 0


def resting(generate):
    """Rest after the fifth token, but for who goes on from there."""

    async def rests(message):
        count = 0
        async for line in generate(message):
            yield line
            count += 1
            if count == 5 and not message.generated:
                await asyncio.Event().wait()

    return rests


def test_a_worker_that_leaves_keeps_what_it_has_until_its_successor_is_told_where_it_is(monkeypatch):
    async def scenario(world, moves_s):
        found = HandOver(moves_s, 1.0, 5.0)
        monkeypatch.setattr("strata.serving.live.core.hand_over", lambda *args, **figures: found)
        for worker in world.workers:
            worker.generate = resting(worker.generate)
        caller = Caller(world.frame, "/v1/completions", streamed(max_tokens=20))
        await caller.has(5)
        one, other = sorted(world.workers, key=lambda worker: not worker.said("/generate"))
        await one.tell("leave")
        await caller.task
        timeline = (await world.get("/decisions/cmpl-1")).json()["timeline"]
        (decided,) = [entry["handover"] for entry in timeline if "handover" in entry]
        return text_of(caller.body), one, other.said("/generate")[-1], one.said("/abort"), decided

    for moves_s, chosen in ((0.5, "move"), (2.0, "recompute")):
        text, one, message, aborts, decided = run(lambda world, s=moves_s: scenario(world, s))
        assert text == foretold("hello", 20)
        assert aborts[0] == {"request_id": "cmpl-1", "attempt": 1, "is_kept": True}
        assert decided == {
            "chosen": chosen, "move_s": moves_s, "recompute_s": 1.0, "kv_bytes": 5.0, "trust": "analytic"
        }  # fmt: skip
        if chosen == "move":
            assert message["kept"]["tokens"] == len(message["prompt"]) + len(message["generated"]) - 1
            assert [stage["url"] for stage in message["kept"]["stages"]] == [one.url]
            assert message["kept"]["attempt"] == 1
            assert len(aborts) == 1
        else:
            assert message["kept"] is None
            assert aborts[1] == {"request_id": "cmpl-1", "attempt": 1, "is_kept": False}


def test_where_nobody_serves_clients_are_told_so_soon_and_when_to_come_again():
    async def scenario(world):
        for worker in world.workers:
            await worker.tell("leave")
        await world.passes(1.0)
        waiting = asyncio.create_task(world.complete())
        while not world.driver.streams:
            await asyncio.sleep(0)
        world.tick(ABSENCE_S)
        answers = [await waiting, await world.complete()]  # the second at once
        await world.up()
        return [*answers, await world.complete()]

    *refused, served = run(scenario)
    for answer in refused:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")  # a heartbeat's time
        assert answer.json()["error"]["code"] == "nobody-serves"
    assert served.status_code == 200


def test_a_goal_that_passes_while_nobody_serves_is_answered_in_that_moment():
    async def scenario(world):
        for worker in world.workers:
            await worker.tell("leave")
        goal = {"x-strata-ttft-ms": "500"}
        body = {"model": "tiny", "prompt": "x", "max_tokens": 4}
        waiting = asyncio.create_task(world.post("/v1/completions", body, headers=goal))
        while not world.driver.streams:
            await asyncio.sleep(0)
        world.tick(0.6)  # the next beat is later
        return await waiting

    refused = run(scenario, config=replace(FAST, routing_strategy="auto"))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "not-served-in-time"
