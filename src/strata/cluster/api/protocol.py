"""What is asked of the API server, so that what acts can be tried without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from strata.cluster.api.kinds import Object, ObjectKind
from strata.errors import StrataError

MANAGER = "strata"
"""The field manager of what we apply."""


class ApiFailed(StrataError):
    """The API server refused, or could not be asked. `status`: of HTTP, 0 where there was no answer."""

    exit_code = 5

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else wrote meanwhile (409): look again, then decide again."""
        return self.status == 409

    @property
    def is_gone(self) -> bool:
        """Whether a watch's past is forgotten (410): list again."""
        return self.status == 410

    @property
    def may_pass(self) -> bool:
        """Whether it may succeed later: no answer, too many requests, or trouble of the server's own."""
        return self.status == 0 or self.status == 429 or self.status >= 500


class Api(Protocol):
    """Every method raises ApiFailed; `get` returns None where the object, or its kind, is not there."""

    def get(self, kind: ObjectKind, name: str, namespace: str = "") -> Object | None:
        """Return one object."""

    def list(self, kind: ObjectKind, *, namespace: str = "", labels: str = "") -> tuple[Sequence[Object], str]:
        """Return all objects of a kind and the resource version they are of."""

    def watch(
        self, kind: ObjectKind, *, since: str, timeout_s: float, labels: str = ""
    ) -> Iterator[tuple[str, Object]]:
        """Yield (ADDED | MODIFIED | DELETED | BOOKMARK, object) until the server ends it, at the latest then."""

    def create(self, kind: ObjectKind, obj: Object, *, is_dry_run: bool = False) -> Object:
        """Create an object."""

    def replace(self, kind: ObjectKind, obj: Object, *, subresource: str = "") -> Object:
        """Replace an object; with its `resourceVersion` a conflict is refused."""

    def patch(
        self,
        kind: ObjectKind,
        name: str,
        namespace: str = "",
        *,
        body: Mapping[str, Any],
        subresource: str = "",
        resource_version: str = "",
    ) -> Object:
        """Patch an object by a JSON merge patch."""

    def apply(self, kind: ObjectKind, obj: Object, *, subresource: str = "", manager: str = MANAGER) -> Object:
        """Apply an object by the server, taking over fields from other managers."""

    def delete(self, kind: ObjectKind, name: str, namespace: str = "") -> None:
        """Delete an object, its dependants in the background; one that is not there is no error."""

    def evict(self, name: str, namespace: str) -> None:
        """Evict a pod: refused with 429 while a budget of disruption forbids it."""
