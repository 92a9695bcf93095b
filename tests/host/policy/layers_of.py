"""Layers from JSON data that must be readable."""

from __future__ import annotations

from typing import Any

from strata.errors import UsageError
from strata.host.policy.codec import read
from strata.host.policy.policy import Layer


def parse(data: Any) -> tuple[Layer, ...]:
    """Return the layers of JSON data. Raises UsageError with all that scx_layered would refuse to read."""
    policy = read(data)
    layers = tuple(layer for layer in policy.layers if layer is not None)
    if policy.faults:
        raise UsageError("\n".join(f"{fault.path}: {fault.message}" for fault in policy.faults))
    return layers
