"""One container made to run on a kind of card: image, command, environment, resources and mounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from strata.cluster.api.kinds import Object
from strata.fleet.slices import PRELOAD
from strata.fleet.vendor_resources import is_accelerator

RESERVED: Final = "STRATA_"
"""The beginning of variables that limit a fraction: a pod's own are dropped, so that none undoes ours."""
LIBRARY_PATH: Final = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a container gets.

    resource, count: of the device plugin; none of it for a fraction. command: None leaves the container's own.
    defaults: variables a container may set otherwise; env: those it may not, as Kubernetes writes them.
    mounts: volume mounts, left out where the container has one of its own there; limits: those it may not replace.
    dropped: a variable it may not set, since a device plugin does.
    """

    image: str
    resource: str = ""
    count: int = 0
    command: tuple[str, ...] | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    env: tuple[Mapping[str, Any], ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    limits: tuple[Mapping[str, Any], ...] = ()
    is_fraction: bool = False
    dropped: str = ""


def with_runtime(container: Object, runtime: Runtime) -> dict[str, Any]:
    """Return a container with a runtime; one that has it already comes back as it was."""
    after = dict(without_accelerators(container, but=runtime.resource if runtime.count else ""))
    after["image"] = runtime.image
    if runtime.command is not None:
        after["command"] = list(runtime.command)
    if env := _env(container.get("env") or [], runtime):
        after["env"] = env
    if runtime.count:
        resources = dict(after.get("resources") or {})
        for kind in ("requests", "limits"):
            resources[kind] = {**(resources.get(kind) or {}), runtime.resource: str(runtime.count)}
        after["resources"] = resources
    if mounts := _mounts(container.get("volumeMounts") or [], runtime):
        after["volumeMounts"] = mounts
    return after


def without_accelerators(container: Object, *, but: str = "") -> Object:
    """Return a container that asks for no vendor's accelerators, but for one resource."""
    resources = container.get("resources") or {}
    kept = {
        kind: {key: value for key, value in entries.items() if key == but or not is_accelerator(key)}
        if kind in ("requests", "limits") and entries
        else entries
        for kind, entries in resources.items()
    }
    return container if kept == resources else {**container, "resources": kept}


def own_mount(container: Object, path: str) -> str:
    """Return the name of the volume a container mounts at a path, empty where it mounts none there."""
    mounts = container.get("volumeMounts") or []
    return next((str(mount["name"]) for mount in mounts if _is_at(mount, path)), "")


def put(items: Iterable[Any], new: Mapping[str, Any], key: str = "name") -> list[Any]:
    """Return a list with an item instead of those of the same key, at the first one's place, else at the end.

    One that says the same and more stays: the API server fills in defaults between two calls.
    """
    before = list(items)
    same = [number for number, item in enumerate(before) if item.get(key) == new[key]]
    if not same:
        return [*before, dict(new)]
    before[same[0]] = before[same[0]] if _says(before[same[0]], new) else dict(new)
    return [item for number, item in enumerate(before) if number not in same[1:]]


def _says(actual: Any, expected: Any) -> bool:
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        return all(key in actual and _says(actual[key], value) for key, value in expected.items())
    return bool(actual == expected)


def _env(variables: Iterable[Mapping[str, Any]], runtime: Runtime) -> list[Any]:
    names = {variable["name"] for variable in runtime.env}

    def is_dropped(name: str) -> bool:
        return name == runtime.dropped or (runtime.is_fraction and name.startswith(RESERVED) and name not in names)

    env = [variable for variable in variables if not is_dropped(variable["name"])]
    for name, value in runtime.defaults.items():
        if name == LIBRARY_PATH:
            _join(env, name, value)
        elif name not in names and not is_dropped(name) and not any(variable["name"] == name for variable in env):
            env.append({"name": name, "value": value})
    for variable in runtime.env:
        if variable["name"] == PRELOAD:
            _join(env, PRELOAD, variable["value"])
        else:
            env = put(env, variable)
    return env


_BETWEEN: Final = {LIBRARY_PATH: r"[:;]", PRELOAD: r"[: ]"}


def _join(env: list[Any], name: str, value: str) -> None:
    """Put ours before what a variable holds, in place; what refers to something else stays as it is."""
    matches = [variable for variable in env if variable["name"] == name]
    if not matches:
        env.append({"name": name, "value": value})
    elif "valueFrom" not in matches[-1]:
        # Of several the last one counts.
        own = str(matches[-1].get("value") or "")
        parts = re.split(_BETWEEN[name], own)
        first = [part for part in value.split(":") if part and part not in parts]
        place = env.index(matches[0])
        env[:] = [variable for variable in env if variable["name"] != name]
        env.insert(place, {"name": name, "value": ":".join([*first, *([own] if own else [])])})


def _mounts(volume_mounts: Iterable[Mapping[str, Any]], runtime: Runtime) -> list[Any]:
    mounts = list(volume_mounts)
    for ours in runtime.mounts:
        if not any(_is_at(mount, ours["mountPath"]) for mount in mounts):
            mounts.append(dict(ours))
    for ours in runtime.limits:
        others = [mount for mount in mounts if mount == ours or not _is_at(mount, ours["mountPath"])]
        mounts = others if ours in others else [*others, dict(ours)]
    return mounts


def _is_at(mount: Mapping[str, Any], path: str) -> bool:
    return PurePosixPath(str(mount.get("mountPath"))) == PurePosixPath(path)
