"""A client of a gateway, for those who look: what serves, and what became of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

from strata.net.json_client import JsonClient


@dataclass(frozen=True)
class GatewayClient(JsonClient):
    """A gateway at an address. Calls raise UsageError for what it refuses, MissingPart where none answers."""

    what: ClassVar = "gateway"
    hint: ClassVar = "strata serve gateway"

    def status(self) -> dict[str, Any]:
        """Return what serves each model, and what waits."""
        status: dict[str, Any] = self.json("GET", "/status")
        return status

    def requests(self) -> list[dict[str, Any]]:
        """Return what became of the newest requests."""
        requests: list[dict[str, Any]] = self.json("GET", "/decisions")
        return requests

    def request(self, request_id: str) -> dict[str, Any]:
        """Return what became of a request, and which ways there were."""
        request: dict[str, Any] = self.json("GET", f"/decisions/{quote(request_id, safe='')}")
        return request
