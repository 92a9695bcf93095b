"""Which gateway's requests the pages of `strata ui` and `strata up` show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.serving.gateway.client import GatewayClient

Command = TypeVar("Command", bound=Callable[..., Any])


def gateway_options(command: Command) -> Command:
    """Give a command `--gateway` and `--gateway-token-file`, for `gateway_of`."""
    for option in (
        click.option(
            "--gateway-token-file", type=click.Path(), help="File with the token that opens the gateway."
        ),
        click.option("--gateway", metavar="URL", default="", help="Address of `strata serve gateway`."),
    ):
        command = option(command)
    return command


def gateway_of(url: str, token_file: str | None) -> GatewayClient | None:
    """Return the gateway that was named, asked nothing yet. Raises UsageError for a token without one."""
    from strata.cli.tokens import read_token
    from strata.serving.gateway.client import GatewayClient

    token = read_token(token_file)
    if token and not url:
        raise UsageError("--gateway-token-file opens no gateway", hint="--gateway URL")
    return GatewayClient(url.rstrip("/"), token) if url else None
