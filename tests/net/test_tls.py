"""TLS between real sockets, by certificates that a test makes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import httpx
import pytest

from strata.errors import UsageError
from strata.net.tls import client_context, server_context
from strata.serving.wire import node_client
from tests.serving.gateway.world import FakeWorker
from tests.support.live_server import listening

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="makes its certificates with openssl")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    asked = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    asked += [
        "-subj",
        "/CN=node",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    subprocess.run(["openssl", "req", *asked], check=True, capture_output=True)
    return cert, key


async def status(port, authority):
    async with node_client("secret", authority) as client:
        return (await client.get(f"https://127.0.0.1:{port}/healthz")).status_code


@needs_openssl
def test_who_trusts_the_certificate_is_answered_and_who_does_not_is_told(pair):
    async def scenario():
        frame = FakeWorker("a").frame("secret")
        async with listening(frame, tls=server_context(*pair)) as port:
            well = await status(port, pair[0])
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await status(port, None)
            return well

    assert asyncio.run(scenario()) == 200


@needs_openssl
def test_what_is_no_pair_is_refused(pair, tmp_path):
    cert, key = pair
    other = tmp_path / "key.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(other), "2048"], check=True, capture_output=True)
    for wrong in ((cert, other), (key, cert), (cert, tmp_path / "none")):
        with pytest.raises(UsageError, match="do not load"):
            server_context(*wrong)
    with pytest.raises(UsageError, match="does not load"):
        client_context(key)
