"""Groups of commands that import a command only when it is used, so that `--help` is fast; and what was typed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from strata.names import closest

if TYPE_CHECKING:
    from pathlib import Path  # at run time it costs a fifth of `strata --version`

Table = dict[str, tuple[str, str]]
"""By its name, a command's `module:attribute` and what it is for, in one sentence."""


class LazyGroup(click.Group):
    """A click group that reads its commands from a table and imports one when it is used."""

    def __init__(self, *args: Any, table: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in table order: the order of a first walk through the tool."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve, or say which command was probably meant."""
        name = args[0] if args else ""
        if name and name not in self.table and not name.startswith("-"):
            close = closest(name, self.table)
            meant = f" Did you mean {close!r}?" if close else ""
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


class CommandLine:
    """The arguments as they were typed; the root context's object."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)

    def mentions(self, path: Path) -> int:
        """Return how many arguments, or values after `=`, name this file."""
        return sum(
            any(_is_same(text, path) for text in (argument, argument.partition("=")[2]) if text)
            for argument in self.arguments
        )


def _is_same(text: str, path: Path) -> bool:
    try:
        return os.path.samefile(text, path)
    except (OSError, ValueError):
        return False
