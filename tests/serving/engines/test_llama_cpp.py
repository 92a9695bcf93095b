"""llama.cpp's server behind the gateway: limits, load, cancelling, and lives of an engine, one after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving.engines.engines import Front
from tests.support.real_processes import until

pytestmark = pytest.mark.real("engines")

PROMPT = "once upon a time there was a scheduler"
BUSY, QUEUED = "llamacpp:requests_processing", "llamacpp:requests_deferred"


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    with Front(tmp_path_factory.mktemp("llama")) as front:
        front.engines = [front.llama_cpp(), front.llama_cpp()]
        for engine in front.engines:
            engine.wait()
        front.open(*(engine.url for engine in front.engines))
        front.until_nodes(0, 1)
        yield front


def test_its_slots_and_memory_are_known_without_being_told(front):
    node = front.node(0)
    assert (node["slots"], node["kv_tokens"]) == (2, 4096)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_an_answer_streamed_through_the_gateway_is_the_engines_own(front, path):
    said = {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    choice = front.engines[0].ask(path, max_tokens=40, **said)["choices"][0]
    with front.stream(path, max_tokens=40, stream_options={"include_usage": True}, **said) as stream:
        text = stream.read()
    assert stream.is_done
    assert text == (choice.get("text") or choice["message"]["content"])
    assert stream.chunks[-1]["usage"]["completion_tokens"] == 40
    assert len({chunk["id"] for chunk in stream.chunks}) == 1


def test_what_is_more_than_engines_take_at_once_waits_at_the_gateway_and_not_in_one_of_them(front):
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(front.ask, prompt=PROMPT, max_tokens=60) for _ in range(12)]
        queued = 0.0
        while not all(one.done() for one in asked):
            queued = max(queued, *(engine.metric(QUEUED) for engine in front.engines))
    assert len({one.result()["choices"][0]["text"] for one in asked}) == 1
    assert queued == 0


def test_a_client_that_leaves_frees_the_engine(front):
    with front.stream(prompt=PROMPT, max_tokens=1900) as stream:
        stream.read(5)
        engine = front.engines[front.where(stream.id)[0]]
        assert engine.metric(BUSY) == 1
    before = engine.metric("llamacpp:tokens_predicted_total")
    until(lambda: engine.metric(BUSY) == 0, lambda: "the engine to be idle", limit_s=60)
    assert engine.metric("llamacpp:tokens_predicted_total") - before < 1900


def test_requests_that_others_send_an_engine_are_seen_and_ours_go_to_the_idle_one(front):
    other = front.engines[0]
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(other.ask, prompt="x", max_tokens=1900)
        until(lambda: front.node(0)["others"] == 1, lambda: f"the load to be seen: {front.status()}")
        ids = [front.ask(prompt=f"{number} {PROMPT}", max_tokens=1)["id"] for number in range(4)]
        assert not busy.done()
        assert [front.where(name) for name in ids] == [[1]] * 4
    until(lambda: front.node(0)["others"] == 0, lambda: f"the load to be gone: {front.status()}")


def test_a_text_goes_on_on_the_other_engine_when_one_is_killed_which_comes_back_with_other_limits(front):
    expected = front.engines[0].ask(prompt=PROMPT, max_tokens=800)["choices"][0]["text"]
    with front.stream(prompt=PROMPT, max_tokens=800) as stream:
        stream.read(20)
        (first,) = front.where(stream.id)
        front.engines[first].kill()
        assert stream.read() == expected
    assert front.where(stream.id) == [first, 1 - first]
    assert stream.is_done
    port = int(front.engines[first].url.rpartition(":")[2])
    front.engines[first] = front.llama_cpp(port, slots=3)
    until(lambda: (front.node(first) or {}).get("slots") == 3, lambda: f"three slots: {front.status()}")


def test_a_chat_that_it_cannot_continue_ends_with_an_error(front):
    with front.stream(
        "chat/completions", messages=[{"role": "user", "content": PROMPT}], max_tokens=800
    ) as stream:
        stream.read(20)
        (killed,) = front.where(stream.id)
        front.engines[killed].kill()
        stream.read()
    assert not stream.is_done
    assert stream.chunks[-1]["error"]["code"] == "engine-lost"
    front.until_nodes(1 - killed)


def test_an_engine_that_is_started_with_another_model_serves_that_one(front):
    (gone,) = {0, 1} - {int(node["id"][-1]) for node in front.status()["nodes"]}
    port = int(front.engines[gone].url.rpartition(":")[2])
    front.engines[gone] = front.llama_cpp(port, name="other")
    front.until_nodes(gone, name="other")
    assert front.ask(model="other", prompt=PROMPT, max_tokens=3)["model"] == "other"
    assert front.where(front.ask(prompt=PROMPT, max_tokens=3)["id"]) == [1 - gone]
