"""Whether Rust's regex library takes an expression, asked of Python's: what only one of them knows is told apart.

References
----------
docs.rs/regex, Syntax. No look-around and no back references, but repeats of repeats,
`\\p{...}`, `\\z`, `(?<name>...)`.
"""

from __future__ import annotations

import re
import warnings
from typing import Final

_ESCAPED: Final = r"(?<!\\)(?:\\\\)*"
_PYTHON_ONLY: Final = re.compile(_ESCAPED + r"(?:\(\?(?:[=!>#(]|<[=!]|P=)|\\[0-9Zg]|\\N\{)")
_OPEN_BRACE: Final = re.compile(_ESCAPED + r"(?<!\\[pPxuU])\{(?!\d+(?:,\d*)?\})")
_RUST_ONLY: Final = (
    (re.compile(_ESCAPED + r"\\[pP](?:\{[^}]*\}|[A-Z])"), r"\\w"),
    (re.compile(_ESCAPED + r"\\[xuU]\{[0-9a-fA-F]+\}"), "a"),
    (re.compile(_ESCAPED + r"\\z"), "$"),
    (re.compile(_ESCAPED + r"\(\?<(?![=!])"), "(?P<"),
    (re.compile(_ESCAPED + r"\(\?[imsUuxR-]+:"), "(?:"),
    (re.compile(_ESCAPED + r"\(\?[imsUuxR-]+\)"), ""),
    (re.compile(_ESCAPED + r"[$^](?=[*+?{])"), "a"),
    (re.compile(_ESCAPED + r"([*+?]|\{\d+(?:,\d*)?\})(?:[*+?]|\{\d+(?:,\d*)?\})+"), r"\1"),
)
"""What Rust takes and Python does not, and something alike that Python takes."""


def fault(text: str) -> str:
    """Return why Rust's regex library would refuse an expression; "" where it takes it."""
    if _PYTHON_ONLY.search(text):
        return "look-around and back references are not known"
    outside = re.sub(r"\[(?:\\.|[^\]\\])+\]", "", text)
    if _OPEN_BRACE.search(outside):
        return "a brace that is no repeat must be escaped"
    for rust, python in _RUST_ONLY:
        text = rust.sub(python, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets that Python means to read otherwise some day
            re.compile(text)
    except (re.error, OverflowError) as error:
        return str(error)
    return ""
