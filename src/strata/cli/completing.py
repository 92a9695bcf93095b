"""Arguments that a shell completes: bundled names, files, and what a scheduler runs.

Completion runs whenever somebody presses a key: it imports what it needs only then, and what cannot be known is
not offered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem


class Named(click.ParamType[str]):
    """A text for which a shell offers names, and files where `has_files`."""

    name = "text"

    def __init__(self, names: Callable[[click.Context], Iterable[str]], *, has_files: bool) -> None:
        self.names, self.has_files = names, has_files

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text as it is."""
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so."""
        items = [CompletionItem(name) for name in self.names(ctx) if name.startswith(incomplete)]
        return [*items, CompletionItem(incomplete, type="file")] if self.has_files else items


def _fleets(_: click.Context) -> list[str]:
    from strata.files import bundled_names
    from strata.fleet.schema import BUNDLED_FLEETS

    return bundled_names(BUNDLED_FLEETS)


def _jobs(_: click.Context) -> list[str]:
    from strata.files import bundled_names
    from strata.workload.schema import BUNDLED_JOBS

    return bundled_names(BUNDLED_JOBS)


def _serving_jobs(_: click.Context) -> list[str]:
    from strata.files import bundled_names
    from strata.workload.serving_schema import BUNDLED_SERVING_JOBS

    return bundled_names(BUNDLED_SERVING_JOBS)


def _names_at(context: click.Context, what: str) -> list[str]:
    """Return names of the scheduler that the command line or the environment names; none where none answers."""
    from strata.cli.tokens import token_of
    from strata.control.client import DEFAULT_URL, Client
    from strata.errors import StrataError

    server = context.params.get("server") or os.environ.get("STRATA_SERVER", DEFAULT_URL)
    try:
        token = token_of(context.params.get("token_file"))
        client = Client(str(server).rstrip("/"), token)
        return [str(item["name"]) for item in (client.jobs() if what == "jobs" else client.domains())]
    except StrataError:  # a key was pressed: there is nobody to tell
        return []


FLEET: Final = Named(_fleets, has_files=True)
JOB: Final = Named(_jobs, has_files=True)
SERVING_JOB: Final = Named(_serving_jobs, has_files=True)
ANY_JOB: Final = Named(lambda context: [*_jobs(context), *_serving_jobs(context)], has_files=True)
RUNNING_JOB: Final = Named(lambda context: _names_at(context, "jobs"), has_files=False)
DOMAIN: Final = Named(lambda context: _names_at(context, "domains"), has_files=False)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which SHELL completes commands, fleets, jobs and domains.

    \b
    strata completion bash > ~/.local/share/bash-completion/completions/strata
    strata completion zsh > "${fpath[1]}/_strata"
    strata completion fish > ~/.config/fish/completions/strata.fish
    """
    from click.shell_completion import get_completion_class

    from strata.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    click.echo(kind(cli, {}, "strata", "_STRATA_COMPLETE").source())
