"""Making the API server know a fingerprint: the ComputeNode's status, by server-side apply.

An apply is refused whole where the server's definition of the kind lacks one of its fields, whatever
`fieldValidation` says: an agent newer than the definitions leaves those out, and says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from strata import __version__
from strata.cluster.api.client import Api
from strata.cluster.api.crd.compute_node import compute_node
from strata.cluster.api.crd.models import LONGEST, MOST_NOTES
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_NODE, Object, moment
from strata.fleet.fingerprint import Fingerprint

log = logging.getLogger(__name__)

MANAGER: Final = "strata-agent"
NOT_FOUND: Final = 404
AGAIN_S: Final = 600.0
"""How long fields stay left out until the definitions may have been applied anew."""

_UNDECLARED: Final = "field not declared in schema"


class Publisher:
    """Applies a node's status, and the node itself where it is not there. For one thread.

    Raises ApiFailed, and BadFile for a figure that is none.
    """

    def __init__(
        self,
        api: Api,
        *,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._wall_clock, self._clock = api, wall_clock, clock
        self._schema: Mapping[str, Any] | None = None
        self._read_s = 0.0
        self._omitted: frozenset[str] = frozenset()

    def __call__(self, fingerprint: Fingerprint) -> None:
        """Publish a fingerprint."""
        whole = compute_node(fingerprint, at=moment(self._wall_clock(), "milliseconds"), version=__version__)
        if self._schema is not None and self._clock() - self._read_s < AGAIN_S:
            self._apply_fitting(whole, self._schema)
            return
        try:
            self._apply(whole)
        except ApiFailed as error:
            if _UNDECLARED not in str(error):
                raise
            self._schema, self._read_s = self._api.schema(COMPUTE_NODE), self._clock()
            self._apply_fitting(whole, self._schema)
        else:
            self._schema, self._omitted = None, frozenset()

    def _apply_fitting(self, whole: Object, schema: Mapping[str, Any]) -> None:
        omitted: set[str] = set()
        obj = fitting(whole, schema, omitted=omitted)
        fields = ", ".join(sorted(omitted))[: LONGEST // 2]
        note = f"the API server's ComputeNode lacks {fields}: apply the definitions of this version"
        status = obj["status"]
        if omitted:
            status["notes"] = [*status.get("notes", ())[: MOST_NOTES - 1], note]
        if omitted - self._omitted:
            log.warning("published in part: %s (strata kube crds)", note)
        self._omitted = frozenset(omitted)
        try:
            self._apply(obj)
        except ApiFailed:
            self._schema = None  # it is not what the server goes by
            raise

    def _apply(self, whole: Object) -> None:
        try:
            self._api.apply(COMPUTE_NODE, whole, subresource="status", manager=MANAGER)
        except ApiFailed as error:
            if error.status != NOT_FOUND:
                raise
            # A status needs its object; where the kind itself is not there, this is refused the same way.
            self._api.apply(COMPUTE_NODE, {key: whole[key] for key in whole if key != "status"}, manager=MANAGER)
            self._api.apply(COMPUTE_NODE, whole, subresource="status", manager=MANAGER)


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
