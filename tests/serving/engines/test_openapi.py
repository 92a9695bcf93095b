"""The gateway's API document against the gateway, by schemathesis: what it allows is taken, all else refused."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from strata.net.http import Frame, Limits, Realm
from strata.net.metrics import Counter, Registry
from strata.net.server import listen, serving
from tests.serving.engines.engines import HERE, MODEL, Front, find
from tests.support.real_processes import LIMIT_S

pytestmark = pytest.mark.real("engines")


async def anything(scope, receive, send):
    """An engine that takes whatever comes."""
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    asked = json.loads(body + message.get("body", b"") or b"{}")
    answer = {"object": "list", "data": [{"id": MODEL}]}
    if "messages" in asked or "prompt" in asked:
        several = not isinstance(asked.get("prompt", ""), str) and not isinstance(asked["prompt"][0], int)
        count = (asked.get("n") or 1) * (len(asked["prompt"]) if several else 1)
        choice = {"finish_reason": "stop", "text": "a", "message": {"role": "assistant", "content": "a"}}
        answer = {"choices": [choice | {"index": i} for i in range(count)]}
    data = json.dumps(answer).encode()
    if asked.get("stream"):
        data = b"data: " + data + b"\n\ndata: [DONE]\n\n"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": data})


def test_schemathesis_finds_nothing(tmp_path):
    counter = Counter("requests_total", "R.", ["code"], registry=Registry())
    frame = Frame(anything, realms=[Realm("/")], limits=Limits(body_bytes=2**30), requests=counter)
    with listen("127.0.0.1", 0) as listener, serving(frame, listener), Front(tmp_path) as front:
        front.open(f"http://127.0.0.1:{listener.getsockname()[1]}")
        front.until_nodes(0)
        command = [str(find() / "bin" / "schemathesis"), "run", f"{front.gateway.address}/openapi.json"]
        command += ["--generation-deterministic", "--continue-on-failure", "-n", "40", "--request-timeout", "60"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Fuzzing" in done.stdout
