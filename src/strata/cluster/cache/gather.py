"""Everything the router looks at, listed once: of an API server, or of files that kubectl wrote.

kubectl get nodes,pods,jobs,computenodes,computeclaims,runtimeprofiles -A -o json > cluster.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from strata.cluster.api.client import Api
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, Object, ObjectKind, meta, name_of, namespace_of
from strata.cluster.api.pod_form import faults_of
from strata.cluster.cache.cache import WATCHED, ClusterCache
from strata.cluster.cache.informer import STALE_S
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.errors import BadFile, Fault
from strata.files import read_document, read_json, read_text
from strata.fleet.vendor_resources import is_accelerator

Objects = Mapping[ObjectKind, Sequence[Object]]
"""All objects of the kinds that matter; a kind the cluster does not have is empty."""

_MOST_BYTES: Final = 2**30
_BY_NAME: Final = {(kind.group, kind.kind): kind for kind in WATCHED}


def from_server(api: Api) -> Objects:
    """List everything. Raises ApiFailed, but not for a kind that is not installed; naming all we may not list."""
    objects: dict[ObjectKind, Sequence[Object]] = {}
    refusals: dict[str, ApiFailed] = {}
    for kind in WATCHED:
        try:
            objects[kind] = listed(api, kind)
        except ApiFailed as error:
            if not error.is_forbidden:
                raise
            refusals[".".join(filter(None, (kind.plural, kind.group)))] = error
    if refusals:
        (_, first), *others = refusals.items()
        more = f"; nor list {', '.join(name for name, _ in others)}" if others else ""
        raise ApiFailed(f"{first}{more}", status=first.status)
    return objects


def listed(api: Api, kind: ObjectKind) -> Sequence[Object]:
    """Return all objects of a kind, none where it is not installed: who may not list it is told 403 even then."""
    try:
        return api.list(kind)[0]
    except ApiFailed as error:
        if error.status == 404 or (error.is_forbidden and not api.serves(kind)):
            return ()
        raise


def from_files(paths: Sequence[str | Path]) -> Objects:
    """Read lists or single objects, JSON or YAML; kinds that do not matter are passed over.

    Raises BadFile with every fault of a file, UsageError for one that is not there.
    """
    objects: dict[ObjectKind, list[Object]] = {kind: [] for kind in WATCHED}
    for path in paths:
        if faults := _sorted_in(objects, _data(path), str(path), ""):
            raise BadFile(faults, hint="kubectl get nodes,pods,computenodes -A -o json > FILE")
    return objects


def from_manifest(path: str | Path) -> Objects:
    """Read what somebody is about to create: one or more YAML documents, or JSON. Raises as `from_files`."""
    text = read_text(path)
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        fault = Fault(str(path), str(getattr(error, "problem", None) or error), line=line, column=column)
        raise BadFile([fault], hint="YAML documents, as kubectl apply -f takes them") from None
    objects: dict[ObjectKind, list[Object]] = {kind: [] for kind in WATCHED}
    faults: list[Fault] = []
    for number, document in enumerate(documents):
        faults += _sorted_in(objects, document, str(path), f"[{number}]" if len(documents) > 1 else "")
    if faults:
        raise BadFile(faults, hint="YAML documents, as kubectl apply -f takes them")
    return objects


def with_new(objects: Objects, new: Objects, namespace: str) -> Objects:
    """Return the objects of a cluster after others were created; those of no namespace go into `namespace`.

    What was decided of an object of the same name is left out.
    """
    merged: dict[ObjectKind, Sequence[Object]] = dict(objects)
    for kind, some in new.items():
        placed = [
            {**obj, "metadata": {"namespace": namespace, **obj["metadata"]}} if kind.is_namespaced else obj
            for obj in some
        ]
        keys = {_name(obj) for obj in placed}
        merged[kind] = [*(obj for obj in objects[kind] if _name(obj) not in keys), *placed]
        if kind != COMPUTE_CLAIM and keys:
            owners = {(kind.kind, *key) for key in keys}
            claims = merged[COMPUTE_CLAIM]
            merged[COMPUTE_CLAIM] = [claim for claim in claims if not _owners(claim) & owners]
    return merged


def _name(obj: Object) -> tuple[str, str]:
    return namespace_of(obj), name_of(obj)


def _owners(claim: Object) -> set[tuple[str, str, str]]:
    owners = meta(claim).get("ownerReferences") or ()
    return {(str(owner.get("kind")), namespace_of(claim), str(owner.get("name"))) for owner in owners}


def cache_of(objects: Objects, profiles: Sequence[RuntimeProfile]) -> ClusterCache:
    """Return a cache of all objects; `profiles` count where there are none among them."""
    cache = ClusterCache(profiles)
    for kind in WATCHED:
        cache.listed(kind, objects[kind])
    return cache


def unseen(cache: ClusterCache) -> list[str]:
    """Return the nodes whose device plugins count accelerators, but of which no ComputeNode says what they are."""
    counts = {name: (node.get("status") or {}).get("allocatable") or {} for name, node in cache.nodes.items()}
    return [
        name
        for name in sorted(counts.keys() - cache.compute_nodes.keys())
        if any(is_accelerator(resource) and str(count) != "0" for resource, count in counts[name].items())
    ]


def silent(objects: Objects, now: datetime) -> set[str]:
    """Return the nodes whose agents have published nothing for `STALE_S`: a controller gives them no new gangs.

    The API server's times count, as it says them of who manages which field; without them nobody is silent.
    """
    return {
        name_of(obj)
        for obj in objects[COMPUTE_NODE]
        if (times := list(_published(obj))) and (now - max(times)).total_seconds() > STALE_S
    }


def _published(compute_node: Object) -> Iterator[datetime]:
    """Yield when devices of a ComputeNode were written; others write its conditions."""
    for entry in meta(compute_node).get("managedFields") or ():
        if "f:devices" in ((entry.get("fieldsV1") or {}).get("f:status") or {}):
            with suppress(ValueError):
                yield datetime.fromisoformat(str(entry.get("time")))


def _sorted_in(objects: dict[ObjectKind, list[Object]], data: Any, path: str, under: str) -> list[Fault]:
    """Put the objects of a document to their kinds; return the faults of those that are none."""
    faults: list[Fault] = []
    for where, obj in _flat(data, under):
        if odd := _faults(obj, path, where):
            faults += odd
        elif kind := _BY_NAME.get((obj["apiVersion"].rpartition("/")[0], obj["kind"])):
            objects[kind].append(obj)
    return faults


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
    for number, item in enumerate(items):
        yield from _flat(item, f"{prefix}[{number}]")


def _faults(obj: Any, path: str, where: str) -> list[Fault]:
    """Return why something is not an object of an API server, nothing where it is one."""
    if not isinstance(obj, dict) or not all(isinstance(obj.get(key), str) for key in ("apiVersion", "kind")):
        return [Fault(path, "is not an object with apiVersion and kind", where=where)]
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return [Fault(path, "has no metadata.name", where=where)]
    return faults_of(obj, path, under=where)
