"""Numbers and names read from many places of a text at once: eight bytes a 64-bit word, all lines in one go.

`words(raw)[i]` holds the bytes raw[i:i+8], the first in the lowest bits (little-endian), so that the digits before
a known end are the highest bytes. Every function takes one position a line.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Bools, Ints

Words = NDArray[np.uint64]
Places = Ints
Mask = Bools

_U: Final = np.uint64
_ZEROS: Final = _U(0x3030303030303030)
_LOW7: Final = _U(0x7F7F7F7F7F7F7F7F)
_HIGH: Final = _U(0x8080808080808080)
_TEN_UP: Final = _U(0x7676767676767676)  # added to a byte, its top bit says that it was 10 or more
_ALL: Final = _U(0xFFFFFFFFFFFFFFFF)
TOP: Final = np.array([0] + [(_ALL.item() << 8 * (8 - n)) & _ALL.item() for n in range(1, 9)], np.uint64)
"""Masks of the n highest bytes: the last n of eight characters."""
BOTTOM: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""Masks of the n lowest bytes: the first n of eight characters."""


def words(raw: bytes) -> Words:
    """Return a view with a 64-bit word at every byte of `raw`, which must be 8 bytes or longer."""
    return np.ndarray((len(raw) - 7,), np.dtype("<u8"), buffer=raw, strides=(1,))


def word(text: bytes) -> np.uint64:
    """Return eight characters (or fewer, in the lowest bytes) as a word."""
    assert len(text) <= 8
    return _U(int.from_bytes(text, "little"))


def digits_before(at: Words, end: Places) -> tuple[Ints, Ints]:
    """Return the number whose last digit is before `end`, and its digits: 0 to 8, 8 also for 8 or more."""
    value = at[end - 8] ^ _ZEROS
    count = _trailing(_not_digits(value))
    return _number(value & TOP[count]), count


def number(at: Words, start: Places, end: Places) -> tuple[Ints, Mask]:
    """Return the numbers between `start` and `end`, and which of them are one to eight digits and nothing else."""
    length = end - start
    is_short = (length >= 1) & (length <= 8)
    mask = TOP[np.where(is_short, length, 0)]
    value = (at[end - 8] ^ _ZEROS) & mask
    return _number(value), is_short & (_not_digits(value) == 0)


def spaces_before(at: Words, end: Places) -> Ints:
    """Return how many of the eight characters before `end` are spaces, counted from it."""
    value = at[end - 8] ^ _U(0x2020202020202020)
    return _trailing((((value & _LOW7) + _LOW7) | value) & _HIGH)


def has_space(at: Words, end: Places, length: Places) -> Mask:
    """Return where one of the last `length` (at most 8) characters before `end` is a space."""
    value = (at[end - 8] ^ _U(0x2020202020202020)) | ~TOP[length]
    is_other = (((value & _LOW7) + _LOW7) | value) & _HIGH
    has_one: Mask = is_other != _HIGH
    return has_one


def text(at: Words, start: Places, end: Places) -> tuple[Words, Words, Mask]:
    """Return the texts between `start` and `end` as two words each, and which of them are 16 bytes or shorter."""
    length = end - start
    is_short = (length >= 0) & (length <= 16)
    length = np.where(is_short, length, 0)
    first = at[start] & BOTTOM[np.minimum(length, 8)]
    return first, at[start + 8] & BOTTOM[np.maximum(length - 8, 0)], is_short


def _not_digits(value: Words) -> Words:
    """Return a mask with the top bit set of every byte that is above 9."""
    return (((value & _LOW7) + _TEN_UP) | value) & _HIGH


def _trailing(mask: Words) -> Ints:
    """Return how many of the highest bytes are clear in a mask of top bits."""
    exponent = np.frexp(mask.astype(np.float64))[1]  # the highest set bit, from 1; 0 where none is
    return (8 - ((exponent.astype(np.int64) + 7) >> 3)).astype(np.int64)


def _number(value: Words) -> Ints:
    """Return eight digits (0 to 9 in each byte, the first lowest) as a number: pairs, then fours, then all."""
    value = (value * _U(10) + (value >> _U(8))) & _U(0x00FF00FF00FF00FF)
    value = (value * _U(100) + (value >> _U(16))) & _U(0x0000FFFF0000FFFF)
    return ((value * _U(10000) + (value >> _U(32))) & _U(0xFFFFFFFF)).astype(np.int64)
