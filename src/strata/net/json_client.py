"""A client of an HTTP API that speaks JSON, of the standard library alone."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from strata.errors import MissingPart, StrataError, UsageError

TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class JsonClient:
    """Something at an address. Calls raise UsageError for what it refuses, MissingPart where none answers.

    what: its noun; hint: the command that starts one.
    """

    url: str
    token: str = ""
    what: ClassVar[str]
    hint: ClassVar[str]

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return what is answered."""
        with self.open(method, path, body, timeout_s=TIMEOUT_S) as response:
            return json.loads(response.read())

    @contextmanager
    def open(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float | None
    ) -> Iterator[Any]:
        """Yield an answer, to be read as it comes. timeout_s: without a word; None: for ever."""
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{self.url!r} is no address of a {self.what}", hint="http://HOST:PORT")
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                yield response
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except http.client.InvalidURL as error:
            raise UsageError(f"{self.url!r} is no address: {error}", hint="http://HOST:PORT") from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # HTTPException: it ended amid an answer
            reason = getattr(error, "reason", error)
            raise MissingPart(f"no {self.what} answers at {self.url}: {reason}", hint=self.hint) from None


def _refusal(error: urllib.error.HTTPError) -> StrataError:
    try:
        message = str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP status {error.code}"
    lines = message.splitlines()
    hint = next((line.removeprefix("try:").strip() for line in lines if line.startswith("try:")), None)
    text = "; ".join(line for line in lines if not line.startswith("try:"))
    if error.code == 401:
        hint = "STRATA_TOKEN, or --token-file"
    return StrataError(text, hint=hint) if error.code >= 500 else UsageError(text, hint=hint)
