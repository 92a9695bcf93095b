"""Which nodes may join, and which addresses the gateway will talk to: it shows them its token, and prompts."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from strata.errors import UsageError
from strata.serving.gateway.openai import ApiError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

FOREIGN: Final = ("origin", "forwarded", "x-forwarded-for", "x-real-ip")
"""Headers of browsers and of proxies: what has one of them is no worker of this machine that asks for itself."""


def read_network(text: str) -> Network:
    """Read `10.0.0.0/8`. Raises UsageError."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(f"--node-network {text}: {error}", hint="--node-network 10.0.0.0/8") from None


async def addresses_of(host: str) -> list[str]:
    """Return the addresses of a name. Raises OSError."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in infos]


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Who may join. Without a token nobody, or, where `is_local`, workers of this machine.

    networks: where nodes' addresses must lie; without any, where the node itself asks from.
    """

    token: str = ""
    is_local: bool = False
    networks: Sequence[Network] = ()
    resolve: Callable[[str], Awaitable[list[str]]] = addresses_of

    def check_request(self, request: Request) -> None:
        """Raise ApiError for a message that a browser or a stranger may have sent. A token is checked before."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # what a page of any site can send without being asked is another
            raise ApiError(415, "content-type should be application/json", "not-json")
        if self.token:
            return
        is_foreign = any(header in request.headers for header in FOREIGN)
        if not self.is_local or is_foreign or not _client(request).is_loopback:
            problem = "nodes need a token of their own: start gateway and workers with --node-token-file"
            raise ApiError(401, problem, "node-token-missing")

    async def check_url(self, url: str, request: Request) -> None:
        """Raise ApiError for an address that the gateway must not talk to."""
        problem = "url should be http://HOST:PORT or https://HOST:PORT"
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ApiError(422, problem, "invalid_value", param="url") from None
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or parts.path.strip("/"):
            raise ApiError(422, problem, "invalid_value", param="url")
        if parts.query or parts.fragment:
            raise ApiError(422, problem, "invalid_value", param="url")
        try:
            addresses = [_address(text) for text in await self.resolve(host)]
        except OSError as error:
            raise ApiError(422, f"url: {host}: {error.strerror or error}", "invalid_value", param="url") from None
        client = _client(request)
        for address in addresses:
            if not self._is_near(address, client):
                problem = f"url: {address} is not in a network of nodes; see the gateway's --node-network"
                raise ApiError(403, problem, "outside-node-network", param="url")

    def _is_near(self, address: Address, client: Address) -> bool:
        if self.networks:
            return any(address in network for network in self.networks)
        return address == client or (address.is_loopback and client.is_loopback)


NOBODY: Final = NodeAccess()


def _client(request: Request) -> Address:
    if request.client is None:
        raise ApiError(403, "nodes must come over a network", "outside-node-network")
    return _address(request.client.host)


def _address(text: str) -> Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
