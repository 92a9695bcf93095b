"""Asking a server: what is logged of its answers, and what is said of those that have no tokens."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from strata.cli.main import run
from strata.errors import MissingPart, UsageError
from strata.net.http import Frame, Limits
from strata.net.metrics import Counter, Registry
from strata.net.server import listen, serving
from strata.serving.gateway.build import GatewaySettings, build
from strata.serving.live.config import SchedulerConfig
from strata.serving.measured.ask import ask
from strata.serving.measured.log import read_log
from strata.serving.tokens import ByteTokenizer
from strata.serving.worker.shape import Shape
from strata.workload.requests import Request
from tests.serving.measured.made_up import FLEET

BYTES_PER_TOKEN = 5


class Server:
    """Streams a token an event and what was used at the end; `broken` answers end otherwise, by their number."""

    def __init__(self, broken=None):
        self.broken, self.heard = broken or {}, []

    async def completions(self, request):
        body = await request.json()
        self.heard.append(body)
        wrong = self.broken.get(len(self.heard) - 1)
        if wrong == "refused":
            return JSONResponse({"error": {"message": "too many"}}, status_code=429)

        async def events():
            for _ in range(body["max_tokens"]):
                yield 'data: {"choices": [{"text": "x"}]}\n\n'
            used = {
                "prompt_tokens": len(body["prompt"]) // BYTES_PER_TOKEN,
                "completion_tokens": body["max_tokens"],
            }
            if wrong == "error":
                yield 'data: {"error": {"message": "lost"}}\n\n'
            elif wrong != "silent":
                yield f"data: {json.dumps({'choices': [], 'usage': used})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @contextmanager
    def at(self):
        async def models(_request):
            return JSONResponse({"data": [{"id": "m"}]})

        routes = [Route("/v1/models", models), Route("/v1/completions", self.completions, methods=["POST"])]
        counter = Counter("requests_total", "R.", ["code"], registry=Registry())
        frame = Frame(Starlette(routes=routes), realms=(), limits=Limits(), requests=counter)
        with listen("127.0.0.1", 0) as listener, serving(frame, listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


CAME = [Request(0.0, 40, 3), Request(0.01, 100, 1), Request(0.02, 7, 5)]


def test_answers_are_logged_with_the_tokens_that_the_server_counts():
    server = Server()
    with server.at() as url:
        log, errors = asyncio.run(ask(url, CAME))
    assert not errors
    assert [(r.prompt_tokens, r.output_tokens) for r in log.requests] == [(40, 3), (100, 1), (7, 5)]
    assert [body["model"] for body in server.heard] == ["m"] * 4
    assert len({body["prompt"][:20] for body in server.heard}) == 4
    assert (log.ttft_s > 0).all()
    assert (log.ttft_s <= log.latency_s).all()


def test_requests_that_fail_are_left_out_and_told():
    with Server({1: "refused", 2: "error"}).at() as url:
        log, errors = asyncio.run(ask(url, CAME))
    assert len(log.requests) == 1
    assert sorted(error.partition(": ")[2][:15] for error in errors) == ["HTTP status 429", "{'message': 'lo"]


def test_a_gateway_without_a_worker_is_told_at_once():
    settings = GatewaySettings(SchedulerConfig(), (Shape().hosted, ByteTokenizer()))
    with listen("127.0.0.1", 0) as listener, serving(build(settings)[1], listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(MissingPart, match="serves nothing yet: no worker or engine has joined") as caught:
            asyncio.run(ask(url, CAME))
    assert caught.value.hint == f"strata serve worker --gateway {url}"


@pytest.mark.parametrize("wrong", ["refused", "error", "silent"])
def test_a_server_that_does_not_stream_usage_is_refused_at_once(wrong):
    server = Server({0: wrong})
    with server.at() as url, pytest.raises(UsageError) as caught:
        asyncio.run(ask(url, CAME))
    assert len(server.heard) == 1
    assert caught.value.hint == "a server of OpenAI's completions that streams usage"


def test_nobody_at_the_address_is_a_missing_part():
    with pytest.raises(MissingPart, match="nobody answers"):
        asyncio.run(ask("http://127.0.0.1:1", CAME))


def test_the_command_asks_saves_and_fits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "job.yaml").write_text(
        "apiVersion: strata/v1alpha1\nkind: ServingJob\nname: chat\nmodel: llama-3.1-8b\n"
        "demand: {prompt: 30, output: 5, batch: 4, rate: 60/s}\n"
    )
    call = ["serve", "calibrate", "fleet.yaml", "job.yaml", "--seconds", "1s", "-o", "json"]
    with Server().at() as url:
        assert run([*call, "--url", url, "--save", "requests.csv"]) == 0
    counts = json.loads(capsys.readouterr().out)["requests"]
    assert counts["failed"] == 0
    assert len(read_log("requests.csv").requests) == counts["fitted"] + counts["judged"] > 20
