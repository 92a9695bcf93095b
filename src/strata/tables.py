"""What a command shows to people: an iterator of lines and tables, which is only run where it is wanted."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

Shown = Iterator[Any]
"""Texts, which are wrapped at the width of the terminal, `Line`s and tables of `rows`."""


def printable(text: str) -> str:
    """Return a text whose control characters are escaped: names of threads may hold what moves the cursor.

    So are characters that change the direction of writing; line ends stay.
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter == "\n"
        else letter.encode("unicode_escape", "backslashreplace").decode("ascii")
        for letter in text
    )


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
        text = printable(self.text)
        if self.indent:
            hang = self.hang or self.indent
            wrapper = textwrap.TextWrapper(
                console.width, self.indent, hang, break_on_hyphens=False, break_long_words=False
            )
            text = wrapper.fill(text)
        console.print(text, style=self.style, soft_wrap=self.is_whole or bool(self.indent))


def rows(
    headers: Sequence[str], body: Iterable[Sequence[str]], *, right: Iterable[int] = (), title: str | None = None
) -> Any:
    """Return a plain rich table: one header line, no boxes, `right` columns right-aligned, the title one line.

    Texts are folded to fit the terminal, but numbers and words are not split for it: rather, the table is wider.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    head = None if title is None else Text(title, "italic", no_wrap=True, overflow="ignore")
    table = Table(box=None, pad_edge=False, title=head, title_justify="left", header_style="bold")
    right_columns = set(right)
    cells = [[printable(cell) for cell in row] for row in body]
    for index, header in enumerate(headers):
        is_right = index in right_columns
        column = [row[index] for row in cells]
        kept = column if is_right else [word for cell in column for word in _WORD.findall(cell)]
        least = max(map(cell_len, kept), default=0)
        table.add_column(
            header,
            justify="right" if is_right else "left",
            overflow="fold",
            min_width=least,
            # rich would take from a column that cannot give, give it back, and leave those that can as they were.
            no_wrap=least >= max(map(cell_len, [header, *column])),
        )
    for row in cells:
        table.add_row(*row)
    return table
