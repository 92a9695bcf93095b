"""The one way commands answer: data on stdout as a table, JSON or YAML; everything else on stderr.

What a table is printed from (`strata.tables`) is only run where it is wanted: `emit(data, output, _show(data))`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from strata.cli.parameters import choice
from strata.tables import Line, printable

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(command: Command) -> Command:
    """Give a command `-o table|json|yaml` as the argument `output`."""
    return click.option(
        "-o", "--output", type=choice("table", "json", "yaml"), default="table", help="How to answer."
    )(command)


def emit(data: Any, output: str, shown: Iterable[Any]) -> None:
    """Print `data` as JSON or YAML, or what is shown to people."""
    if output == "json":
        click.echo(json_text(data, indent=2))
    elif output == "yaml":
        import yaml

        # By way of JSON: the same data in both, and no anchors where one object stands in two places.
        plain = json.loads(json.dumps(data, allow_nan=False))
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)
    else:
        show(shown)


def json_text(data: Any, *, indent: int | None = None) -> str:
    """Return JSON in which a terminal finds nothing to obey.

    The C1 controls are escaped like the others, and what changes the direction of writing.
    """
    text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_CONTROLS: Final = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def show(shown: Iterable[Any]) -> None:
    """Print lines and tables."""
    terminal = console()
    for item in shown:
        if isinstance(item, Line):
            item.print(terminal)
        else:
            terminal.print(printable(item) if isinstance(item, str) else item, crop=False)


def console(*, err: bool = False) -> Console:
    """Return a rich console for stdout (or stderr); 80 columns where there is no terminal.

    No markup: a name may hold brackets, and `.[train]` must not lose its extra.
    """
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # to cli.main, where `| head` is no error; rich would exit 1

    stream = sys.stderr if err else sys.stdout
    plain = partial(Plain, file=stream, highlight=False, markup=False, emoji=False)
    terminal = plain()
    return terminal if terminal.is_terminal else plain(width=terminal_width())


def terminal_width() -> int:
    """Return COLUMNS if set, else 80."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) > 0 else 80


@contextmanager
def progress(label: str, *, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr where that is a terminal; yields a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.progress import Progress

    with Progress(console=console(err=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
