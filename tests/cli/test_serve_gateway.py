"""Options of `strata serve gateway` that are refused, or read into limits."""

from __future__ import annotations

import pytest

from strata.cli.main import run
from strata.cli.serve_limits import BODY_BYTES, read_limits, read_tls
from strata.errors import UsageError

GATEWAY = ("serve", "gateway", "--port", "0")


def test_clients_and_nodes_never_have_the_same_token(tmp_path, monkeypatch, capsys):
    """Found in a review: a client's token let it join as a worker, and read what others asked."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    monkeypatch.setenv("STRATA_NODE_TOKEN", "secret")
    assert run([*GATEWAY, "--token-file", str(token)]) == 2
    assert "clients and nodes have the same token" in capsys.readouterr().err


def test_a_token_is_no_argument_that_others_see():
    """Found in a review: it showed in the list of processes."""
    for command in (GATEWAY, ("serve", "worker", "--gateway", "http://x", "--id", "a")):
        assert run([*command, "--node-token", "secret"]) == 2


def test_keys_leave_no_page_of_the_operators_open(tmp_path, capsys):
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"alice: {{key_sha256: {'0' * 64}}}\n")
    assert run([*GATEWAY, "--keys", str(keys)]) == 2
    assert "try: --token-file" in capsys.readouterr().err


def test_limits_have_defaults_and_units():
    usual = read_limits(())
    assert (usual.http.body_bytes, usual.http.answer_s, usual.silence_s, usual.max_attempts) == (
        BODY_BYTES,
        600,
        120,
        5,
    )
    pairs = ("body_bytes=64MB", "answer_s=30min", "silence_s=5", "max_attempts=2", "connections=10")
    told = read_limits(pairs)
    assert (told.http.body_bytes, told.http.answer_s, told.http.connections) == (64_000_000, 1800, 10)
    assert (told.silence_s, told.max_attempts) == (5, 2)


@pytest.mark.parametrize(
    "pair", ["body_bytes", "body_bytes=0", "answer_s=-1", "connections=1.5", "answr_s=5", "head_s=x"]
)
def test_what_is_no_limit_is_refused(pair):
    with pytest.raises(UsageError):
        read_limits((pair,))


def test_the_limits_are_listed_with_what_they_are_by_default():
    with pytest.raises(UsageError, match=r"answer_s=600: for an answer to begin") as refusal:
        read_limits(("answr_s=5",))
    assert refusal.value.hint == "--limit answer_s=VALUE"


def test_the_list_of_limits_is_an_answer_and_no_error(capsys):
    assert run(["serve", "gateway", "--limit", "help"]) == 0
    listed = capsys.readouterr()
    assert "body_bytes=32MiB: largest body of a request" in listed.out
    assert listed.err == ""


def test_a_certificate_and_its_key_belong_together(tmp_path):
    cert = tmp_path / "cert.pem"
    cert.write_text("no certificate")
    assert read_tls(None, None) is None
    for pair in ((cert, None), (None, cert), (cert, cert), (tmp_path / "none", cert)):
        with pytest.raises(UsageError):
            read_tls(*pair)


@pytest.mark.parametrize(
    "option",
    [("--node-network", "nope"), ("--node-network", "10.0.0.1/8"), ("--keys", "/nowhere"), ("--ca", "/nowhere")],
)
def test_what_cannot_be_read_is_refused_before_anything_listens(option, tmp_path, capsys):
    token = tmp_path / "token"
    token.write_text("secret")
    assert run([*GATEWAY, "--token-file", str(token), *option]) == 2
    assert "listens" not in capsys.readouterr().out
