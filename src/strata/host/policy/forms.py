"""The kinds of values scx_layered reads from a policy, as its Rust types take them.

A form turns a JSON value into ours, or raises ValueError with what it should be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Form = Callable[[Any], Any]


def flag(value: Any) -> bool:
    """`bool`."""
    if not isinstance(value, bool):
        raise ValueError("should be true or false")
    return value


def text(value: Any) -> str:
    """`String`."""
    if not isinstance(value, str):
        raise ValueError("should be text")
    return value


def real(value: Any) -> float:
    """`f64`; whole numbers are taken too."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("should be a number")
    return float(value)


def whole(bits: int, *, signed: bool = False) -> Form:
    """`u32`, `u64`, `i32` …; `1.0` is refused, as serde does."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"should be a whole number from {low} to {high}")
        return value

    return read


def pair(first: Form, second: Form) -> Form:
    """A tuple of two, as a list of exactly two."""

    def read(value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("should be a list of two")
        return first(value[0]), second(value[1])

    return read


def many(form: Form) -> Form:
    """`Vec<T>`."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("should be a list")
        return tuple(form(item) for item in value)

    return read


def optional(form: Form) -> Form:
    """`Option<T>`: null is as good as nothing."""

    def read(value: Any) -> Any:
        return None if value is None else form(value)

    return read


def one_of(*names: str) -> Form:
    """An enum without data, by its exact Rust name."""

    def read(value: Any) -> str:
        if value not in names or not isinstance(value, str):
            raise ValueError(f"should be one of {', '.join(names)}")
        return value

    return read


U32: Final = whole(32)
U64: Final = whole(64)
I32: Final = whole(32, signed=True)
REALS: Final = pair(real, real)
