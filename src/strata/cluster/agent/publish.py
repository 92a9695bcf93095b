"""Making the API server know a fingerprint: the ComputeNode's status, by server-side apply."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from strata import __version__
from strata.cluster.api.crd.compute_node import compute_node
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_NODE, Object, moment
from strata.fleet.fingerprint import Fingerprint

MANAGER: Final = "strata-agent"
NOT_FOUND: Final = 404


def publish(
    fingerprint: Fingerprint, *, apply: Callable[..., Object], wall_clock: Callable[[], float] = time.time
) -> None:
    """Apply a node's status, and the node itself where it is not there.

    apply: `Api.apply`. Raises ApiFailed, and BadFile for a figure that is none.
    """
    whole = compute_node(fingerprint, at=moment(wall_clock(), "milliseconds"), version=__version__)
    try:
        apply(COMPUTE_NODE, whole, subresource="status", manager=MANAGER)
    except ApiFailed as error:
        if error.status != NOT_FOUND:
            raise
        # A status needs its object; where the kind itself is not there, this is refused the same way.
        apply(COMPUTE_NODE, {key: whole[key] for key in whole if key != "status"}, manager=MANAGER)
        apply(COMPUTE_NODE, whole, subresource="status", manager=MANAGER)
