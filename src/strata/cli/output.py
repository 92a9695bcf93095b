"""The one way commands answer: data on stdout as a table, JSON or YAML; everything else on stderr.

What a command shows on a terminal is an iterator of lines and tables (`Shown`), which is only run where it is
wanted: `emit(data, output, _show(data))`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])

Shown = Iterator[Any]
"""Texts, which are wrapped at the width of the terminal, `Line`s and tables of `rows`."""

_WORD: Final = re.compile(r"(?<!\S)\S{1,14}(?!\S)")


@dataclass(frozen=True, slots=True)
class Line:
    """A text with a style, or wrapped in another way than by the console.

    is_whole: the terminal wraps it, so that a copy has no line ends of ours. indent, hang: before its first line,
    and before the others.
    """

    text: str
    style: str = ""
    is_whole: bool = False
    indent: str = ""
    hang: str = ""

    def print(self, console: Console) -> None:
        """Print it."""
        text = self.text
        if self.indent:
            hang = self.hang or self.indent
            wrapper = textwrap.TextWrapper(
                console.width, self.indent, hang, break_on_hyphens=False, break_long_words=False
            )
            text = wrapper.fill(text)
        console.print(text, style=self.style, soft_wrap=self.is_whole or bool(self.indent))


def output_option(command: Command) -> Command:
    """Give a command `-o table|json|yaml` as the argument `output`."""
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="How to answer."
    )(command)


def emit(data: Any, output: str, shown: Iterable[Any]) -> None:
    """Print `data` as JSON or YAML, or what is shown to people."""
    if output == "json":
        click.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        show(shown)


def show(shown: Iterable[Any]) -> None:
    """Print lines and tables."""
    terminal = console()
    for item in shown:
        if isinstance(item, Line):
            item.print(terminal)
        else:
            terminal.print(item, crop=False)


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


def rows(
    headers: Sequence[str], body: Iterable[Sequence[str]], *, right: Iterable[int] = (), title: str | None = None
) -> Any:
    """Return a plain rich table: one header line, no boxes, `right` columns right-aligned.

    Texts are folded to fit the terminal, but numbers and words are not split for it: rather, the table is wider.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="bold")
    right_columns = set(right)
    cells = [list(row) for row in body]
    for index, header in enumerate(headers):
        is_right = index in right_columns
        column = [row[index] for row in cells]
        kept = column if is_right else [word for cell in column for word in _WORD.findall(cell)]
        table.add_column(
            header,
            justify="right" if is_right else "left",
            overflow="fold",
            min_width=max(map(len, kept), default=0),
        )
    for row in cells:
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
