"""A client of an HTTP API that speaks JSON, of the standard library alone."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any, ClassVar, Final
from urllib.parse import quote

from strata.errors import MissingPart, StrataError, UsageError

TIMEOUT_S: Final = 60.0

_NOT_SERVED: Final = ("404", "405")
"""The `code` of an error of ours about a path, or a method, that is not served there (`not_served`)."""
_OTHER_WORDS: Final = (ssl.SSLError, http.client.BadStatusLine)
"""What is raised where somebody answers, and not in HTTP, or not in TLS."""
_OTHER_JSON: Final = "JSON of another form"


@dataclass(frozen=True)
class JsonClient:
    """Something at an address. Calls raise UsageError for what it refuses, MissingPart where none answers, or
    another server does.

    what: its noun; hint: the command that starts one; address: the option that names it, and where it stands.
    """

    url: str
    token: str = ""
    what: ClassVar[str]
    hint: ClassVar[str]
    address: ClassVar[str]

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return what is answered."""
        with self.open(method, path, body, timeout_s=TIMEOUT_S) as response:
            text = response.read()
        try:
            return json.loads(text)
        except ValueError:
            raise self._another(path, _form(response.status, response.headers)) from None

    def item(
        self, path: str, *keys: str, method: str = "GET", body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return an object that has these keys."""
        answer = self.json(method, path, body)
        if not _has(answer, keys):
            raise self._another(path, _OTHER_JSON)
        return dict(answer)

    def items(self, path: str, *keys: str) -> list[dict[str, Any]]:
        """Return objects that all have these keys."""
        answer = self.json("GET", path)
        if not isinstance(answer, list) or not all(_has(item, keys) for item in answer):
            raise self._another(path, _OTHER_JSON)
        return answer

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        timeout_s: float | None,
        media_type: str = "",
    ) -> Iterator[Any]:
        """Yield an answer, to be read as it comes. timeout_s: without a word; None: for ever. media_type: what it
        must be, "" for anything."""
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{self.url!r} is no address of a {self.what}", hint="http://HOST:PORT")
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                if media_type and response.headers.get_content_type() != media_type:
                    raise self._another(path, _form(response.status, response.headers))
                yield response
        except urllib.error.HTTPError as error:
            raise self._refusal(path, error) from None
        except http.client.InvalidURL as error:
            raise UsageError(f"{self.url!r} is no address: {error}", hint="http://HOST:PORT") from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # HTTPException: it ended amid an answer
            reason = getattr(error, "reason", error)
            has_spoken = isinstance(reason, _OTHER_WORDS) and not isinstance(reason, ConnectionError)
            message = f"no {self.what} answers at {self.url}: {str(reason).strip()}"
            raise MissingPart(message, hint=self.address if has_spoken else self.hint) from None

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> StrataError:
        try:
            fault = json.loads(error.read())["error"]
            message, code = str(fault["message"]), str(fault.get("code"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._another(path, _form(error.code, error.headers))
        if code in _NOT_SERVED:
            return self._another(path, f"{message!r}")
        lines = message.splitlines()
        hint = next((line.removeprefix("try:").strip() for line in lines if line.startswith("try:")), None)
        text = "; ".join(line for line in lines if not line.startswith("try:"))
        if error.code == 401:
            hint = "STRATA_TOKEN, or --token-file"
        return StrataError(text, hint=hint) if error.code >= 500 else UsageError(text, hint=hint)

    def _another(self, path: str, answer: str) -> MissingPart:
        return MissingPart(
            f"what is at {self.url} is no {self.what}: it answers {path} with {answer}", hint=self.address
        )


def _form(status: int, headers: Message) -> str:
    return f"{headers.get_content_type()}, HTTP status {status}"


def _has(answer: object, keys: Sequence[str]) -> bool:
    return isinstance(answer, dict) and all(key in answer for key in keys)


def segment(name: str, *, what: str, hint: str) -> str:
    """Return a name as one part of a path. Raises UsageError for what nothing is called, as it is another path."""
    if not name or "/" in name:
        raise UsageError(f"there is no {what} {name!r}", hint=hint)
    return quote(name, safe="")
