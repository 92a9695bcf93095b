"""What keeps other sites' pages away from a server that a browser on this machine can reach.

A page of any site may send requests to localhost (cross-site request forgery), and a site whose name is pointed at
127.0.0.1 may read the answers (DNS rebinding). Neither can choose the `Host` and `Origin` that a browser sends.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from strata.net.http import App, Message, Receive, Scope, Send, error_body

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
     b"object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with none at all, a page's own forms have the origin `null`
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip
"""Scripts are ours alone; styles may stand in a page, because pictures carry their own."""


class SameOrigin:
    """An application that other sites' pages can neither read nor change.

    hosts: names it answers to; empty for any, where a token protects it. Requests of programs, which send no
    `Origin`, pass.
    """

    def __init__(self, app: App, *, hosts: Collection[str]) -> None:
        self.app, self.hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self.hosts and _name(host) not in self.hosts:
            await _refuse(send, f"this server does not answer to the name {_name(host)!r}")
        elif (origin is not None and urlsplit(origin).netloc != host) or (
            origin is None and headers.get(b"sec-fetch-site", "none") not in ("same-origin", "none")
        ):
            await _refuse(send, "another site's page may not ask this")
        else:
            await self.app(scope, receive, _with_headers(send))


def hosts_of(host: str, *, token: str) -> frozenset[str]:
    """Return the names that a server at an address answers to: any where a token protects it."""
    return frozenset() if token else LOCAL_NAMES | {f"[{host}]" if ":" in host else host}


def _name(host: str) -> str:
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return sending


async def _refuse(send: Send, message: str) -> None:
    body = error_body(message, kind="invalid_request_error", code="cross-origin")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
