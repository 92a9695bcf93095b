"""`strata bench gateway`: what is printed, and what is refused; its figures are the machine's."""

from __future__ import annotations

import json

import pytest

from strata.cli.main import run


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
