"""What servers of requests may be told of their limits, and the certificate that they show."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from strata.errors import UsageError
from strata.names import closest
from strata.net.http import Limits
from strata.units import parse, show_bytes

TEXTS: Final[Mapping[str, str]] = {
    "body_bytes": "largest body of a request",
    "header_bytes": "all headers of one together",
    "connections": "requests at once",
    "head_s": "for a client to send the head",
    "body_s": "for a client to send the body",
    "answer_s": "for an answer to begin; of one without stream, to be there",
    "stall_s": "for a client to read on",
    "silence_s": "for an engine to go on with a stream; a sixth of it where none of its streams moves",
    "max_attempts": "attempts at a request",
}
BODY_BYTES: Final = 32 * 2**20
"""Images come in bodies, a third larger in base64."""


class GatewayLimits(NamedTuple):
    """Limits of HTTP, the silence after which an engine's stream breaks off, and attempts at a request."""

    http: Limits
    silence_s: float
    max_attempts: int


def read_limits(pairs: tuple[str, ...]) -> GatewayLimits:
    """Read `NAME=VALUE` of each limit that is not as usual. Raises UsageError."""
    from strata.serving.gateway.build import SILENCE_S
    from strata.serving.live.config import SchedulerConfig

    usual = Limits(body_bytes=BODY_BYTES)
    values: dict[str, Any] = {name: getattr(usual, name) for name in TEXTS if hasattr(usual, name)}
    values |= {"silence_s": SILENCE_S, "max_attempts": SchedulerConfig().max_attempts}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in TEXTS:
            every = "\n".join(f"  {key}={_usual(key, values[key])}: {text}" for key, text in TEXTS.items())
            if pair == "help":
                click.echo(every)
                raise click.exceptions.Exit(0)
            hint = f"--limit {closest(name, TEXTS) or 'answer_s'}=VALUE"
            raise UsageError(f"--limit {pair}: limits, and what they are by default, are\n{every}", hint=hint)
        value: float = int(text) if text.isdecimal() else 0
        if not value and name.endswith("_s"):
            value = parse(text, "time")
        elif not value and name.endswith("_bytes"):
            value = int(parse(text, "bytes"))
        if value <= 0:
            raise UsageError(
                f"--limit {pair}: {text!r} is not above 0", hint=f"--limit {name}={_usual(name, values[name])}"
            )
        values[name] = value
    silence_s, max_attempts = values.pop("silence_s"), values.pop("max_attempts")
    return GatewayLimits(Limits(**values), silence_s, max_attempts)


def _usual(name: str, value: float) -> str:
    return show_bytes(value) if name.endswith("_bytes") else f"{value:g}"


def read_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what a server shows; None where it speaks plain HTTP. Raises UsageError."""
    from strata.net.tls import server_context

    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("--tls-cert and --tls-key belong together", hint="--tls-cert cert.pem --tls-key key.pem")
    return server_context(cert, key)
