"""Writes a man page for every command into a folder: `python docs/man.py build/man`."""

from __future__ import annotations

import sys
from copy import copy
from pathlib import Path

import click
from click_man.core import generate_man_page

from strata import __version__
from strata.cli.main import cli


def pages(command: click.Command, context: click.Context) -> dict[str, str]:
    """Return the pages of a command and of all below it, by their file names."""
    own = click.Context(_with_short_help(command), info_name=context.info_name, parent=context.parent)
    made = {f"{context.command_path.replace(' ', '-')}.1": generate_man_page(own, version=__version__)}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            made |= pages(below, click.Context(below, info_name=name, parent=context))
    return made


def _with_short_help(command: click.Command) -> click.Command:
    """Return a copy that has the sentence which click-man would ask for by a name that click retires."""
    named = copy(command)
    named.short_help = command.get_short_help_str(100)
    if isinstance(named, click.Group):
        named.commands = {name: _with_short_help(below) for name, below in named.commands.items()}
    return named


def main(folder: Path) -> None:
    """Write all pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(cli, click.Context(cli, info_name="strata", **cli.context_settings)).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
