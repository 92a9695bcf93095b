"""Where commands that ask look at a cluster: its API server, or files that kubectl wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strata.names import first_of

if TYPE_CHECKING:
    from strata.cluster.cache.cache import ClusterCache
    from strata.cluster.cache.gather import Objects

Command = TypeVar("Command", bound=Callable[..., Any])


def source_options(command: Command) -> Command:
    """Give a command `--snapshot`, `--kubeconfig` and `--context`, for `look`."""
    for option in (
        click.option("--context", help="Of the kubeconfig; its current one unless said."),
        click.option("--kubeconfig", type=click.Path(), help="Else KUBECONFIG, ~/.kube/config, or our pod's own."),
        click.option(
            "--snapshot",
            "snapshots",
            multiple=True,
            type=click.Path(),
            help="A file of `kubectl get nodes,pods,jobs,computenodes,... -A -o json`; may be repeated.",
        ),
    ):
        command = option(command)
    return command


def look(
    snapshots: Sequence[str],
    kubeconfig: str | None,
    context: str | None,
    *,
    after: Callable[[Objects], Objects] = lambda objects: objects,
) -> tuple[ClusterCache, Objects]:
    """Return what matters of a cluster, `after` what becomes of it. Raises MissingPart, ApiFailed, BadFile."""
    from strata.cluster.api.profile_schema import bundled_profiles
    from strata.cluster.cache.gather import cache_of, from_files, from_server, silent, unseen

    if snapshots:
        objects = from_files(snapshots)
    else:
        from strata.cluster.api.client import connect

        with closing(connect(kubeconfig=kubeconfig, context=context)) as api:
            objects = from_server(api)
    objects = after(objects)
    cache = cache_of(objects, bundled_profiles())
    for where, fault in cache.faults.items():
        click.echo(f"warning: {where} is left out: {fault}", err=True)
    if not snapshots and (names := sorted(silent(objects, datetime.now(UTC)) & cache.nodes.keys())):
        cache.close(set(names))
        whose = "the agent of 1 node" if len(names) == 1 else f"the agents of {len(names)} nodes"
        what = f"{whose} published nothing for six minutes, so that no new gangs go there"
        click.echo(f"warning: {what}: {first_of(names, 8)}", err=True)
    if not cache.nodes:
        click.echo(f"warning: {', '.join(snapshots) or 'the cluster'} has no Node", err=True)
    if names := unseen(cache):
        count = f"{len(names)} {'node has' if len(names) == 1 else 'nodes have'} accelerators"
        what = f"{count} but no ComputeNode, which strata's agent writes (docs/cluster.md); left out"
        click.echo(f"warning: {what}: {first_of(names, 8)}", err=True)
    return cache, objects
