from __future__ import annotations

import asyncio
import gzip
import json
import threading
from dataclasses import replace

import pytest

from strata.serving.gateway.workers import LONG_TEXT
from strata.serving.tokens import ByteTokenizer
from tests.serving.gateway.world import FAST, World, events_of, foretold, run, text_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


def test_a_completion_is_what_the_pipeline_says():
    answer = run(lambda world: world.complete("hello", tokens=8))
    assert answer.status_code == 200
    assert answer.json() == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [{"index": 0, "finish_reason": "length", "logprobs": None, "text": foretold("hello", 8)}],
        "usage": {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14},
    }


def test_a_chat_is_what_the_pipeline_says_of_its_text():
    answer = run(lambda world: world.post("/v1/chat/completions", CHAT | {"max_completion_tokens": 5})).json()
    content = foretold("user: hi\nassistant:", 5)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": content}


def test_a_chat_that_names_no_limit_gets_a_moderate_one():
    answer = run(lambda world: world.post("/v1/chat/completions", CHAT)).json()
    assert answer["usage"]["completion_tokens"] == 128


def test_a_whole_number_may_have_a_point():
    """Found by schemathesis: 8.0 is an integer in JSON, as the API's document says."""
    answer = run(lambda world: world.post("/v1/completions", b'{"model":"tiny","prompt":[5.0],"max_tokens":8.0}'))
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_a_stream_has_the_same_text_a_role_first_an_end_and_the_usage_asked_for():
    body = CHAT | {"stream": True, "max_tokens": 5, "stream_options": {"include_usage": True}}
    answer = run(lambda world: world.post("/v1/chat/completions", body))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(answer.content)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert text_of(answer.content) == foretold("user: hi\nassistant:", 5)
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5


