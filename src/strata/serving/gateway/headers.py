"""What a request's headers say: how its body is packed, and its goals."""

from __future__ import annotations

import math
from collections.abc import Mapping

from strata.serving.gateway.openai import ApiError


def plain(headers: Mapping[bytes, bytes]) -> None:
    """Raise ApiError (415) for a body that is not sent as it is: unpacked, it may be a thousand times its size."""
    coding = headers.get(b"content-encoding", b"").decode("latin-1").strip()
    if coding.lower() not in ("", "identity"):
        problem = f"content-encoding: bodies are taken as they are, not in {coding!r}: send it uncompressed"
        raise ApiError(415, problem, "unsupported_encoding", param="content-encoding")


def goal_s(headers: Mapping[bytes, bytes], header: str) -> float:
    """Return a goal among a request's headers; infinite for none. Raises ApiError (400) for an invalid time.

    A header, as any client of OpenAI's API can send some, and engines refuse keys they do not know.
    """
    if (value := headers.get(header.encode())) is None:
        return math.inf
    text = value.decode("latin-1")
    try:
        seconds = float(text) / 1e3
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        problem = f"{header}: should be a number of milliseconds, not {text!r}"
        raise ApiError(400, problem, "invalid_value", param=header)
    return seconds
