"""Everything the router looks at, listed once: of an API server, or of files that kubectl wrote.

kubectl get nodes,pods,jobs,computenodes,computeclaims,runtimeprofiles -A -o json > cluster.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from strata.cluster.api.kinds import Object, ObjectKind
from strata.cluster.api.protocol import Api, ApiFailed
from strata.cluster.cache.cache import WATCHED, ClusterCache
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.errors import BadFile, Fault
from strata.files import read_document, read_json

Objects = Mapping[ObjectKind, Sequence[Object]]
"""All objects of the kinds that matter; a kind the cluster does not have is empty."""

_MOST_BYTES: Final = 2**30
_BY_NAME: Final = {(kind.group, kind.kind): kind for kind in WATCHED}


def from_server(api: Api) -> Objects:
    """List everything. Raises ApiFailed, but not for a kind that is not installed."""
    found: dict[ObjectKind, Sequence[Object]] = {}
    for kind in WATCHED:
        try:
            found[kind] = api.list(kind)[0]
        except ApiFailed as error:
            if error.status != 404:
                raise
            found[kind] = ()
    return found


def from_files(paths: Sequence[str | Path]) -> Objects:
    """Read lists or single objects, JSON or YAML; kinds that do not matter are passed over.

    Raises BadFile with every fault of a file, UsageError for one that is not there.
    """
    found: dict[ObjectKind, list[Object]] = {kind: [] for kind in WATCHED}
    for path in paths:
        faults: list[Fault] = []
        for where, one in _flat(_data(path), ""):
            if said := _fault(one):
                faults.append(Fault(str(path), said, where=where))
                continue
            group = one["apiVersion"].rpartition("/")[0]
            kind = _BY_NAME.get((group, one["kind"]))
            if kind is not None:
                found[kind].append(one)
        if faults:
            raise BadFile(faults, hint="kubectl get nodes,pods,computenodes -A -o json > FILE")
    return found


def cache_of(objects: Objects, profiles: Sequence[RuntimeProfile]) -> ClusterCache:
    """Return a book that was told of all objects; `profiles` count where there are none among them."""
    cache = ClusterCache(profiles)
    for kind in WATCHED:
        cache.listed(kind, objects[kind])
    return cache


def _data(path: str | Path) -> Any:
    if Path(path).suffix in (".yaml", ".yml"):
        return read_document(path).data
    return read_json(path, max_bytes=_MOST_BYTES)


def _flat(data: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a list, or of lists of lists, and where they stand."""
    is_list = isinstance(data, dict) and str(data.get("kind", "")).endswith("List")
    items = data.get("items") if is_list else data if isinstance(data, list) else None
    if not isinstance(items, list):
        yield where, data
        return
    prefix = f"{where}.items" if is_list and where else "items" if is_list else where
    for number, one in enumerate(items):
        yield from _flat(one, f"{prefix}[{number}]")


def _fault(one: Any) -> str:
    """Return why something is no object of an API server, empty where it is one."""
    if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("apiVersion", "kind")):
        return "is no object with apiVersion and kind"
    said = one.get("metadata")
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return "has no metadata.name"
    for key, value in {"spec": one.get("spec"), "status": one.get("status"), **_maps(said)}.items():
        if value is not None and not isinstance(value, dict):
            return f"{key} should be a mapping"
    return ""


def _maps(said: Mapping[str, Any]) -> dict[str, Any]:
    return {f"metadata.{key}": said.get(key) for key in ("labels", "annotations")}
