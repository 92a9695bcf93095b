"""Types of options: words, numbers in a range and finite, quantities, and files that are written."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from strata import units
from strata.cli.lazy import CommandLine
from strata.errors import UsageError, of_system

PATH: Final = click.Path(path_type=Path)

_PLAIN: Final = re.compile(r"[0-9]+(\.[0-9]*)?")


def choice(*values: str) -> click.Choice[str]:
    """Return the type of an option that is one of some words."""
    return click.Choice(values)


def names_program(_: click.Context, parameter: click.Parameter, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that is to be run; fails where its first word is empty, as an unset variable's is."""
    if command and not command[0].strip():
        raise click.BadParameter("its first word is empty: the name of the program is missing", param=parameter)
    return command


def typed(context: click.Context, *names: str) -> list[str]:
    """Return which of some options stand on the command line."""
    return [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


class Whole(click.IntRange):
    """A whole number in a range. click says of others that they are "not a valid integer range"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for what is none."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return super().convert(value, param, ctx)


POSITIVE: Final = Whole(min=1)
NATURAL: Final = Whole(min=0)
PORT: Final = Whole(0, 65535)


class Finite(click.FloatRange):
    """A number in a range. click takes `nan`, which is in every range, and `inf`, which is above any lower end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for what is none."""
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Return the range as help shows it: click has words only for ranges that end somewhere."""
        return super()._describe_range() if self.min is not None or self.max is not None else ""


class Quantity(click.ParamType[float]):
    """A quantity with its unit, in SI, above 0.

    zero: 0 may be given too. is_bare: numbers without a unit are in SI already. never: what that word stands for.
    """

    def __init__(
        self, dimension: units.Dimension, *, zero: bool = False, is_bare: bool = False, never: float | None = None
    ) -> None:
        self.name = "size" if dimension == "bytes" else dimension
        self.dimension, self.zero, self.is_bare, self.never = dimension, zero, is_bare, never

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the quantity; fails for what is none, with one to write."""
        if isinstance(value, float):
            return value
        if value == "never" and self.never is not None:
            return self.never
        is_plain = self.is_bare and _PLAIN.fullmatch(value)
        try:
            number = float(value) if is_plain else units.parse(value, self.dimension)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        if number < 0 or (number == 0 and not self.zero):
            self.fail(f"{value} is {'below' if self.zero else 'not above'} 0", param, ctx)
        return number


TIME: Final = Quantity("time")
TIME_OR_0: Final = Quantity("time", zero=True)
SECONDS: Final = Quantity("time", is_bare=True)
SIZE: Final = Quantity("bytes")


class OutputFile(click.Path):
    """A file that will be written. Refused before any work is done where it cannot be, or is itself an input."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; fails where it names an input of the same command line or cannot be written."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            place = next(folder for folder in path.absolute().parents if folder.exists())
            exists = path.exists()
        except OSError as error:
            raise of_system(error) from None
        if not place.is_dir():
            self.fail(f"{path} cannot be written: {place} is a file, not a folder", param, ctx)
        if not os.access(place, os.W_OK):
            self.fail(f"{path} cannot be written: no right to write in {place}", param, ctx)
        root = ctx.find_root().obj if ctx is not None else None
        if exists and path.is_file() and isinstance(root, CommandLine) and root.mentions(path) > 1:
            self.fail(f"{path} is an input of this command and would be overwritten", param, ctx)
        return path
