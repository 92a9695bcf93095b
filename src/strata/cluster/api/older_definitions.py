"""Applying objects of ours to an API server whose definitions of them may be older than we are.

A server-side apply is refused whole where the definition lacks one of its fields, whatever `fieldValidation` says:
those are left out, and told once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from strata.cluster.api.client import Api
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import Object, ObjectKind

log = logging.getLogger(__name__)

AGAIN_S: Final = 600.0
"""How long fields stay left out until the definitions may have been applied anew."""

_UNDECLARED: Final = "field not declared in schema"


class FittingApply:
    """`Api.apply` with what the server has no field for left out. For one thread.

    omitted: by kind, the paths of fields that were left out of the last object.
    """

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock = api, clock
        self._schemas: dict[ObjectKind, tuple[Mapping[str, Any], float]] = {}
        self._logged: dict[ObjectKind, set[str]] = {}
        self.omitted: dict[ObjectKind, frozenset[str]] = {}

    def __call__(self, kind: ObjectKind, obj: Object, **more: str) -> Object:
        """Apply an object and return it as it is then. Raises ApiFailed."""
        schema, read_s = self._schemas.get(kind, ({}, 0.0))
        if not schema or self._clock() - read_s >= AGAIN_S:
            try:
                applied = self._api.apply(kind, obj, **more)
            except ApiFailed as error:
                if _UNDECLARED not in str(error):
                    raise
                schema = self._api.schema(kind)
                self._schemas[kind] = schema, self._clock()
            else:
                self._schemas.pop(kind, None)
                self.omitted.pop(kind, None)
                return applied
        omitted: set[str] = set()
        fitted = fitting(obj, schema, omitted=omitted)
        if new := omitted - self._logged.setdefault(kind, set()):
            fields = ", ".join(sorted(new))
            log.warning("%s in part: the API server's definition lacks %s (strata kube crds)", kind.kind, fields)
            self._logged[kind] |= new
        self.omitted[kind] = frozenset(omitted)
        try:
            return self._api.apply(kind, fitted, **more)
        except ApiFailed as error:
            if _UNDECLARED in str(error):
                del self._schemas[kind]  # it is not what the server goes by
            raise


def fitting(value: Any, schema: Mapping[str, Any], *, omitted: set[str], path: str = "") -> Any:
    """Return a value without the fields that its schema does not have; their paths go into `omitted`.

    Where a schema names no fields at all, any may be there.
    """
    if isinstance(value, Mapping) and (fields := schema.get("properties")):
        omitted |= {f"{path}{key}" for key in value if key not in fields}
        return {
            key: fitting(inner, fields[key], omitted=omitted, path=f"{path}{key}.")
            for key, inner in value.items()
            if key in fields
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [fitting(inner, schema.get("items") or {}, omitted=omitted, path=path) for inner in value]
    return value
