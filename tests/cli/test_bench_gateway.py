"""`strata bench gateway`: what is printed, and what is refused; its figures are the machine's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strata.cli.main import run
from tests.support.real_processes import LIMIT_S, until


def test_every_way_answers_every_request_and_peers_that_are_not_there_are_named(capsys):
    assert run(["bench", "gateway", "--clients", "2", "--requests", "6", "--tokens", "5", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    direct, strata = data["runs"]
    assert (direct["through"], strata["through"]) == ("direct", "strata")
    for one in data["runs"]:
        assert (one["errors"], one["first_error"], one["clients"]) == (0, None, 2)
        assert 0 < one["ttft_p50_s"] <= one["ttft_p99_s"]
        assert one["requests_per_s"] > 0
    assert strata["cpu_ms_per_request"] >= 0
    assert data["missing"] == ["vllm-router", "sglang-router", "dynamo"]
    assert data["trust"] == "measured"


@pytest.mark.parametrize(
    "options",
    [
        ("--peer", "vllm-router"),
        ("--peer", "vllm-router=127.0.0.1:1", "--engine-port", "9000"),
        ("--peer", "vllm-router=http://127.0.0.1:1"),
        ("--gap", "soon"),
        ("--tokens", "0"),
    ],
)
def test_what_cannot_be_measured_is_refused(options):
    assert run(["bench", "gateway", *options]) == 2


def test_sigterm_ends_what_was_started(tmp_path):
    command = [sys.executable, "-m", "strata", "bench", "gateway", "--requests", "1000000", "--tokens", "1"]
    with (tmp_path / "said").open("w") as said, subprocess.Popen(command, stdout=said, stderr=said) as bench:
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        until(children.read_text, lambda: "nothing was started")
        started = [Path("/proc") / pid for pid in children.read_text().split()]
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(LIMIT_S) == 130
    assert "interrupted" in (tmp_path / "said").read_text()
    until(lambda: not any(process.exists() for process in started), lambda: f"{started} to end")
