"""The JSON patch (RFC 6902) that makes one object another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def json_patch(before: Any, after: Any) -> list[Operation]:
    """Return operations in the order they are to be done; none where nothing differs.

    A list that only grew at its end is added to; one that lost or moved items is replaced as a whole.
    """
    return list(_operations("", before, after))


def _operations(path: str, before: Any, after: Any) -> Iterator[Operation]:
    if before is after:
        return  # what was not touched, as most of a pod's metadata
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from ({"op": "remove", "path": _below(path, key)} for key in before if key not in after)
        for key, value in after.items():
            if key in before:
                yield from _operations(_below(path, key), before[key], value)
            else:
                yield {"op": "add", "path": _below(path, key), "value": value}
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) == len(after):
            for number, (old, new) in enumerate(zip(before, after, strict=True)):
                yield from _operations(f"{path}/{number}", old, new)
        elif before and is_same(before, after[: len(before)]):
            yield from ({"op": "add", "path": f"{path}/-", "value": value} for value in after[len(before) :])
        else:
            yield {"op": "replace", "path": path, "value": after}
    elif not is_same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def is_same(left: Any, right: Any) -> bool:
    """Return whether two JSON values are the same; true is not 1, as Python has it."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return type(left) is type(right) and bool(left == right)


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
