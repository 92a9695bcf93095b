"""What worlds ask of arrays beyond the array API, for NumPy's on the host and torch's on a device.

A world runs where its arrays are. Nothing in it may ask a device what it has found: to hear of a single flag is to
wait until all work before it is done. On the host asking is cheap, and spares work on rows where nothing happens.
So `rows_where` and `may_be_any` look on the host only, and elsewhere stand for every row.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

Array: TypeAlias = Any
"""NumPy's, or torch's; below by what it holds."""

Floats: TypeAlias = Array
Singles: TypeAlias = Array
Ints: TypeAlias = Array
Bools: TypeAlias = Array


def moved(array: NDArray[Any], device: str | None) -> Array:
    """Return an array of the host as torch's on a device; as it is where `device` is None."""
    if device is None:
        return array
    import torch

    return torch.as_tensor(array, device=device)


_PLACED: dict[tuple[int, object], tuple[NDArray[Any], Array]] = {}


def placed(constant: NDArray[Any], like: Array) -> Array:
    """Return a module's constant where `like` is; to each device it is moved once."""
    if isinstance(like, np.ndarray):
        return constant
    key = id(constant), like.device
    if key not in _PLACED:
        _PLACED[key] = constant, array_namespace(like).asarray(constant, device=like.device)
    return _PLACED[key][1]


def may_be_any(where: Array) -> bool:
    """Whether any flag is set; of arrays on a device always True, so that nothing waits."""
    return not isinstance(where, np.ndarray) or bool(where.any())


def rows_where(where: Array) -> tuple[Array, Array]:
    """Return the numbers of the rows to work on, and of each whether its flag is set.

    On the host those whose flag is set; on a device all rows. What is not set must not be changed.
    """
    if isinstance(where, np.ndarray):
        rows = np.flatnonzero(where)
        return rows, where[rows]
    xp = array_namespace(where)
    return xp.arange(len(where), device=where.device), where


def first_where(where: Array) -> Array:
    """Return [N]: the number of the first flag set in each row of [N, J]; 0 where none is."""
    if isinstance(where, np.ndarray):
        return where.argmax(axis=1)
    xp = array_namespace(where)
    return xp.astype(where, xp.int8).argmax(axis=1)  # torch has no argmax of flags


def fill(array: Array, where: Array, value: float) -> None:
    """Write `value` into an array where flags, broadcast to it, are set."""
    if isinstance(array, np.ndarray):
        np.copyto(array, value, where=where)
    else:
        array.masked_fill_(where, value)


def raise_to(array: Array, least: Array) -> None:
    """Write the larger of the two into the first; `least` may be a number."""
    if isinstance(array, np.ndarray):
        np.maximum(array, least, out=array)
    elif isinstance(least, (int, float)):
        array.clamp_(min=least)
    else:
        array.copy_(array.maximum(least))


def rows_of(table: Array, index: Array) -> Array:
    """Return table[index], rows by whole numbers of any shape: NumPy's `take` is twice as fast as brackets."""
    return table.take(index, axis=0) if isinstance(table, np.ndarray) else table[index]


def columns_of(table: Array, index: Array) -> Array:
    """Return table[:, index], columns by whole numbers of any shape."""
    return table.take(index, axis=1) if isinstance(table, np.ndarray) else table[:, index]


def counted(numbers: Array, size: int) -> Array:
    """Return how often each of 0 ... size - 1 is among whole numbers [n]."""
    if isinstance(numbers, np.ndarray):
        return np.bincount(numbers, minlength=size)
    counts = numbers.new_zeros(size)
    return counts.index_add_(0, numbers, numbers.new_ones(len(numbers)))
