"""The token of a server, as servers and clients are given it."""

from __future__ import annotations

from pathlib import Path

from strata.errors import UsageError


def read_token(path: str | None) -> str:
    """Return what a token file holds; empty without a file. Raises UsageError."""
    if path is None:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    if not token:
        raise UsageError(f"{path} is empty: it should contain the token")
    return token