def test_a_stop_text_ends_the_answer_before_it_and_the_work_behind_it():
    whole = foretold("hello", 20)
    stop = whole[6:8]

    async def scenario(world):
        answer = await world.complete("hello", tokens=20, stop=stop)
        await world.settled()
        return answer, sum(worker.num_open for worker in world.workers)

    answer, num_open = run(scenario)
    choice = answer.json()["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert num_open == 0


def test_a_prompt_may_be_tokens():
    answer = run(lambda world: world.complete([256, *b"hello"], tokens=4))
    assert answer.json()["choices"][0]["text"] == foretold("hello", 4)


def test_what_is_sampled_depends_on_the_seed_or_else_on_the_id_alone():
    async def scenario(world):
        for seed in (7, -1, None):
            await world.complete(seed=seed)
        return [body["seed"] for worker in world.workers for body in worker.said("/generate")]

    first = run(scenario)
    assert sorted(first) == sorted(run(scenario))
    assert 7 in first
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_json", None),
        (b"[" * 100_000, 400, "invalid_json", None),
        (b"\xff\xfe", 400, "invalid_json", None),
        (b"[]", 400, "invalid_value", None),
        ({"prompt": "x"}, 400, "invalid_value", "model"),
        ({"model": "tiny"}, 400, "invalid_value", "prompt"),
        ({"model": "other", "prompt": "x"}, 404, "model_not_found", "model"),
        ({"model": "tiny", "prompt": "x", "n": 2}, 400, "invalid_value", "n"),
        ({"model": "tiny", "prompt": "x", "max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({"model": "tiny", "prompt": "x", "max_tokens": "5"}, 400, "invalid_value", "max_tokens"),
        ({"model": "tiny", "prompt": "x", "max_tokens": 3000}, 400, "context_length_exceeded", "max_tokens"),
        ({"model": "tiny", "prompt": "x" * 3000}, 400, "context_length_exceeded", "prompt"),
        ({"model": "tiny", "prompt": [258]}, 400, "invalid_value", "prompt"),
        ({"model": "tiny", "prompt": [[1], [2]]}, 400, "invalid_value", "prompt"),
        ({"model": "tiny", "prompt": "x", "temperature": 3}, 400, "invalid_value", "temperature"),
        ({"model": "tiny", "prompt": "x", "stop": ["a"] * 5}, 400, "invalid_value", "stop"),
        ({"model": "tiny", "prompt": "x", "stop": ""}, 400, "invalid_value", "stop"),
        ({"model": "tiny", "prompt": ["x", "y"]}, 400, "invalid_value", "prompt"),
        ({"model": "tiny", "prompt": [-1]}, 400, "invalid_value", "prompt"),
        ({"model": "tiny", "prompt": "x", "top_p": 0.5}, 400, "unsupported_parameter", "top_p"),
        ({"model": "tiny", "prompt": "x", "logprobs": 0}, 400, "unsupported_parameter", "logprobs"),
    ],
)
def test_what_cannot_be_done_is_said_in_openais_form(body, status, code, param):
    answer = run(lambda world: world.post("/v1/completions", body))
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["param"] == param
    assert error["type"] in ("invalid_request_error", "not_found_error")
    assert error["message"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages.0.content"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages.0.content"),
        ({"role": "critic", "content": "x"}, "messages.0.role"),
    ],
)
def test_what_a_small_model_cannot_read_is_refused_and_not_dropped(message, param):
    """Found in a review: parts that were images were left out without a word."""
    answer = run(lambda world: world.post("/v1/chat/completions", CHAT | {"messages": [message]}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_only_engines_serve_is_refused_by_a_model_of_workers():
    answer = run(lambda world: world.post("/v1/embeddings", {"model": "tiny", "input": "x"}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_endpoint")


AUTO = replace(FAST, routing_strategy="auto")


@pytest.mark.parametrize(
    ("header", "goal"), [("X-Strata-TTFT-ms", "the first token"), ("x-strata-tpot-ms", "each token")]
)
def test_a_request_with_a_goal_out_of_reach_is_refused_and_others_are_not(header, goal):
    async def scenario(world):
        body = {"model": "tiny", "prompt": "x", "max_tokens": 4, "temperature": 0}
        asked = [{header: "0.000001"}, {header: "60000"}, {}]
        return [await world.post("/v1/completions", body, headers=headers) for headers in asked]

    refused, *served = run(scenario, config=AUTO)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "goal-out-of-reach"
    assert goal in refused.json()["error"]["message"]
    assert [one.json()["choices"][0]["text"] for one in served] == [foretold("x", 4)] * 2


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, identity", "x"])
def test_a_compressed_body_is_refused_in_words_that_are_not_of_json(coding):
    async def scenario(world):
        body = {"model": "tiny", "prompt": "x", "max_tokens": 4, "temperature": 0}
        packed = gzip.compress(json.dumps(body).encode())
        refused = await world.post("/v1/completions", packed, headers={"content-encoding": coding})
        return refused, await world.post("/v1/completions", body, headers={"content-encoding": "identity"})

    refused, served = run(scenario)
    assert refused.status_code == 415
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_encoding", "content-encoding")
    assert error["message"].endswith(f"not in {coding!r}: send it uncompressed")
    assert served.status_code == 200


@pytest.mark.parametrize("text", ["", "soon", "0", "-5", "nan", "inf", "1e999"])
def test_a_goal_that_is_no_time_is_refused(text):
    async def scenario(world):
        body = {"model": "tiny", "prompt": "x"}
        return await world.post("/v1/completions", body, headers={"x-strata-ttft-ms": text})

    answer = run(scenario)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-strata-ttft-ms"


def test_keys_that_ask_for_nothing_are_no_reason_to_refuse():
    answer = run(lambda world: world.complete(top_p=1, logit_bias=None, presence_penalty=0.0, user="me", n=1))
    assert answer.status_code == 200


def test_the_models_are_listed():
    answer = run(lambda world: world.get("/v1/models"))
    assert [one["id"] for one in answer.json()["data"]] == ["tiny"]


def test_a_model_is_found_by_its_name():
    async def scenario(world):
        return await world.get("/v1/models/tiny"), await world.get("/v1/models/org/other")

    found, missing = run(scenario)
    assert found.json()["id"] == "tiny"
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_unknown_paths_and_methods_have_the_same_form():
    async def scenario(world):
        return await world.get("/nowhere"), await world.get("/v1/completions")

    nowhere, wrong = run(scenario)
    assert (nowhere.status_code, wrong.status_code) == (404, 405)
    assert nowhere.json()["error"]["message"] == "there is nothing at /nowhere"
    assert wrong.json()["error"]["message"] == "/v1/completions does not take GET"


def test_the_decision_says_where_the_request_went_and_how_it_ended():
    async def scenario(world):
        request_id = (await world.complete()).json()["id"]
        return await world.get(f"/decisions/{request_id}"), await world.get("/decisions/cmpl-none")

    found, missing = run(scenario)
    assert found.json()["request_id"] == "cmpl-1"
    assert found.json()["model"] == "tiny"
    sent = next(step for step in found.json()["timeline"] if "route" in step)
    assert sent["attempt"] == 1
    assert {stage[0] for stage in sent["route"]} <= {"a", "b"}
    assert found.json()["timeline"][-1]["tokens"] == 8
    assert missing.status_code == 404


def test_metrics_count_requests_tokens_and_instructions():
    async def scenario(world):
        await world.complete(tokens=8)
        await world.complete(tokens=1)  # which has no token after the first
        return (await world.get("/metrics")).text.splitlines()

    lines = run(scenario)
    assert 'strata_requests_total{model="tiny",outcome="length"} 2.0' in lines
    assert 'strata_tokens_total{kind="generated",model="tiny"} 9.0' in lines
    assert 'strata_instructions_total{kind="Dispatch",model="tiny"} 2.0' in lines
    assert 'strata_nodes{model="tiny"} 2.0' in lines
    assert 'strata_ready{model="tiny"} 1.0' in lines
    assert 'strata_ttft_seconds_count{model="tiny"} 2.0' in lines
    assert 'strata_tpot_seconds_count{model="tiny"} 1.0' in lines


def test_health_is_good_once_a_pipeline_serves_and_bad_while_stopping():
    async def scenario(world):
        empty = World()
        early = await empty.get("/healthz")
        well = await world.get("/healthz")
        world.frame.drain()
        return early, well, await world.get("/healthz"), await world.complete()

    early, well, stopping, refused = run(scenario)
    assert (early.status_code, early.json()["reason"]) == (503, "no worker or engine has joined")
    assert (well.status_code, well.json()) == (200, {"status": "ok"})
    assert (stopping.status_code, stopping.json()["reason"]) == (503, "stopping")
    assert refused.status_code == 503
    assert refused.headers["retry-after"]


def test_every_answer_of_openais_api_has_an_id_which_is_also_in_the_answer():
    async def scenario(world):
        return await world.complete(), await world.post("/v1/completions", b"{"), await world.get("/v1/models")

    well, wrong, models = run(scenario)
    assert well.json()["id"] == f"cmpl-{well.headers['x-request-id']}"
    ids = [answer.headers["x-request-id"] for answer in (well, wrong, models)]
    assert len(set(ids)) == 3


PAGE = "https://chat.example.org"


@pytest.mark.parametrize(
    ("origins", "allowed"), [((PAGE,), True), (("*",), True), (("https://other",), False), ((), False)]
)
def test_pages_of_the_origins_that_were_named_may_ask_and_no_others(origins, allowed):
    async def scenario(world):
        asked = {"origin": PAGE, "access-control-request-method": "POST"}
        asked["access-control-request-headers"] = "authorization,content-type"
        early = await world.client.options("/v1/completions", headers=asked)
        token = {"origin": PAGE, "authorization": "Bearer secret"}
        body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
        return (
            early,
            await world.post("/v1/completions", body, headers=token),
            await world.client.options("/nodes/join", headers=asked),
        )

    early, answer, join = run(scenario, origins=origins, token="secret")
    assert early.status_code == (204 if allowed else 401)
    assert answer.status_code == 200
    assert (answer.headers.get("access-control-allow-origin") == PAGE) == allowed
    assert "access-control-allow-origin" not in join.headers
    if allowed:
        assert early.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_the_api_describes_itself():
    document = run(lambda world: world.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    operations = {path: set(item) & {"get", "post"} for path, item in document["paths"].items()}
    assert operations["/v1/chat/completions"] == operations["/v1/embeddings"] == {"post"}
    assert operations["/v1/models"] == {"get"}
    chat = document["components"]["schemas"]["ChatRequest"]
    assert {"model", "messages"} <= set(chat["required"])

    def references(data):
        if isinstance(data, dict):
            yield from [data["$ref"]] if "$ref" in data else []
            data = list(data.values())
        for one in data if isinstance(data, list) else []:
            yield from references(one)

    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_a_prompt_that_takes_long_to_read_holds_nobody_up():
    class Slow(ByteTokenizer):
        def encode(self, text):
            assert len(text) < LONG_TEXT or self.go.wait(120)
            return super().encode(text)

    async def scenario(world):
        tokenizer = world.driver.backend_client.tokenizer = Slow()
        tokenizer.go = threading.Event()
        long = asyncio.create_task(world.complete("x" * LONG_TEXT * 2))
        short = await world.complete("hello", tokens=8)
        is_waiting = not long.done()
        tokenizer.go.set()
        return short.json(), is_waiting, (await long).json()

    short, is_waiting, long = run(scenario)
    assert short["choices"][0]["text"] == foretold("hello", 8)
    assert is_waiting
    assert long["error"]["code"] == "context_length_exceeded"
