"""Clients' keys and what each may ask, under a clock by hand."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from strata.errors import BadFile, UsageError
from strata.net.http import Frame
from strata.serving.gateway.keys import ClientKey, ClientKeys, read_keys
from strata.serving.gateway.openai import ApiError
from tests.serving.gateway.world import Caller, World, run


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def keys_of(clock, **limits):
    return ClientKeys({digest("secret"): ClientKey("alice", **limits)}, clock=clock)


def asks(keys, bearer="secret"):
    """Return 0 where a request is let in, else after how many seconds it may come again."""
    try:
        keys.admit(keys.find(bearer))
    except ApiError as error:
        return error.retry_after_s if (error.status, error.code) == (429, "rate_limit_exceeded") else None
    return 0


def test_a_key_is_known_by_its_digest_alone():
    keys = keys_of(Clock())
    assert keys.find("secret").name == "alice"
    assert keys.find("Secret") is None
    assert keys.find("") is None


def test_requests_of_a_minute_may_come_at_once_and_then_evenly():
    clock = Clock()
    keys = keys_of(clock, requests_per_minute=6)
    assert [asks(keys) for _ in range(8)] == [0] * 6 + [10, 10]
    clock.now_s = 10.0
    assert [asks(keys) for _ in range(2)] == [0, 10]
    clock.now_s = 1000.0
    assert [asks(keys) for _ in range(7)] == [0] * 6 + [10]


def test_tokens_are_counted_at_the_end_and_an_overdraft_is_waited_for():
    clock = Clock()
    keys = keys_of(clock, tokens_per_minute=60)
    with keys.counted(keys.find("secret"), lambda: 90):
        assert asks(keys) == 0
    assert asks(keys) == 31
    clock.now_s = 31.0
    assert asks(keys) == 0


def test_only_so_many_run_at_once():
    keys = keys_of(Clock(), at_once=1)
    with keys.counted(keys.find("secret"), lambda: 0):
        assert asks(keys) == 1
    assert asks(keys) == 0


def test_a_key_without_limits_has_none():
    keys = keys_of(Clock())
    assert [asks(keys) for _ in range(1000)] == [0] * 1000


def test_a_file_of_keys_is_read_and_what_is_wrong_in_it_is_said(tmp_path):
    file = tmp_path / "keys.yaml"
    alice, bob = (f"{{key_sha256: {digest(key)}}}" for key in ("secret", "b"))
    file.write_text(f"alice: {alice[:-1]}, requests_per_minute: 1}}\nbob: {bob}\n")
    keys = read_keys(file, clock=Clock())
    assert keys.find("secret") == ClientKey("alice", requests_per_minute=1)
    assert keys.find("b") == ClientKey("bob")
    for wrong in (
        "alice: {key_sha256: secret}",
        "alice: {key: x}",
        f"alice: {{key_sha256: {digest('x')}, at_once: 0}}",
    ):
        file.write_text(wrong)
        with pytest.raises(BadFile):
            read_keys(file, clock=Clock())
    file.write_text(f"alice: {{key_sha256: {digest('x')}}}\nbob: {{key_sha256: {digest('x')}}}\n")
    with pytest.raises(UsageError, match="two clients have the same key"):
        read_keys(file, clock=Clock())
    file.write_text("{}")
    with pytest.raises(UsageError, match="names no client"):
        read_keys(file, clock=Clock())


def test_a_client_past_its_limit_is_told_when_to_come_again_and_others_are_served():
    clock = Clock()
    alice, bob = ClientKey("alice", requests_per_minute=2, tokens_per_minute=1000), ClientKey("bob")
    keys = ClientKeys({digest("a"): alice, digest("b"): bob}, clock=clock)

    async def scenario(world):
        async def complete(token):
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}
            return await world.post("/v1/completions", body, headers={"authorization": f"Bearer {token}"})

        return [await complete(token) for token in ("a", "a", "a", "b", "operator", "x", "")]

    answers = run(scenario, keys=keys, token="operator")
    assert [answer.status_code for answer in answers] == [200, 200, 429, 200, 200, 401, 401]
    refused = answers[2]
    assert refused.headers["retry-after"] == "30"
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_a_key_opens_what_openai_has_and_nothing_of_the_operators():
    keys = ClientKeys({digest("a"): ClientKey("alice")}, clock=Clock())

    async def scenario(world):
        headers = {"authorization": "Bearer a"}
        paths = ("/v1/models", "/status", "/metrics", "/decisions/x")
        return [(await world.client.get(path, headers=headers)).status_code for path in paths]

    assert run(scenario, keys=keys, token="operator") == [200, 401, 401, 401]


def test_a_client_that_hangs_up_runs_no_more():
    keys = ClientKeys({digest("a"): ClientKey("alice", at_once=1)}, clock=Clock())

    async def scenario(world: World):
        for worker in world.workers:
            worker.go.clear()
        frame: Frame = world.frame
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
        caller = Caller(frame, "/v1/completions", body, bearer="a")
        while not world.driver.streams:
            await asyncio.sleep(0)
        before = asks(keys, "a")
        caller.hang_up()
        await caller.task
        return before, asks(keys, "a")

    assert run(scenario, keys=keys, token="operator") == (1, 0)
