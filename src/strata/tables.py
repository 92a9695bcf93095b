"""What a command shows to people: an iterator of lines and tables, which is only run where it is wanted."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

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


_BETWEEN: Final = 2
"""Blanks between two columns."""
_ANY_TEXT: Final = re.compile(r".+")
_ANY_WORD: Final = re.compile(r"\S+")
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


@dataclass(frozen=True, slots=True)
class Rows:
    """A plain table: one header line, no boxes, `right` columns right-aligned, the title one line.

    Texts are folded to fit the terminal, but numbers and words, of headers too, are not split for it: rather, the
    table is wider.
    """

    headers: Sequence[str]
    body: Sequence[Sequence[str]]
    right: frozenset[int]
    title: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Yield a rich table whose columns have widths of ours.

        Rich takes from all columns alike where texts are not enough, and leaves out those that it takes all from.
        """
        from rich.table import Table
        from rich.text import Text

        head = None if self.title is None else Text(self.title, "italic", no_wrap=True, overflow="ignore")
        table = Table(box=None, pad_edge=False, title=head, title_justify="left", header_style="bold")
        widths = self._widths(options.max_width - _BETWEEN * (len(self.headers) - 1))
        for index, (header, width) in enumerate(zip(self.headers, widths, strict=True)):
            side: Literal["left", "right"] = "right" if index in self.right else "left"
            table.add_column(header, justify=side, overflow="fold", width=width)
        for row in self.body:
            table.add_row(*row)
        wide = max(options.max_width, sum(widths) + _BETWEEN * len(widths))
        yield from console.render(table, options.update_width(wide))

    def _widths(self, room: int) -> list[int]:
        """Return the widths of the columns: the widest becomes narrower first; headers and long words go last."""
        from rich.cells import cell_len

        def widest(texts: Iterable[str]) -> int:
            return max(map(cell_len, texts), default=1)

        columns = [[row[i] for row in self.body] for i in range(len(self.headers))]
        lines = [[line for cell in column for line in cell.splitlines()] for column in columns]
        widths = [max(cell_len(header), widest(own)) for header, own in zip(self.headers, lines, strict=True)]
        for word, of_header in ((_ANY_WORD, _ANY_TEXT), (_WORD, _WORD)):
            least = [
                widest([
                    *of_header.findall(header),
                    *(own if i in self.right else [item for line in own for item in word.findall(line)]),
                ])
                for i, (header, own) in enumerate(zip(self.headers, lines, strict=True))
            ]  # fmt: skip
            while sum(widths) > room and (wider := [i for i, width in enumerate(widths) if width > least[i]]):
                widths[max(wider, key=widths.__getitem__)] -= 1
        return widths


def rows(
    headers: Sequence[str], body: Iterable[Sequence[str]], *, right: Iterable[int] = (), title: str | None = None
) -> Rows:
    """Return a table, whatever is in its cells."""
    cells = [[printable(cell) for cell in row] for row in body]
    return Rows(headers, cells, frozenset(right), title)
