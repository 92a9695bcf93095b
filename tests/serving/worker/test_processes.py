"""A gateway and workers as real processes: what they say is what the model says in one process."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from strata.serving.tokens import EOS, encode
from strata.serving.worker.shape import Shape
from tests.serving.texts import decode
from tests.serving.worker.live_workers import BEATS, Live
from tests.serving.worker.processes import Processes
from tests.support.real_processes import LIMIT_S, until

pytestmark = pytest.mark.real("torch")

SHAPE = Shape(num_layers=9)
"""Layers that three workers can share equally and four cannot: one beside three gives more than all in a row."""
OPTIONS = ("--layers", str(SHAPE.num_layers))
MEMORY = "24MB"


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("processes")) as processes:
        yield Live(processes, memory=MEMORY, options=OPTIONS)


def expected(prompt, **options):
    from tests.serving.worker.single_process import generate

    return generate(SHAPE, encode(prompt), stop_tokens=(EOS,), **options)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}])
def test_three_processes_say_what_one_says_token_for_token(live, sampling):
    url, message = live.order(prompt=encode("hello"), max_tokens=64, stop_tokens=[EOS], **sampling)
    lines = [json.loads(line) for line in live.client.post(f"{url}/generate", json=message).text.splitlines()]
    *tokens, end = lines
    assert end == {"finish": "length"}
    assert [line["token"] for line in tokens] == expected("hello", max_tokens=64, **sampling)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}])
def test_the_gateway_answers_with_the_text_of_one_process(live, sampling):
    _, text = live.ask("hello", max_tokens=64, **sampling)
    assert text == decode(expected("hello", max_tokens=64, **sampling))


def test_an_abort_frees_keys_and_values_on_all(live):
    url, message = live.order(prompt=encode("hello"), max_tokens=900)
    with live.client.stream("POST", f"{url}/generate", json=message) as answer:
        lines = answer.iter_lines()
        assert "token" in json.loads(next(lines))
        assert all(live.gauge(one["node_id"], "strata_worker_kv_bytes") > 0 for one in message["stages"])
        live.client.post(f"{url}/abort", json={"request_id": message["request_id"], "attempt": 1})
        assert json.loads(list(lines)[-1]) == {"error": "aborted"}
    until(live.is_free, lambda: "free memory")


def test_a_reader_that_goes_away_frees_keys_and_values_on_all(live):
    url, message = live.order(prompt=encode("hello"), max_tokens=900)
    with live.client.stream("POST", f"{url}/generate", json=message) as answer:
        next(answer.iter_lines())
    until(live.is_free, lambda: "free memory")


def test_a_request_that_does_not_fit_is_refused_by_the_worker_and_blames_nobody(live):
    url, message = live.order(prompt=encode("hello"), max_tokens=2040)
    with ExitStack() as open_streams:
        held = []  # a stream that nobody holds is closed
        for number in range(3):
            own = message | {"request_id": f"{message['request_id']}-{number}"}
            answer = open_streams.enter_context(live.client.stream("POST", f"{url}/generate", json=own))
            held.append(answer.iter_lines())
            next(held[-1])
        refused = live.client.post(f"{url}/generate", json=message).json()
    assert "2046 tokens need" in refused["error"]
    assert "node_id" not in refused
    until(live.is_free, lambda: "free memory")


def test_a_worker_of_another_model_is_refused(live):
    other = live.processes.start("worker", "--gateway", live.gateway.address, "--id", "x", "--seed", "5", *OPTIONS)
    assert other.popen.wait(LIMIT_S) == 2
    assert "error: the gateway refuses x: 409 other-model: x hosts a different model" in other.log


def test_no_request_is_lost_when_a_worker_is_killed_under_load(live):
    live.add("whole", memory="64MB")
    # One beside three, unless they start on a machine so busy that some look much slower than others.
    until(lambda: {"n1", "whole"} <= live.serving, lambda: f"n1 and whole to serve: {live.status}")
    slots = {node["id"]: node["slots"] for node in live.status["nodes"]}
    prompts = [f"request {i}" for i in range(slots["whole"] + 4)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = [
            pool.submit(live.ask, prompt, max_tokens=32, temperature=1.0, seed=i)
            for i, prompt in enumerate(prompts)
        ]
        with ExitStack() as open_streams:
            for _ in range(20):
                request_id, text = open_streams.enter_context(live.streaming("long", max_tokens=300))
                if "n1" in live.route(request_id):
                    break
            else:
                pytest.fail("no request came to n1")
            live.workers["n1"].end(signal.SIGKILL)
            assert text() == decode(expected("long", max_tokens=300))
        ids, texts = zip(*(answer.result(LIMIT_S) for answer in answers), strict=True)
    assert list(texts) == [
        decode(expected(prompt, max_tokens=32, temperature=1.0, seed=i)) for i, prompt in enumerate(prompts)
    ]
    # The others, which are short, may have come to their ends before.
    assert max(live.attempts(one) for one in (request_id, *ids)) > 1
    del live.workers["n1"]
    until(live.is_free, lambda: "free memory")
    until(lambda: "n1" not in live.nodes, lambda: f"n1 to be out: {live.status}")


def test_a_worker_that_comes_back_under_its_name_is_taken_in_again(live):
    live.add("n1")
    until(lambda: "n1" in live.nodes, lambda: f"n1: {live.status}")
    assert live.ask("again", max_tokens=32)[1] == decode(expected("again", max_tokens=32))


def test_a_worker_that_is_told_to_stop_under_load_loses_no_request_and_ends_well(live):
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(live.ask, f"request {i}", max_tokens=48) for i in range(6)]
        with live.streaming("long", max_tokens=300) as (request_id, text):
            busy = live.route(request_id)[0]
            gone = live.workers.pop(busy)
            assert gone.end() == 0, gone.log
            assert text() == decode(expected("long", max_tokens=300))
        texts = [answer.result(LIMIT_S)[1] for answer in answers]
    assert "Traceback" not in gone.log
    assert texts == [decode(expected(f"request {i}", max_tokens=48)) for i in range(6)]
    until(live.is_free, lambda: "free memory")
    assert busy not in live.nodes
    live.add(busy, memory="64MB" if busy == "whole" else MEMORY)


def test_workers_outlive_their_gateway_and_join_the_next(live):
    port = live.gateway.address.rpartition(":")[2]
    assert live.gateway.end() == 0
    live.gateway = live.processes.start("gateway", "--port", port, *BEATS, *OPTIONS)
    assert live.gateway.address.endswith(port)
    until(lambda: live.nodes == ["n0", "n1", "n2", "whole"], lambda: f"all workers: {live.status}")
    assert live.ask("again", max_tokens=32)[1] == decode(expected("again", max_tokens=32))
    assert [worker.end() for worker in live.workers.values()] == [0, 0, 0, 0]
