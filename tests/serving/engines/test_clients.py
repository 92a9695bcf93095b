"""Clients that people use, against the gateway: OpenAI's libraries for Python and Node, and litellm."""

from __future__ import annotations

import hashlib
import os
import subprocess

import pytest

from tests.serving.engines.engines import HERE, Front, find, python
from tests.support.real_processes import LIMIT_S, until

pytestmark = pytest.mark.real("engines")


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    limits = {"alice": "", "bob": ", requests_per_minute: 1"}
    lines = [
        f"{name}: {{key_sha256: {hashlib.sha256(name.encode()).hexdigest()}{more}}}"
        for name, more in limits.items()
    ]
    (folder / "keys.yaml").write_text("\n".join(lines))
    (folder / "token").write_text("operators")
    with Front(folder) as front:
        front.engines = [front.llama_cpp(slots=4)]
        front.engines[0].wait()
        options = ["--keys", str(folder / "keys.yaml"), "--token-file", str(folder / "token")]
        front.client.headers["authorization"] = "Bearer operators"
        front.open(front.engines[0].url, options=options)
        front.until_nodes(0)
        yield front


@pytest.mark.parametrize("language", ["python", "node"])
def test_a_library_that_people_use_finds_all_as_it_expects(front, language):
    commands = {
        "python": python("-W", "error::ResourceWarning", HERE / "ask_openai.py", front.gateway.address),
        "node": ["node", str(HERE / "ask_openai.mjs"), str(find() / "node"), front.gateway.address],
    }
    told = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # which it would fetch
    done = subprocess.run(
        commands[language], capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | told
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all is well\n")
    # Both left in the middle of a stream.
    (engine,) = front.engines
    until(lambda: engine.metric("llamacpp:requests_processing") == 0, lambda: "an idle engine", limit_s=60)
