"""`strata serve`: one table of what runs a serving cluster, each imported only when it runs."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.lazy import LazyGroup, Table

SERVING: Final[Table] = {
    "gateway": ("strata.cli.serve_gateway:gateway", "Route OpenAI-compatible requests onto the nodes that join."),
    "worker": ("strata.cli.serve_worker:worker", "Host a range of a real small transformer's layers."),
    "simulate": ("strata.cli.serve_simulate:simulate", "Play arrivals and failures on a fleet; no GPU."),
}


@click.group(cls=LazyGroup, table=SERVING)
def serve() -> None:
    """Serve requests on pipelines of nodes, or simulate it."""
