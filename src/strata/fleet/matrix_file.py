"""The network file of design brief 001 §3.4.1 as it stands: bandwidth and latency as matrices, row to column.

A number is Gbps or ms, as everywhere in the brief; a value with a unit of its own is text (`"50GB/s"`). The
diagonal is what a domain has inside. Every pair has a value: a link that is
not there cannot be told from one forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from strata import units
from strata.errors import Fault, UsageError
from strata.files import Document, FileModel

MOST_GBPS: Final = 1e5
MOST_MS: Final = 1e4
"""Larger numbers are bit/s or microseconds: no link is that fast, none of the earth's that late."""

MATRICES: Final = ("bandwidth_matrix", "latency_matrix")


def _cell(what: str, dimension: units.Dimension, unit: str, most: float) -> Any:
    def read(value: Any) -> float:
        text = ""
        if value is None:
            text = f"has no {what}; every pair of domains needs one, in both directions"
        elif isinstance(value, str) and value.strip().lower().lstrip("+-.") in ("nan", "inf", "infinity"):
            text = f"{value} is not a finite number"
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                text = f"{value} is not a finite number"
            elif value > most:
                text = f"{value:g} is read as {unit}, and no link has that; another unit is written out, as text"
            else:
                return value * units.parse(f"1{unit}", dimension)
        if text:
            raise PydanticCustomError("matrix_cell", "{text}", {"text": text})
        try:
            return units.parse(value, dimension)
        except UsageError as error:
            raise PydanticCustomError("matrix_cell", "{text}", {"text": str(error)}) from None

    described = Field(description=f"{what}: a number is {unit}, text has a unit")
    return BeforeValidator(read, json_schema_input_type=Annotated[str | float, described])


Gbps = Annotated[float, Field(gt=0), _cell("bandwidth", "bandwidth", "Gbps", MOST_GBPS)]
Milliseconds = Annotated[float, Field(ge=0), _cell("latency", "time", "ms", MOST_MS)]


class MatrixNetworkFile(FileModel):
    """The network file of brief 001, section 3.4.1. Row i, column j: from domain i to domain j; one way."""

    topology: Literal["hierarchical"]
    num_domains: Annotated[int, Field(strict=True, ge=1)]
    bandwidth_matrix: list[list[Gbps]]
    latency_matrix: list[list[Milliseconds]]


def shape_faults(document: Document) -> Iterator[Fault]:
    """Yield the rows and pairs that a matrix lacks, or has too many of."""
    count = document.data.get("num_domains")
    if not isinstance(count, int) or isinstance(count, bool):
        return  # the model's to report
    for key in MATRICES:
        matrix = document.data.get(key)
        if not isinstance(matrix, list):
            continue
        if len(matrix) != count:
            yield document.fault((key,), f"has {len(matrix)} rows for num_domains {count}")
        for i, row in enumerate(matrix):
            if isinstance(row, list) and len(row) != count:
                lacking = [f"{i} to {j}" for j in range(len(row), count)]
                more = f"; missing: domain {', '.join(lacking)}" if lacking else ""
                yield document.fault((key, i), f"has {len(row)} values for num_domains {count}{more}")


def domain_names(matrix: Sequence[Sequence[float]]) -> list[str]:
    """Return the names of domains that the file only numbers."""
    return [f"Domain_{index}" for index in range(len(matrix))]
