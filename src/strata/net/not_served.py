"""What a server on Starlette answers where it has no such path, or not by this method."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strata.net.http import error_body, kind_of


async def not_served(request: Request, error: Exception) -> Response:
    """Return what Starlette refuses by itself in the form of all our errors: it would say so in plain text."""
    assert isinstance(error, HTTPException)
    status, path, message = error.status_code, request.url.path[:200], error.detail
    if status == 404:
        message = f"there is nothing at {path}"
    elif status == 405:
        message = f"{path} does not take {request.method}"
    body = error_body(message, kind=kind_of(status), code=str(status))
    return Response(body, status, error.headers, "application/json")


REFUSALS: Final = {HTTPException: not_served}
"""For the `exception_handlers` of an application."""
