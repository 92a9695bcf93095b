"""The token of a server, as servers and clients are given it."""

from __future__ import annotations

import os
from pathlib import Path

from strata.errors import UsageError, of_system


def read_token(path: str | None) -> str:
    """Return what a token file holds; empty without a file. Raises UsageError."""
    if path is None:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text: it should contain the token") from None
    except OSError as error:
        raise of_system(error) from None
    if not token:
        raise UsageError(f"{path} is empty: it should contain the token")
    return _checked(token, path)


def token_of(path: str | None, *, variable: str = "STRATA_TOKEN") -> str:
    """Return what a token file holds, else what the environment has; empty without both. Raises UsageError."""
    return read_token(path) or _checked(os.environ.get(variable, "").strip(), variable)


def _checked(token: str, place: str) -> str:
    """Return a token that a header can carry: another one would be in the error of whoever sends it."""
    if not (token.isascii() and token.isprintable()):
        problem = "it holds a line end, or a letter that is not ASCII"
        raise UsageError(f"{place} is no token: {problem}", hint="a line of letters and digits")
    return token
