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
    address: ClassVar = "--gateway URL, the address that strata serve gateway prints"

    def status(self) -> dict[str, Any]:
        """Return what serves each model, and what waits."""
        return self.item("/status")

    def requests(self) -> list[dict[str, Any]]:
        """Return what became of the newest requests."""
        return self.items("/decisions", "request_id", "model")

    def request(self, request_id: str) -> dict[str, Any]:
        """Return what became of a request, and which ways there were."""
        return self.item(f"/decisions/{quote(request_id, safe='')}")
