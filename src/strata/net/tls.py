"""TLS from files: what a server shows, and whom a client believes beside the system's authorities."""

from __future__ import annotations

import ssl
from pathlib import Path

from strata.errors import UsageError


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return a context that shows a certificate (with its chain, PEM). Raises UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        hint = "--tls-cert and --tls-key name a certificate and its own key, both PEM and without password"
        raise UsageError(f"{cert} and {key} do not load: {error.args[-1]}", hint=hint) from None
    return context


def client_context(authority: Path | None = None) -> ssl.SSLContext:
    """Return a context that checks servers, by the system's authorities and one more. Raises UsageError."""
    context = ssl.create_default_context()
    try:
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{authority} does not load: {error.args[-1]}", hint="--ca FILE in PEM") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")
