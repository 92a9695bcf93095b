"""JSON merge patches as an API server takes them."""

from __future__ import annotations

import copy
from typing import Any


def merged(obj: Any, body: Any) -> Any:
    """Return an object after a patch (RFC 7386)."""
    if not isinstance(body, dict):
        return copy.deepcopy(body)
    result = dict(obj) if isinstance(obj, dict) else {}
    for key, value in body.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
