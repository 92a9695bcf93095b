"""The one way commands answer: data on stdout as a table, JSON or YAML; everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(command: Command) -> Command:
    """Give a command `-o table|json|yaml` as the argument `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "yaml"]),
        default="table",
        show_default=True,
        help="How to answer.",
    )(command)


def emit(data: Any, output: str, table: Callable[[Console], None]) -> None:
    """Print `data` as JSON or YAML, or call `table` with a console for people."""
    if output == "json":
        click.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        table(console())


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
    import os

    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) > 0 else 80


def rows(
    headers: Sequence[str],
    body: Iterable[Sequence[str]],
    *,
    right: Iterable[int] = (),
    title: str | None = None,
) -> Any:
    """Return a plain rich table: one header line, no boxes, `right` columns right-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="bold")
    right_columns = set(right)
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index in right_columns else "left", overflow="fold")
    for row in body:
        table.add_row(*row)
    return table


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
