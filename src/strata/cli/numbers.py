"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number in a range. click takes `nan`, which is in every range, and `inf`, which is above any lower end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for what is none."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Return the range as help shows it: click has words only for ranges that end somewhere."""
        return super()._describe_range() if self.min is not None or self.max is not None else ""
